"""Reads and validates chat completions, whole or streamed; defines the record of one in a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

MAX_ERROR = 2000  # characters kept of an error message
MAX_GAPS = 4096  # gaps between tokens that one record stores
SUCCESS = "success"  # ``status`` of a complete answer, as in K2 Vendor Verifier; otherwise it is ``failed``
FAILURES: Mapping[str, str] = {
    "connection": "no connection, or it was closed before the answer",
    "timeout": "no complete answer within the time limit",
    "rate_limited": "status 429 on the last attempt",
    "server_error": "status 500 to 599 on the last attempt",
    "refused": "status 400 to 499, or another status without an answer",
    "broken_stream": "the stream broke off",
    "stream_error": "the server reported an error in the stream",
    "invalid_answer": "not a chat completion: not JSON, a field of another type, or no finish_reason",
    "too_long": "larger than an answer may be",
}  # failure -> its meaning
T = TypeVar("T")


class NoAnswer(Exception):
    """The server sent no usable answer; ``failure`` is a key of FAILURES, ``wait`` the seconds of ``Retry-After``."""

    def __init__(self, failure: str, error: str, wait: float | None = None) -> None:
        super().__init__(error[:MAX_ERROR])
        self.failure = failure
        self.wait = wait


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None

    @property
    def parts(self) -> tuple[str, str, str]:
        function = self.function or _Function()
        return self.id or "", function.name or "", function.arguments or ""


class Message(msgspec.Struct):
    """A message, or the delta of one event."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # as Moonshot's server and older vLLMs call it
    tool_calls: list[_Call] | None = None


class _Added(msgspec.Struct):
    declined_call: str | None = None


