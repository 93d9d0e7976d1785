"""The examined server: its model, its special tokens, and the prompts it renders."""

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from constrained_k2.evaluation.answer import ChatAnswer, NoAnswer, validated
from constrained_k2.evaluation.client import Client, NotServed, Refused, printable
from constrained_k2.evaluation.doctor.prompt import Piece, Prompt
from constrained_k2.evaluation.doctor.requests import SEARCH, TOOLS, named, user
from constrained_k2.evaluation.server import ADOPTED_FLAGS, BACKEND_FLAGS
from constrained_k2.formats import kimi_k2

# Kimi's special tokens without those of media: some servers look for an image where their text occurs.
SPECIAL_TEXTS = tuple(text for text in kimi_k2.SPECIAL_TOKENS.values() if text not in kimi_k2.MEDIA_MARKERS)
SWITCH_ON = f"Install constrained-k2 with vLLM and start it with {' '.join(BACKEND_FLAGS)}"
PYTHON_FRONT_END = (
    "Use vLLM's Python front end: unset VLLM_USE_RUST_FRONTEND, install constrained-k2 and start vLLM with "
    f"{' '.join(BACKEND_FLAGS)}"
)
ADOPT = f"Install constrained-k2 with vLLM and start it with {shlex.join(ADOPTED_FLAGS)}"
NEWER_TEMPLATE = (  # the commits are named by https://vllm.ai/blog/2025-10-28-kimi-k2-accuracy
    "Use a vLLM later than 0.11.0 and the checkpoint's current chat template (moonshotai/Kimi-K2-Instruct-0905 from "
    "commit 94a4053, Kimi-K2-Instruct from commit 0102674), without an older one in --chat-template"
)
PUSH = 100  # the maximum of OpenAI's logit_bias
_PUSHED_TOKENS = 48  # enough for a call's markers and id, and the first tokens of its string
_MAX_PIECES = 4096  # each may cost a request, and the ids come from the server
_OPTIONAL = {kimi_k2.THINK_BEGIN, kimi_k2.THINK_END, kimi_k2.HEADER_BEGIN, kimi_k2.HEADER_END}
_NO_JSON = {"constrained_k2": "{"}
_SPEC = '{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}'
_PARSER_WORDS = ("an engine's name beside tools",)  # of our refusals where a request's tools are read; tested
_OUR_WORDS = ("vllm_xargs.constrained_k2", "does not constrain them")  # of those where it is admitted; tested


class _FrontEnd(msgspec.Struct):
    rust_frontend_version: str = ""


