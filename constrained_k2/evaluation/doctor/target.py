"""The examined server: its model, the wire format that it speaks, and the prompts that it renders."""

import asyncio
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec

from constrained_k2.errors import FormatMismatch
from constrained_k2.evaluation.answer import ChatAnswer, NoAnswer, validated
from constrained_k2.evaluation.client import Client, NotServed, Refused
from constrained_k2.evaluation.doctor.prompt import Piece, Prompt
from constrained_k2.evaluation.doctor.requests import TOOLS, closed, named, tool, user
from constrained_k2.evaluation.server import ADOPTED_FLAGS, BACKEND_FLAGS, KIMI_K3_FLAGS
from constrained_k2.explain.view import printable
from constrained_k2.formats import FORMATS, format_of, kimi_k2, kimi_k3
from constrained_k2.formats.base import WireFormat

NEWER_TEMPLATE = (  # the commits are named by https://vllm.ai/blog/2025-10-28-kimi-k2-accuracy
    "Use a vLLM later than 0.11.0 and the checkpoint's current chat template (moonshotai/Kimi-K2-Instruct-0905 from "
    "commit 94a4053, Kimi-K2-Instruct from commit 0102674), without an older one in --chat-template"
)
OWN_ENCODER = (
    "Let the checkpoint's own encoder render prompts: vLLM 0.32 or later with --tokenizer-mode kimi_k3 and without "
    "--chat-template"
)
# Without those of media: some servers look for an image where their text occurs.
SPECIAL_TEXTS = tuple(sorted({text for each in FORMATS for text in each.special_texts} - {*kimi_k2.MEDIA_MARKERS}))
PUSH = 100  # the maximum of OpenAI's logit_bias
TAG_TOKENS = 200  # enough for a turn with a short call, made of tags
MARKER_TOKENS = 48  # enough for a call's markers and id, and the first tokens of its string
_FIXED = {"type": "string", "minLength": 20, "maxLength": 20}  # a string whose end a pushed marker cannot reach
_MAX_PIECES = 4096  # each may cost a request, and the ids come from the server
_NO_JSON = {"constrained_k2": "{"}
_SPEC = '{"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}'
_PARSER_WORDS = ("an engine's name beside tools",)  # of our refusals where a request's tools are read; tested
_OUR_WORDS = ("vllm_xargs.constrained_k2", "does not constrain them")  # of those where it is admitted; tested
_TOKENIZED = frozenset({"messages", "tools", "chat_template_kwargs"})  # fields of a chat that /tokenize takes


class _Version(msgspec.Struct):
    version: str = ""
    rust_frontend_version: str = ""