class _Logprob(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    message: Message | None = None
    delta: Message | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_logprobs: list[dict[str, _Logprob] | None] | None = None  # of /v1/completions
    constrained_k2: _Added | None = None

    @property
    def has_declined(self) -> bool:
        return self.constrained_k2 is not None and self.constrained_k2.declined_call is not None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None


class Completion(msgspec.Struct):
    """The fields we read of a chat completion, or of one event of a stream; all others are ignored."""

    choices: list[_Choice] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    usage: _Usage | None = None
    error: Any = None

    @property
    def has_tokens(self) -> bool:
        """True if an event carries output: token ids, text, reasoning or a part of a call."""
        return any(
            choice.token_ids or (delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
            for choice in self.choices or ()
            for delta in [choice.delta or Message()]
        )


class ChatAnswer(NamedTuple):
    """One choice of a chat completion, whole or joined from a stream."""

    finish_reason: str = ""  # empty if the server sent none
    content: str = ""
    reasoning: str = ""  # if the server separates it from the content
    calls: tuple[tuple[str, str, str], ...] = ()  # (id, name, arguments)
    token_ids: tuple[int, ...] | None = None  # None if the server does not return them
    prompt_ids: tuple[int, ...] | None = None  # likewise
    tokens: int | None = None  # sampled for all choices, as the server counts; None if it does not
    prompt_tokens: int | None = None  # likewise
    declined: bool = False  # the server says that a call was declined


def validated(value: Any, kind: type[T], source: str) -> T:
    """Decoded JSON as a typed value; raises ``NoAnswer`` if a field has another type."""
    try:
        return msgspec.convert(value, kind)
    except ValueError as error:
        raise NoAnswer("invalid_answer", f"{source}: {error}") from None


def read_whole(body: Any) -> list[ChatAnswer]:
    """Read the choices of a completion that was not streamed; raises ``NoAnswer`` if it is malformed."""
    completion = validated(body, Completion, "the answer")
    if not completion.choices:
        raise NoAnswer("invalid_answer", "the answer has no choices")
    return [
        ChatAnswer(
            choice.finish_reason or "",
            message.content or "",
            message.reasoning or message.reasoning_content or "",
            tuple(call.parts for call in message.tool_calls or ()),
            choice.token_ids,
            completion.prompt_token_ids,
            usage.completion_tokens,
            usage.prompt_tokens,
            choice.has_declined,
        )
        for usage in [completion.usage or _Usage()]
        for choice in completion.choices
        for message in [choice.message or Message()]
    ]


class StreamReader:
    """Joins the events of a stream of one choice, as a client does."""

    def __init__(self) -> None:
        self._finish_reason = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._token_ids: list[int] | None = None
        self._prompt_ids: tuple[int, ...] | None = None
        self._usage = _Usage()
        self._declined = False

    def add(self, value: Any) -> Completion:
        """Take the next event, as decoded JSON, and return it; raises ``NoAnswer`` if it is malformed or an error."""
        event = validated(value, Completion, "an event")
        if event.error:
            raise NoAnswer("stream_error", json.dumps(event.error))
        self._usage = event.usage or self._usage
        self._prompt_ids = event.prompt_token_ids or self._prompt_ids
        for choice in event.choices or ():
            delta = choice.delta or Message()
            self._finish_reason = choice.finish_reason or self._finish_reason
            self._declined = self._declined or choice.has_declined
            self._content.append(delta.content or "")
            self._reasoning.append(delta.reasoning or delta.reasoning_content or "")
            if choice.token_ids is not None:
                self._token_ids = self._token_ids or []
                self._token_ids += choice.token_ids
            for call in delta.tool_calls or ():
                joined = self._calls.setdefault(call.index or 0, ["", "", ""])
                joined[:] = map("".join, zip(joined, call.parts, strict=True))
        return event

    def answer(self) -> ChatAnswer:
        """The events so far as one answer."""
        calls = tuple((call_id, name, arguments) for call_id, name, arguments in self._calls.values())
        ids = None if self._token_ids is None else tuple(self._token_ids)
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        counted = self._usage.completion_tokens, self._usage.prompt_tokens
        return ChatAnswer(
            self._finish_reason, content, reasoning, calls, ids, self._prompt_ids, *counted, self._declined
        )


@dataclass(frozen=True, slots=True)
class Record:
    """The stored outcome of one request: an answer, or why there is none."""

    key: str  # the sample's
    repetition: int  # from 0
    status: str  # success or failed
    failure: str = ""  # a key of FAILURES; empty on success
    error: str = ""  # the error message of the server or the client
    attempts: int = 1  # how often the request was sent
    finish_reason: str = ""
    content: str = ""
    reasoning: str = ""  # if the server separates it from the content
    calls: tuple[tuple[str, str, str], ...] = ()  # (id, name, arguments)
    raw: str = ""  # the sampled text with its markers, of answers with a problem, if the server detokenizes
    prompt_tail: str = ""  # the end of the prompt, likewise
    prompt_tokens: int | None = None  # as the server counts; None if it does not
    completion_tokens: int | None = None  # likewise
    started: float = 0.0  # seconds since 1970
    ttft_ms: float | None = None  # from sending the last attempt to its first token; None if none arrived
    duration_ms: float = 0.0  # from sending the last attempt to the end of its answer
    gaps_ms: tuple[float, ...] = field(default=(), repr=False)  # between tokens, at most MAX_GAPS
    declined: bool = False  # the server says that a call was declined
    max_tokens: int | None = None  # the limit in the request; None if unknown

    @property
    def is_cut(self) -> bool:
        """True if ``max_tokens`` cut the answer off.

        Another cause of "length": this package's server reports it if a finished call's arguments are not valid JSON.
        """
        if self.finish_reason != "length" or self.max_tokens is None or self.completion_tokens is None:
            return self.finish_reason == "length"
        return not self.calls or self.completion_tokens >= self.max_tokens

    @classmethod
    def of(cls, answer: ChatAnswer, key: str = "", repetition: int = 0, **fields: Any) -> Self:
        """The record of a complete answer; ``fields`` are further fields of the record."""
        names = ("finish_reason", "content", "reasoning", "calls", "prompt_tokens", "declined")
        said: dict[str, Any] = {name: getattr(answer, name) for name in names}
        counted = None if answer.token_ids is None else len(answer.token_ids)
        said["completion_tokens"] = counted if answer.tokens is None else answer.tokens
        return cls(key, repetition, SUCCESS, **said | fields)
