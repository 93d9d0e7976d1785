"""The server that is examined: its model, its markers, what it makes of requests."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from constrained_k2.evaluation.chat_answer import ChatAnswer, Unusable, member, read_stream, read_whole
from constrained_k2.evaluation.doctor.bodies import BOOK, TOOLS, user
from constrained_k2.evaluation.doctor.connection import Connection, NotServed, Refused
from constrained_k2.evaluation.doctor.prompts import Piece, Prompt

SPECIAL_TEXTS = (
    *("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("[EOT]", "<|im_system|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_middle|>", "<think>", "</think>", "[UNK]", "[PAD]"),
)
"""Kimi's special tokens, those of media excepted: sent as text, they make some servers look for an image."""

_SPECIAL_IDS = 256  # from [BOS] on, whether the vocabulary has 163,584 ordinary tokens or a test's few
_MOST_PIECES = 4096  # each may cost a request, and the ids come from the server
_LONE = re.compile("[\ud800-\udfff]")
_MAY_BE_ABSENT = frozenset({"<think>", "</think>", "<|start_header_id|>", "<|end_header_id|>"})


@dataclass
class Target:
    """A server and one of its models.

    Attributes:
        connection: The way to it.
        model: The model's name.
        models: The names of all its models.
        markers: Text -> id of its special tokens; None where it does not tokenize for us.
        parser: Whether our tool parser admits chat requests.
        constrains: Whether a route of ours, in the engine core or in the workers, is on; None where that does not show.
    """

    connection: Connection
    model: str
    models: list[str]
    markers: dict[str, int] | None = None
    parser: bool = False
    constrains: bool | None = None
    _texts: dict[tuple[int, ...], str] = field(default_factory=dict, repr=False)

    @property
    def is_ours(self) -> bool:
        """Whether this package is switched on there."""
        return self.parser and self.constrains is True

    async def chat(self, body: dict[str, Any]) -> list[ChatAnswer]:
        """The choices of a chat completion; see :meth:`Connection.post` for what is raised."""
        path = "/v1/chat/completions"
        return read_whole(await self.connection.post(path, {"model": self.model, "return_token_ids": True} | body))

    async def chat_streamed(self, body: dict[str, Any]) -> ChatAnswer:
        """The same as a stream, of one choice."""
        body = {"model": self.model, "return_token_ids": True, "stream": True} | body
        return read_stream(await self.connection.stream("/v1/chat/completions", body))

    async def prompt_ids(self, body: dict[str, Any]) -> tuple[int, ...]:
        """The ids that the model reads for a chat request.

        The chat endpoint itself says so where it can: what ``/tokenize`` makes of a request may be another prompt.

        Raises:
            NotServed: Neither says.
        """
        try:
            (answer, *_) = await self.chat({"max_tokens": 1, "temperature": 0} | body)
            if answer.prompt_ids is not None:
                return answer.prompt_ids
        except Refused as refusal:
            if refusal.status not in {400, 422}:
                raise
        taken = {key: body[key] for key in ("messages", "tools", "chat_template_kwargs") if key in body}
        answered = await self.connection.post("/tokenize", {"model": self.model} | taken)
        return _ids(answered)

    async def prompt(self, body: dict[str, Any]) -> Prompt:
        """The prompt that the model reads for a chat request; see :meth:`prompt_ids`."""
        return await self.pieces(await self.prompt_ids(body))

    async def pieces(self, ids: tuple[int, ...]) -> Prompt:
        """Token ids, cut at the special ones; each run of ordinary ones is decoded by the server.

        Raises:
            NotServed: The server does not tokenize.
            Unusable: No prompt of ours is cut so often.
        """
        runs: list[tuple[int, ...]] = []
        for token_id in ids:
            if not runs or self.is_special(token_id) or self.is_special(runs[-1][-1]):
                runs.append((token_id,))
            else:
                runs[-1] += (token_id,)
        if len(runs) > _MOST_PIECES:
            raise Unusable(f"{len(ids)} token ids with special ones in {len(runs)} pieces")

        async def text(run: tuple[int, ...]) -> None:
            if run not in self._texts:
                answered = await self.connection.post("/detokenize", {"model": self.model, "tokens": list(run)})
                self._texts[run] = member(answered, "prompt", str, "/detokenize") or ""

        names = {token_id: name for name, token_id in (self.markers or {}).items()}
        await asyncio.gather(*(text(run) for run in {run for run in runs if not self.is_special(run[0])}))
        return [
            Piece(names.get(run[0], f"<|{run[0]}|>"), special=True)
            if self.is_special(run[0])
            else Piece(self._texts[run])
            for run in runs
        ]

    def is_special(self, token_id: int) -> bool:
        """Whether an id is one of the 256 behind the ordinary ones.

        Raises:
            NotServed: The server does not tokenize.
        """
        first = self.marker("[BOS]")
        return first <= token_id < first + _SPECIAL_IDS

    def marker(self, text: str) -> int:
        """The id of a special token.

        Raises:
            NotServed: The server does not tokenize.
        """
        if self.markers is None:
            raise NotServed("/tokenize does not give the ids of Kimi's special tokens")
        return self.markers[text]


