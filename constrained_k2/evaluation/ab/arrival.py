"""A streamed answer as it arrives: bounded, timed, and judged as a stream."""

import json
import time
from typing import Any

from constrained_k2.evaluation.ab.records import MAX_GAPS
from constrained_k2.evaluation.chat_answer import ChatAnswer, Unusable, member, read_stream, read_whole

MAX_ERROR = 2000
"""Characters of an error that are kept."""

_PROMPT_TAIL = 160  # tokens


class NoAnswer(Exception):
    """What came is no answer.

    Args:
        failure: One of :data:`~constrained_k2.evaluation.ab.records.FAILURES`.
        error: The words for it.
        wait: Seconds after which the server asks to be asked again, if it says.
    """

    def __init__(self, failure: str, error: str, wait: float | None = None) -> None:
        super().__init__(failure, error)
        self.failure = failure
        self.error = error[:MAX_ERROR]
        self.wait = wait


class Arrival:
    """Takes the bytes of one answer.

    Args:
        size: How many bytes it may have.
        text: How many characters its text, reasoning and arguments may have.

    Attributes:
        start: When the request was sent, in seconds of :func:`time.perf_counter`.
        first: When the first token came; None before.
        gaps: Milliseconds between tokens.
        tokens: How many tokens the model wrote, as the server counts; None where it does not.
        prompt_tokens: How many it read; the same.
        prompt_tail: The last tokens that it read, where the server names them.
    """

    def __init__(self, size: int, text: int) -> None:
        self.start = time.perf_counter()
        self.first: float | None = None
        self.gaps: list[float] = []
        self.tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.prompt_tail: tuple[int, ...] = ()
        self._limit, self._text_limit = size, text
        self._last = 0.0
        self._size = 0
        self._rest = bytearray()  # a line may come in any number of pieces
        self._events: list[Any] = []
        self._done = False

    @property
    def has_begun(self) -> bool:
        """Whether a part of an answer has come."""
        return self._size > 0

    def feed(self, data: bytes) -> bool:
        """Take a piece of a stream of server-sent events; True when the stream has ended as it should.

        Raises:
            NoAnswer: It is too long, not JSON, or the server reports an error in it.
        """
        self._grow(data)
        if b"\n" not in data:
            self._rest += data
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
            if self._done:
                return True
        return False

    def feed_whole(self, data: bytes) -> None:
        """Take a piece of an answer that comes whole although a stream was asked for.

        Raises:
            NoAnswer: It is too long.
        """
        self._grow(data)
        self._rest += data

    def answer(self, *, whole: bool) -> ChatAnswer:
        """The answer, after its last piece.

        Args:
            whole: Whether it came whole.

        Raises:
            NoAnswer: It is none.
        """
        try:
            if whole:
                self._token()
                answer = read_whole(_decoded(self._rest))[0]
                self.tokens = answer.tokens
            elif not self._done:
                raise NoAnswer("broken_stream", "the stream ends without [DONE]")
            else:
                answer = read_stream(self._events)
        except Unusable as error:
            raise NoAnswer("invalid_answer", str(error)) from None
        if not answer.finish_reason:
            raise NoAnswer("invalid_answer", "the answer has no finish_reason")
        texts = (
            answer.finish_reason,
            answer.content,
            answer.reasoning,
            *(part for call in answer.calls for part in call),
        )
        length = sum(map(len, texts))
        if length > self._text_limit:
            raise NoAnswer("too_long", f"the answer holds {length} characters, more than {self._text_limit}")
        if self.tokens is None and answer.token_ids is not None:
            self.tokens = len(answer.token_ids)
        return answer

    def _grow(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise NoAnswer("too_long", f"the answer is longer than {self._limit} bytes")

    def _token(self) -> None:
        now = time.perf_counter()
        if self.first is None:
            self.first = now
        elif len(self.gaps) < MAX_GAPS:
            self.gaps.append(round((now - self._last) * 1e3, 2))
        self._last = now

    def _line(self, line: bytearray) -> None:
        if not line.startswith(b"data:"):
            return
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self._done = True
            return
        event = _decoded(data)
        try:
            if isinstance(event, dict) and event.get("error"):
                raise NoAnswer("stream_error", json.dumps(event["error"]))
            if _shows_something(event):
                self._token()
            if usage := member(event, "usage", dict, "an event"):
                self.tokens = member(usage, "completion_tokens", int, "usage")
                self.prompt_tokens = member(usage, "prompt_tokens", int, "usage")
            if ids := member(event, "prompt_token_ids", list, "an event"):
                self.prompt_tail = tuple(number for number in ids[-_PROMPT_TAIL:] if type(number) is int)
                del event["prompt_token_ids"]
        except Unusable as error:
            raise NoAnswer("invalid_answer", str(error)) from None
        self._events.append(event)


def _shows_something(event: Any) -> bool:
    """Whether an event brings tokens: named ones, or text, reasoning or a part of a call."""
    for choice in member(event, "choices", list, "an event") or ():
        delta = member(choice, "delta", dict, "choices[0]") or {}
        if choice.get("token_ids") or any(
            delta.get(name) for name in ("content", "tool_calls", "reasoning", "reasoning_content")
        ):
            return True
    return False


def _decoded(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        words = data[:80].decode(errors="replace")
        raise NoAnswer("invalid_answer", f"not JSON ({error}): {words!r}") from None