@dataclass
class Target:
    """An examined server; :func:`open_target` makes it. Its methods raise ``NoAnswer`` as :class:`Client` does."""

    client: Client
    model: str
    models: list[str]  # all its models
    markers: dict[str, int] | None = None  # text -> id of the special tokens; None if the server does not tokenize
    parser: bool = False  # our tool parser admits chat requests
    constrains: bool | None = None  # a route of ours is on; None if that cannot be observed
    rust: str = ""  # the version of vLLM's Rust front end; empty for any other
    _texts: dict[tuple[int, ...], str] = field(default_factory=dict, repr=False)

    @property
    def is_ours(self) -> bool:
        """True if this package constrains chat requests, and admits them unless vLLM's Rust front end does."""
        return (self.parser or bool(self.rust)) and self.constrains is True

    @property
    def switching_on(self) -> str:
        """The flags that switch this package on."""
        return ADOPT if self.rust else SWITCH_ON

    @property
    def constraining(self) -> str:
        """The remedy where a constraint did not hold."""
        ours = "constrained_k2 is on but did not hold: read the server's log, and report it"
        return ours if self.is_ours else self.switching_on

    @property
    def parsing(self) -> str:
        """The remedy where an answer was not returned as the model wrote it."""
        return PYTHON_FRONT_END if self.rust else self.constraining

    @property
    def repairing(self) -> str:
        """The remedy where a prompt was not repaired."""
        if self.rust:
            return PYTHON_FRONT_END
        ours = "Update constrained-k2 to a version that repairs requests, or check that it is not switched off"
        return ours if self.is_ours else SWITCH_ON

    async def chat(self, body: dict[str, Any]) -> list[ChatAnswer]:
        """The choices of a chat completion, with token ids where the server returns them."""
        return await self.client.chat({"model": self.model, "return_token_ids": True} | body)

    async def chat_streamed(self, body: dict[str, Any]) -> ChatAnswer:
        """As :meth:`chat`, streamed; of one choice."""
        return await self.client.chat_streamed({"model": self.model, "return_token_ids": True, "stream": True} | body)

    async def pushed(self, body: dict[str, Any], push: str) -> tuple[int, ...]:
        """The token ids of an answer while one special token is pushed by a logit_bias.

        Raises ``NotServed`` if the server does not return token ids.
        """
        token_id = self.marker(push)
        more = {"max_tokens": _PUSHED_TOKENS, "temperature": 0.0, "logit_bias": {str(token_id): PUSH}}
        (answer, *_) = await self.chat(body | more)
        if answer.token_ids is None:
            raise NotServed("return_token_ids is not served, so special tokens cannot be seen")
        return tuple(answer.token_ids)

    async def special_tokens_in_a_string(self) -> int | None:
        """The number of special tokens in a call's string if one is pushed as by :meth:`pushed`.

        None if the answer has no arguments: the masks of this package lead to them in a few tokens.
        """
        # Strict, so that any server that constrains at all leads the model into the string.
        strict = SEARCH | {"function": SEARCH["function"] | {"strict": True}}
        body = {"messages": [user("Search.")], "tools": [strict], "tool_choice": named("search")}
        ids = await self.pushed(body, kimi_k2.MIDDLE)
        return ids.count(self.marker(kimi_k2.MIDDLE)) if self.marker(kimi_k2.ARGUMENT_BEGIN) in ids else None

    async def prompt_ids(self, body: dict[str, Any]) -> tuple[int, ...]:
        """The token ids of a chat request's prompt, from the chat endpoint; ``/tokenize`` may render another one."""
        try:
            (answer, *_) = await self.chat({"max_tokens": 1, "temperature": 0} | body)
            if answer.prompt_ids is not None:
                return answer.prompt_ids
        except Refused as refusal:
            if refusal.status not in {400, 422}:
                raise
        taken = {"messages", "tools", "chat_template_kwargs"}
        return await self._tokenize({name: part for name, part in body.items() if name in taken})

    async def prompt(self, body: dict[str, Any]) -> Prompt:
        """The prompt of a chat request, split at its special tokens."""
        return await self.pieces(await self.prompt_ids(body))

    async def pieces(self, ids: tuple[int, ...]) -> Prompt:
        """Token ids, split at the special ones; the server decodes each run of ordinary ones."""
        runs: list[tuple[int, ...]] = []
        for token_id in ids:
            if not runs or self.is_special(token_id) or self.is_special(runs[-1][-1]):
                runs.append((token_id,))
            else:
                runs[-1] += (token_id,)
        if len(runs) > _MAX_PIECES:
            raise NoAnswer("invalid_answer", f"{len(ids)} token ids with special ones in {len(runs)} pieces")
        names = {token_id: name for name, token_id in (self.markers or {}).items()}
        fresh = list({run for run in runs if not self.is_special(run[0])} - self._texts.keys())
        decoded = await asyncio.gather(*(self.client.detokenize(self.model, run) for run in fresh))
        self._texts.update(zip(fresh, decoded, strict=True))
        found = {run[0]: names.get(run[0], kimi_k2.reserved_text(run[0])) for run in runs if self.is_special(run[0])}
        return [Piece(found[run[0]], True) if run[0] in found else Piece(self._texts[run]) for run in runs]  # noqa: FBT003

    def is_special(self, token_id: int) -> bool:
        """True if an id is one of the 256 after the ordinary ones."""
        first = self.marker(kimi_k2.BOS)
        return first <= token_id < first + kimi_k2.SPECIAL_COUNT

    def marker(self, text: str) -> int:
        """The id of a special token; raises ``NotServed`` if the server does not tokenize."""
        if self.markers is None:
            raise NotServed("/tokenize does not return the ids of Kimi's special tokens")
        return self.markers[text]

    async def probe(self) -> None:
        """Fill in the special tokens, the front end, and whether this package is on.

        The wording of its refusals identifies this package. Behind vLLM's Rust front end it refuses nothing in the HTTP
        server, so its masks identify it: they allow no special token in a string, and xgrammar's do.
        """
        try:
            bodies = [{"prompt": text, "add_special_tokens": False} for text in SPECIAL_TEXTS]
            found = dict(zip(SPECIAL_TEXTS, await asyncio.gather(*map(self._tokenize, bodies)), strict=True))
            markers = {text: ids[0] for text, ids in found.items() if len(ids) == 1}
            self.markers = markers if found.keys() - markers.keys() <= _OPTIONAL else None
        except NoAnswer:
            self.markers = None
        with suppress(NoAnswer):
            said = validated(await self.client.request("/version"), _FrontEnd, "/version").rust_frontend_version
            self.rust = printable(said, 60)
        if self.rust:
            with suppress(NoAnswer):
                self.constrains = await self.special_tokens_in_a_string() == 0
            return
        chat = {"messages": [user("a")], "tools": list(TOOLS), "tool_choice": "auto", "vllm_xargs": _NO_JSON}
        self.parser = await self._refuses("/v1/chat/completions", chat, _PARSER_WORDS)
        if await self._refuses("/v1/completions", {"prompt": "a", "vllm_xargs": _NO_JSON}):
            good = {"prompt": "a", "vllm_xargs": {"constrained_k2": _SPEC}}
            self.constrains = not await self._refuses("/v1/completions", good)

    async def _refuses(self, path: str, body: dict[str, Any], said: tuple[str, ...] = _OUR_WORDS) -> bool:
        try:
            await self.client.request(path, {"model": self.model, "max_tokens": 1} | body)
        except NoAnswer as refusal:
            return isinstance(refusal, Refused) and any(words in refusal.message for words in said)
        return False

    async def _tokenize(self, body: dict[str, Any]) -> tuple[int, ...]:
        return tuple(await self.client.tokenize({"model": self.model} | body))


async def open_target(client: Client, model: str | None) -> Target:
    """Look up what every check needs, for a model or the server's first; raises as :meth:`Client.request` does."""
    models = list(await client.models())
    if not (model or models):
        raise NoAnswer("invalid_answer", "/v1/models lists no model")
    target = Target(client, model or models[0], models)
    await target.probe()
    return target