@dataclass
class Target:
    """An examined server; :func:`open_target` makes it. Its methods raise ``NoAnswer`` as :class:`Client` does."""

    client: Client
    model: str
    models: list[str]  # all its models
    markers: dict[str, int] = field(default_factory=dict)  # text -> id of the special tokens
    format: WireFormat | None = None  # with this server's ids; None if its tokens are not known
    lacking: str = "/tokenize does not return the ids of Kimi's special tokens"  # why there is no format
    parser: bool = False  # our tool parser admits chat requests
    constrains: bool | None = None  # a route of ours is on; None if that cannot be observed
    rust: str = ""  # the version of vLLM's Rust front end; empty for any other
    _texts: dict[tuple[int, ...], str] = field(default_factory=dict, repr=False)

    @property
    def is_ours(self) -> bool:
        """True if this package constrains chat requests, and admits them unless vLLM's Rust front end does."""
        return (self.parser or bool(self.rust)) and self.constrains is True

    @property
    def uses_tags(self) -> bool:
        """True if its prompts and calls are made of tags."""
        return self.format is not None and self.format.argument_encoding == "xtml"

    @property
    def brief(self) -> dict[str, Any]:
        """Fields of a chat whose answer begins without long reasoning, in a format that reasons by default."""
        return {"chat_template_kwargs": {"thinking": False}} if self.uses_tags else {}

    @property
    def _flags(self) -> str:
        """Those of this package; vLLM chooses the tokenizer mode by the checkpoint."""
        return " ".join((*BACKEND_FLAGS, *(KIMI_K3_FLAGS[-2:] if self.uses_tags else ())))

    @property
    def switching_on(self) -> str:
        """The flags that switch this package on; behind vLLM's Rust front end those that constrain there, if any do."""
        if self.rust and self.uses_tags:
            return self.python_front_end
        flags = shlex.join(ADOPTED_FLAGS) if self.rust else self._flags
        return f"Install constrained-k2 with vLLM and start it with {flags}"

    @property
    def python_front_end(self) -> str:
        """The flags that switch this package on, in vLLM's Python front end."""
        return (
            "Use vLLM's Python front end: unset VLLM_USE_RUST_FRONTEND, install constrained-k2 and start vLLM with "
            f"{self._flags}"
        )

    @property
    def reasoning_parser(self) -> str:
        """The flag that separates the reasoning from the content."""
        return f"Start vLLM with --reasoning-parser {'kimi_k3' if self.uses_tags else 'kimi_k2'}"

    @property
    def constraining(self) -> str:
        """The remedy where a constraint did not hold."""
        ours = "constrained_k2 is on but did not hold: read the server's log, and report it"
        return ours if self.is_ours else self.switching_on

    @property
    def parsing(self) -> str:
        """The remedy where an answer was not returned as the model wrote it."""
        return self.python_front_end if self.rust else self.constraining

    @property
    def repairing(self) -> str:
        """The remedy where a prompt was not repaired."""
        if self.rust:
            return self.python_front_end
        ours = "Update constrained-k2 to a version that repairs requests, or check that it is not switched off"
        return ours if self.is_ours else self.switching_on

    @property
    def rendering(self) -> str:
        """The remedy where a prompt is not what the model was trained on."""
        return OWN_ENCODER if self.uses_tags else NEWER_TEMPLATE

    @property
    def wire(self) -> WireFormat:
        """The wire format; raises ``NotServed`` if the server does not tokenize."""
        if self.format is None:
            raise NotServed(self.lacking)
        return self.format

    @property
    def special_texts(self) -> list[str]:
        """The special tokens of the format that the server knows, by their ids."""
        texts = self.wire.special_texts & self.markers.keys()
        return sorted(texts, key=self.markers.__getitem__)

    async def chat(self, body: dict[str, Any]) -> list[ChatAnswer]:
        """The choices of a chat completion, with token ids where the server returns them."""
        return await self.client.chat({"model": self.model, "return_token_ids": True} | body)

    async def chat_streamed(self, body: dict[str, Any]) -> ChatAnswer:
        """As :meth:`chat`, streamed; of one choice."""
        return await self.client.chat_streamed({"model": self.model, "return_token_ids": True, "stream": True} | body)

    async def pushed(self, body: dict[str, Any], push: Mapping[int, float], max_tokens: int) -> Prompt:
        """An answer while some tokens are pushed by a logit_bias, at temperature 0, split at its special tokens.

        Raises ``NotServed`` if the server does not return token ids.
        """
        bias = {str(token_id): strength for token_id, strength in push.items()}
        more = {"max_tokens": max_tokens, "temperature": 0.0, "logit_bias": bias}
        (answer, *_) = await self.chat(body | more)
        if answer.token_ids is None:
            raise NotServed("return_token_ids is not served, so special tokens cannot be seen")
        return await self.pieces(tuple(answer.token_ids))

    async def special_tokens_in_a_string(self) -> int | None:
        """The number of special tokens in a call's string while one is pushed.

        None if the answer has no arguments: the masks of this package lead to them in a few tokens.
        """
        # Strict, so that any server that constrains at all leads the model into the string.
        wire = self.wire
        query = _FIXED if self.uses_tags else {"type": "string"}
        search = tool("search", "Search the web.", closed(query=query), strict=True)
        body = self.brief | {"messages": [user("Search.")], "tools": [search], "tool_choice": named("search")}
        if self.uses_tags:
            push = {wire.call_end: PUSH, self.markers[kimi_k2.BOS]: PUSH / 2}  # the marker leads to the string
            pieces = await self.pushed(body, push, TAG_TOKENS)
            has_argument = any(piece.text.startswith(f"{kimi_k3.ARGUMENT} ") for piece in pieces if not piece.special)
            return pieces.count((kimi_k2.BOS, True)) if has_argument else None
        pieces = await self.pushed(body, {self.markers[kimi_k2.MIDDLE]: PUSH}, MARKER_TOKENS)
        return pieces.count((kimi_k2.MIDDLE, True)) if (kimi_k2.ARGUMENT_BEGIN, True) in pieces else None

    async def prompt_ids(self, body: dict[str, Any]) -> tuple[int, ...]:
        """The token ids of a chat request's prompt, from the chat endpoint; ``/tokenize`` may render another one.

        Raises ``NotServed`` if only the chat endpoint reads a field of the request, and it does not return the ids.
        """
        try:
            (answer, *_) = await self.chat({"max_tokens": 1, "temperature": 0} | body)
            if answer.prompt_ids is not None:
                return answer.prompt_ids
        except Refused as refusal:
            if refusal.status not in {400, 422}:
                raise
        if unread := ", ".join(sorted(body.keys() - _TOKENIZED)):
            raise NotServed(f"return_token_ids is not served, and /tokenize takes no {unread}")
        return await self._tokenize(body)

    async def prompt(self, body: dict[str, Any]) -> Prompt:
        """The prompt of a chat request, split at its special tokens."""
        return await self.pieces(await self.prompt_ids(body))

    async def pieces(self, ids: tuple[int, ...]) -> Prompt:
        """Token ids, split at the special ones; the server decodes each run of ordinary ones."""
        names = {token_id: name for name, token_id in self.markers.items()}
        runs: list[Piece | tuple[int, ...]] = []
        for is_special, group in groupby(ids, self.is_special):
            run = tuple(group)
            texts = (names.get(token_id, kimi_k2.reserved_text(token_id)) for token_id in run)
            runs += [Piece(text, special=True) for text in texts] if is_special else [run]
        if len(runs) > _MAX_PIECES:
            raise NoAnswer("invalid_answer", f"{len(ids)} token ids with special ones in {len(runs)} pieces")
        fresh = list({run for run in runs if not isinstance(run, Piece)} - self._texts.keys())
        decoded = await asyncio.gather(*(self.client.detokenize(self.model, run) for run in fresh))
        self._texts.update(zip(fresh, decoded, strict=True))
        return [run if isinstance(run, Piece) else Piece(self._texts[run]) for run in runs]

    @cached_property
    def _first(self) -> int:
        return self.markers[self.special_texts[0]]

    def is_special(self, token_id: int) -> bool:
        """True if an id is one of the 256 after the ordinary ones; raises as :attr:`wire` does."""
        return self._first <= token_id < self._first + kimi_k2.SPECIAL_COUNT

    async def version(self) -> _Version:
        """The versions of vLLM and of its front end in Rust; raises as :meth:`Client.request` does."""
        return validated(await self.client.request("/version"), _Version, "/version")

    async def probe(self) -> None:
        """Fill in the special tokens, the front end, and whether this package is on.

        The wording of its refusals identifies this package. Behind vLLM's Rust front end it refuses nothing in the HTTP
        server, so its masks identify it: they allow no special token in a string, and xgrammar's do.
        """
        try:
            bodies = [{"prompt": text, "add_special_tokens": False} for text in SPECIAL_TEXTS]
            found = dict(zip(SPECIAL_TEXTS, await asyncio.gather(*map(self._tokenize, bodies)), strict=True))
            self.markers = {text: ids[0] for text, ids in found.items() if len(ids) == 1}
            self.format = format_of(self.markers)
        except NoAnswer:
            self.markers = {}
        except FormatMismatch as error:
            self.lacking = f"by /tokenize {error.problem}"
        with suppress(NoAnswer):
            self.rust = printable((await self.version()).rust_frontend_version, 60)
        if self.rust:
            with suppress(NoAnswer):
                self.constrains = await self.special_tokens_in_a_string() == 0
            return
        chat = {"messages": [user("a")], "tools": list(TOOLS), "tool_choice": "auto", "vllm_xargs": _NO_JSON}
        self.parser = await self._refuses("/v1/chat/completions", chat, _PARSER_WORDS)
        # Several tokens: vLLM 0.32.0's CPU build dies of a prompt of one token on CPUs with AMX.
        if await self._refuses("/v1/completions", {"prompt": "a prompt of several tokens", "vllm_xargs": _NO_JSON}):
            good = {"prompt": "a prompt of several tokens", "vllm_xargs": {"constrained_k2": _SPEC}}
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
