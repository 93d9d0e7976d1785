"""Base class of the strict and tolerant XTML parsers: reads tags, and emits calls with JSON arguments."""

from abc import abstractmethod
from enum import IntEnum, auto

from constrained_k2.parsing import events as ev
from constrained_k2.parsing.reader import Reader
from constrained_k2.parsing.xtml.tags import Part, Tag, TagReader
from constrained_k2.parsing.xtml.values import RawValue, ValueReader, quoted


class Block(IntEnum):
    """The block of a turn that the next part belongs to."""

    START = auto()  # in the response, before any text
    REASONING = auto()
    THOUGHT = auto()  # after the reasoning
    RESPONSE = auto()
    RESPONDED = auto()  # after the response
    TOOLS = auto()  # between calls
    CALL = auto()  # between a call's arguments
    VALUE = auto()
    BROKEN = auto()  # in a call that breaks the format
    CLOSED = auto()  # after the calls
    ENDED = auto()  # after the end of the message


class XtmlReader(Reader):
    """The state machine of one level, strict or tolerant."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tags = TagReader(self.vocabulary)
        self._state = Block.REASONING if self.in_reasoning else Block.START
        self._keys = 0  # arguments of the current call
        self._value: ValueReader = RawValue()
        self._is_raw = False  # the current call's arguments are one JSON text

    def read(self, token_id: int) -> None:
        """Read one token."""
        is_stop = token_id in self._markers.stop_ids
        for part in self._tags.flush() if is_stop else self._tags.read(token_id):
            self._read_part(part)
        if is_stop:
            self._end(stopped=True)

    def finish(self, *, stopped: bool) -> None:
        """End the completion; a call that is still open is reported as cut off."""
        pending = self._tags.take_pending()
        for part in self._tags.flush():
            self._read_part(part)
        if pending is not None:
            self._end_in_tag(pending)
        self._end(stopped=stopped and pending is None)

    @abstractmethod
    def _read_part(self, part: Part) -> None:
        """Read a text, a tag or another special token."""

    @abstractmethod
    def _end_in_tag(self, tag: Tag) -> None:
        """Read a tag that the end of the completion cuts off, which has no separator."""

    @abstractmethod
    def _end(self, *, stopped: bool) -> None:
        """End the completion, or the turn if the model ended it (``stopped``)."""

    def _is_in_call(self) -> bool:
        return self._state in (Block.CALL, Block.VALUE)

    def _start_call(self, name: str, index: int) -> None:
        self._emit_call_started(name, index)
        self._keys, self._is_raw = 0, False
        self._state = Block.CALL

    def _start_argument(self, key: str, value: ValueReader) -> None:
        self._emit_arguments(f"{', ' if self._keys else '{'}{quoted(key)}: ")
        self._keys += 1
        self._value = value
        self._state = Block.VALUE

    def _start_raw(self) -> None:
        self._is_raw, self._value = True, RawValue()
        self._state = Block.VALUE

    def _finish_call(self) -> None:
        if not self._is_raw:
            self._emit_arguments("}" if self._keys else "{}")
        self.events.append(ev.CallFinished(self._position))
        self._state = Block.TOOLS

    def _cut_call(self) -> None:
        if self._state is Block.VALUE:
            self._emit_arguments(self._value.buffered)
        self.events.append(ev.CallCut(self._position))
        self._state = Block.BROKEN

    def _prose(self, text: str) -> None:
        if text:
            is_reasoning = self._state is Block.REASONING
            self.events.append(ev.ReasoningDelta(text) if is_reasoning else ev.ContentDelta(text))

    def _structure(self, text: str) -> None:
        """Drop tags. A test replaces this method to check that nothing else is dropped."""