async def open_target(connection: Connection, model: str | None) -> Target:
    """Look at what every check needs to know.

    Args:
        connection: To the server.
        model: The model to ask for; None for the server's first.

    Raises:
        Unusable: The server does not answer as an OpenAI-compatible one.
        NotServed: The same.
        Refused: It refuses to list its models (an API key is missing, say).
    """
    listed = member(await connection.get("/v1/models"), "data", list, "/v1/models") or []
    names = [member(entry, "id", str, "/v1/models") or "" for entry in listed]
    models = [name for name in names if name and not _LONE.search(name)]  # others cannot be asked for
    if not (model or models):
        raise Unusable("/v1/models lists no model")
    target = Target(connection, model or models[0], models)
    target.markers = await _markers(target)
    target.parser = await _refused_by_us(target, "/v1/chat/completions", _DUPLICATES)
    if await _refused_by_us(target, "/v1/completions", {"prompt": "a"} | _spec("{")):
        good = '{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}'
        target.constrains = not await _refused_by_us(target, "/v1/completions", {"prompt": "a"} | _spec(good))
    return target


_DUPLICATES = {"messages": [user("a")], "tools": [BOOK, *TOOLS], "tool_choice": "auto"}
_OUR_WORDS = ("is already that of tools[0]", "vllm_xargs.constrained_k2", "does not constrain them")


def _spec(text: str) -> dict[str, Any]:
    return {"vllm_xargs": {"constrained_k2": text}}


async def _refused_by_us(target: Target, path: str, body: dict[str, Any]) -> bool:
    """Whether a request is refused in this package's own words."""
    try:
        await target.connection.post(path, {"model": target.model, "max_tokens": 1} | body)
    except Refused as refusal:
        return any(words in refusal.message for words in _OUR_WORDS)
    except (NotServed, Unusable):
        return False
    return False


async def _markers(target: Target) -> dict[str, int] | None:
    """The ids of the special tokens, each of which must be one token."""

    async def one(text: str) -> tuple[int, ...]:
        body = {"model": target.model, "prompt": text, "add_special_tokens": False}
        return _ids(await target.connection.post("/tokenize", body))

    try:
        found = dict(zip(SPECIAL_TEXTS, await asyncio.gather(*map(one, SPECIAL_TEXTS)), strict=True))
    except (NotServed, Refused, Unusable):
        return None
    markers = {text: ids[0] for text, ids in found.items() if len(ids) == 1}
    return markers if found.keys() - markers.keys() <= _MAY_BE_ABSENT else None


def _ids(answered: Any) -> tuple[int, ...]:
    ids = member(answered, "tokens", list, "/tokenize")
    if ids is None or not all(type(token_id) is int for token_id in ids):
        raise Unusable("/tokenize gives no token ids")
    return tuple(ids)
