"""The tolerant level: calls as models write them that nothing constrains."""

import codecs
from dataclasses import fields
from enum import IntEnum

from constrained_k2.parsing.arguments import ArgumentsText
from constrained_k2.parsing.events import (
    ArgumentsDelta,
    ArgumentsRepaired,
    CallCut,
    CallFinished,
    CallStarted,
    ContentDelta,
    Event,
    HeaderCut,
    LeniencyUsed,
    ReasoningDelta,
    UndeclaredCall,
)
from constrained_k2.parsing.leniencies import BLANKS, IN_REASONING, SPELLED_MARKERS
from constrained_k2.parsing.opening import Opening
from constrained_k2.parsing.spelling import Marker, SpelledMarkers
from constrained_k2.vocabulary import Vocabulary


class _Place(IntEnum):
    PROSE = 0
    """In the answer's text, or in the reasoning."""
    SECTION = 1
    """Between calls: in a tool-calls section, or behind a call that stands in none."""
    HEADER = 2
    ARGUMENTS = 3


class TolerantReader:
    """The machine of :class:`constrained_k2.ToolCallParser` at its tolerant level.

    A call is one when its arguments begin: until then its markers and its id are held back, and if no arguments come,
    they are content. Section markers that are tokens are structure wherever a section may be; one spelled out is so
    only if a call follows it.

    Args:
        vocabulary: The model's vocabulary.
        events: Takes what is found; the caller may empty it at any time.
        in_reasoning: Whether the prompt ended in ``<think>``.
        declared: The names that may be called; None if they are not known.
        calls: Whether calls are looked for.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        events: list[Event],
        *,
        in_reasoning: bool,
        declared: frozenset[str] | None,
        calls: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._markers = vocabulary.format
        self._names = {getattr(self._markers, field.name): field.name for field in fields(self._markers)}
        self._events = events
        self._calls = calls
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spelled = SpelledMarkers()
        self._place = _Place.PROSE
        self._in_reasoning = in_reasoning
        self._think_end_due = in_reasoning
        self._marked = False  # whether a section's marker has come
        self._trusted = False  # whether that marker was a token, or a call has followed it
        self._position = -1
        self._called = False  # whether this section has a call
        self._talks = False  # whether text has come since this section's last marker: then blanks belong to it
        self._opening = Opening(declared)  # of the call to come: content, if none does
        self._used: set[str] = set()  # those recorded on the call at _position
        self._arguments = ArgumentsText()

    def read(self, token_id: int) -> None:
        """Take one token, which is in the vocabulary."""
        if self._vocabulary.is_ordinary(token_id):
            self._read_text(self._decoder.decode(self._vocabulary.token_bytes(token_id)))
            return
        text = self._vocabulary.special_text(token_id)
        if text is None:
            return  # a hole stands for nothing
        self._flush()
        if token_id in self._markers.stop_ids:
            if self._place is _Place.HEADER:
                self._reject()  # the model has ended what it began: it is no call that was cut off
            self._close()
            self._structure(text)
        else:
            self._marker(Marker(self._names.get(token_id, ""), text))

    def finish(self) -> None:
        """Take the end: what was held back comes out, a call still open is reported as cut off."""
        self._flush()
        self._close()

    def _read_text(self, text: str) -> None:
        if not self._calls:
            self._prose(text)
            return
        for part in self._spelled.split(text):
            if isinstance(part, Marker):
                self._marker(part)
            else:
                self._text(part)

    def _flush(self) -> None:
        """Write out an incomplete character, and what might have become a marker."""
        self._read_text(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        if held := self._spelled.flush():
            self._text(held)

    def _close(self) -> None:
        """The turn ends: leave every place."""
        if self._place is _Place.HEADER:
            if self._opening.spelled:
                self._reject()
            else:
                self._structure(self._opening.take_held())
                self._events.append(HeaderCut(self._opening.take_header()))
                self._place = _Place.SECTION
        elif self._place is _Place.ARGUMENTS:
            self._cut()
        if self._place is _Place.SECTION:
            self._leave_section()

    def _text(self, text: str) -> None:
        match self._place:
            case _Place.PROSE:
                self._prose(text)
            case _Place.SECTION if text.isspace() and not self._talks and self._opening.may_hold_blanks:
                self._opening.held += text
            case _Place.SECTION:
                self._not_a_call(text)
            case _Place.HEADER:
                self._opening.header += text
                if self._opening.is_none():
                    self._reject()
            case _Place.ARGUMENTS:
                self._arguments_delta(self._arguments.feed(text))

    def _marker(self, marker: Marker) -> None:
        match self._place:
            case _Place.PROSE:
                self._marker_in_prose(marker)
            case _Place.SECTION:
                self._talks = False
                self._marker_in_section(marker)
            case _Place.HEADER if marker.name == "argument_begin":
                self._start_call(marker)
            case _Place.HEADER:
                self._reject()
                self._marker(marker)
            case _Place.ARGUMENTS if marker.spelled and self._arguments.in_string:
                self._text(marker.text)
            case _Place.ARGUMENTS if marker.name == "call_end":
                self._finish_call(marker)
            case _Place.ARGUMENTS:
                self._cut()
                self._marker(marker)

    def _marker_in_prose(self, marker: Marker) -> None:
        if marker.name == "section_begin" and self._calls:
            self._open_section(marker)
        elif marker.name == "call_begin" and self._calls:
            self._marked = self._trusted = self._called = False
            self._open_header(marker)
        elif not self._marker_of_reasoning(marker):
            self._prose(marker.text)

    def _marker_in_section(self, marker: Marker) -> None:
        if marker.name == "call_begin":
            self._open_header(marker)
        elif marker.name == "section_begin":
            self._leave_section()
            self._open_section(marker)
        elif marker.name == "section_end" and (self._called or (self._trusted and not marker.spelled)):
            self._use_on_last_call(SPELLED_MARKERS if marker.spelled else "")
            self._leave_section()
            self._structure(marker.text)
        elif marker.name in {"think_begin", "think_end"} and (self._trusted or self._called):
            self._leave_section()
            self._marker(marker)
        else:
            self._not_a_call(marker.text)

    def _marker_of_reasoning(self, marker: Marker) -> bool:
        """Open or close the reasoning, if this marker does."""
        opens = marker.name == "think_begin" and not self._in_reasoning
        if not opens and not (marker.name == "think_end" and self._think_end_due):
            return False
        self._in_reasoning = self._think_end_due = opens
        self._structure(marker.text)
        return True

    def _open_section(self, marker: Marker) -> None:
        self._place = _Place.SECTION
        self._marked, self._trusted, self._called, self._talks = True, not marker.spelled, False, False
        self._opening.section(marker)
        if not marker.spelled:
            self._structure(marker.text)

    def _leave_section(self) -> None:
        """No call follows: the blanks held back were only that; a spelled-out section without calls was text."""
        self._place = _Place.PROSE
        held = self._opening.take_held()
        if not held:
            return
        if self._trusted or self._called:
            self._use_on_last_call(BLANKS if self._called else "")
            self._structure(held)
        else:
            self._prose(held)

    def _not_a_call(self, text: str) -> None:
        """In a section, or behind a call, stands something else."""
        self._prose(self._opening.take_held() + text)
        self._talks = True
        if not (self._marked and self._trusted):
            self._place = _Place.PROSE

    def _open_header(self, marker: Marker) -> None:
        self._opening.call(marker, in_section=self._marked)
        self._place = _Place.HEADER

    def _reject(self, marker_text: str = "") -> None:
        """The call begun is none: what was held back of it is text."""
        self._place = _Place.SECTION if self._called or self._trusted else _Place.PROSE
        self._not_a_call(f"{self._opening.take_header()}{marker_text}")

    def _start_call(self, marker: Marker) -> None:
        name_and_index = self._opening.read(marker)
        if name_and_index is None:
            self._reject(marker.text)
            return
        name, index = name_and_index
        due = self._opening.take_due()
        if self._in_reasoning:
            due[IN_REASONING] = None
            self._in_reasoning = False
        self._structure(f"{self._opening.take_held()}{self._opening.take_header()}{marker.text}")
        self._position += 1
        self._trusted, self._called, self._talks, self._used = self._marked, True, False, set()
        self._events.append(CallStarted(self._position, name, index))
        if not self._opening.is_declared(name):
            self._events.append(UndeclaredCall(self._position))
        for leniency in due:
            self._use_on_last_call(leniency)
        self._place = _Place.ARGUMENTS
        self._arguments = ArgumentsText()

    def _finish_call(self, marker: Marker) -> None:
        rest, leniencies = self._arguments.finish()
        self._arguments_delta(rest)
        if marker.spelled:
            self._use_on_last_call(SPELLED_MARKERS)
        for leniency in leniencies:
            self._use_on_last_call(leniency)
        if leniencies:
            self._events.append(ArgumentsRepaired(self._position, self._arguments.written))
        self._events.append(CallFinished(self._position))
        self._structure(marker.text)
        self._place = _Place.SECTION

    def _cut(self) -> None:
        self._arguments_delta(self._arguments.unshown)
        self._events.append(CallCut(self._position))
        self._place = _Place.SECTION

    def _use_on_last_call(self, leniency: str) -> None:
        if leniency and leniency not in self._used:
            self._used.add(leniency)
            self._events.append(LeniencyUsed(self._position, leniency))

    def _arguments_delta(self, text: str) -> None:
        if text:
            self._events.append(ArgumentsDelta(self._position, text))

    def _prose(self, text: str) -> None:
        if text:
            self._events.append(ReasoningDelta(text) if self._in_reasoning else ContentDelta(text))

    def _structure(self, text: str) -> None:
        """Markers, ids and blanks that no event holds. A test listens here: nothing else is left out."""
