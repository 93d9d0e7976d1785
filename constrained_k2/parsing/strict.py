"""The strict level: exactly the format, as constrained models write it."""

import codecs
from collections.abc import Callable
from enum import IntEnum

from constrained_k2.errors import InvalidRequest
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    CallCut,
    CallFinished,
    CallStarted,
    ContentDelta,
    Event,
    HeaderCut,
    MalformedDelta,
    ReasoningDelta,
    UndeclaredCall,
)
from constrained_k2.vocabulary import Vocabulary

_LONGEST_HEADER = 4096  # bytes


class _Place(IntEnum):
    """Which part of the turn the next token belongs to."""

    TEXT = 0
    REASONING = 1
    SECTION = 2
    """In the tool-calls section, between calls."""
    HEADER = 3
    ARGUMENTS = 4
    JUNK = 5
    """In a call whose header is not ``functions.NAME:INDEX``."""


class StrictReader:
    """The machine of :class:`constrained_k2.ToolCallParser` at its strict level.

    Args:
        vocabulary: The model's vocabulary.
        events: Takes what is found; the caller may empty it at any time.
        in_reasoning: Whether the prompt ended in ``<think>``.
        declared: The names that may be called; None if they are not known.
    """

    def __init__(
        self, vocabulary: Vocabulary, events: list[Event], *, in_reasoning: bool, declared: frozenset[str] | None
    ) -> None:
        self._vocabulary = vocabulary
        self._markers = vocabulary.format
        self._declared = declared
        self._place = _Place.REASONING if in_reasoning else _Place.TEXT
        self._position = -1
        self._header = bytearray()
        self._reason = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._events = events
        self._steps: dict[_Place, Callable[[int], None]] = {
            _Place.TEXT: self._in_prose,
            _Place.REASONING: self._in_prose,
            _Place.SECTION: self._in_section,
            _Place.HEADER: self._in_header,
            _Place.ARGUMENTS: self._in_arguments,
            _Place.JUNK: self._in_junk,
        }

    def read(self, token_id: int) -> None:
        """Take one token, which is in the vocabulary."""
        self._steps[self._place](token_id)

    def finish(self) -> None:
        """Take the end; a call still open is reported as cut off."""
        if self._place is _Place.HEADER:
            self._events.append(HeaderCut(self._header.decode(errors="replace")))
        self._leave(_Place.TEXT)

    def _in_prose(self, token_id: int) -> None:
        """In the answer's text, or in the reasoning."""
        markers = self._markers
        in_text = self._place is _Place.TEXT
        if token_id == markers.section_begin:
            self._leave(_Place.SECTION)
        elif token_id == (markers.think_begin if in_text else markers.think_end):
            self._leave(_Place.REASONING if in_text else _Place.TEXT)
        elif token_id not in markers.stop_ids:
            self._text(token_id)

    def _in_section(self, token_id: int) -> None:
        markers = self._markers
        if token_id == markers.call_begin:
            self._leave(_Place.HEADER)
            self._header = bytearray()
        elif token_id == markers.section_end:
            self._leave(_Place.TEXT)
        elif token_id not in markers.stop_ids:
            self._reason = "stands between calls"
            self._text(token_id)

    def _in_header(self, token_id: int) -> None:
        if token_id == self._markers.argument_begin:
            try:
                name, index = self._markers.parse_call_id(self._header.decode())
            except (InvalidRequest, UnicodeDecodeError):
                self._reject_header("its id is not functions.NAME:INDEX")
                self._text(token_id)
                return
            self._position += 1
            self._events.append(CallStarted(self._position, name, index))
            if self._declared is not None and name not in self._declared:
                self._events.append(UndeclaredCall(self._position))
            self._leave(_Place.ARGUMENTS)
        elif self._vocabulary.is_ordinary(token_id):
            self._header += self._vocabulary.token_bytes(token_id)
            if len(self._header) > _LONGEST_HEADER:
                self._reject_header("its id is longer than any")
        else:
            self._reject_header("its header holds a special token")
            self._in_junk(token_id)

    def _in_arguments(self, token_id: int) -> None:
        if token_id == self._markers.call_end:
            self._flush()
            self._events.append(CallFinished(self._position))
            self._place = _Place.SECTION
        elif self._vocabulary.is_ordinary(token_id):
            self._text(token_id)
        else:
            self._leave(_Place.SECTION)
            self._in_section(token_id)

    def _in_junk(self, token_id: int) -> None:
        if token_id == self._markers.call_end:
            self._text(token_id)
            self._leave(_Place.SECTION)
        elif token_id in {self._markers.call_begin, self._markers.section_end, *self._markers.stop_ids}:
            self._leave(_Place.SECTION)
            self._in_section(token_id)
        else:
            self._text(token_id)

    def _reject_header(self, reason: str) -> None:
        """The call begun is none: what stands of it so far becomes malformed text."""
        self._place = _Place.JUNK
        self._reason = reason
        self._emit(f"{self._vocabulary.special_text(self._markers.call_begin)}{self._header.decode(errors='replace')}")

    def _leave(self, place: _Place) -> None:
        """Close the current place and go to another."""
        self._flush()
        if self._place is _Place.ARGUMENTS:
            self._events.append(CallCut(self._position))
        self._place = place

    def _flush(self) -> None:
        """Write out a character that was left incomplete."""
        self._emit(self._decoder.decode(b"", final=True))
        self._decoder.reset()

    def _text(self, token_id: int) -> None:
        self._emit(self._decoder.decode(self._vocabulary.token_bytes(token_id)))

    def _emit(self, text: str) -> None:
        if not text:
            return
        if self._place is _Place.TEXT:
            self._events.append(ContentDelta(text))
        elif self._place is _Place.REASONING:
            self._events.append(ReasoningDelta(text))
        elif self._place is _Place.ARGUMENTS:
            self._events.append(ArgumentsDelta(self._position, text))
        else:
            self._events.append(MalformedDelta(text, self._reason))
