"""The tolerant parser, which recovers Kimi K2's calls that deviate from the wire format."""

from dataclasses import dataclass, field
from enum import IntEnum, auto

from constrained_k2.formats.kimi_k2 import CALL_MARKERS
from constrained_k2.parsing import events as ev
from constrained_k2.parsing.arguments import ArgumentsText
from constrained_k2.parsing.call_prefix import MAX_BLANKS, CallPrefix, Marker, TextMarkers
from constrained_k2.parsing.reader import Reader
from constrained_k2.parsing.uncalled import UncalledFilter

_CALL_ENDS = frozenset({"call_begin", "section_begin", "section_end"})
"""Markers that no call contains: if complete arguments precede one, only the call's end marker is missing."""

_MAX_CUT_STRINGS = 16  # max per turn, since the tokens after a cut string are read a second time


class _State(IntEnum):
    PROSE = auto()  # in the answer's text, or in the reasoning
    SECTION = auto()  # between calls: in a tool-calls section, or after a call outside any section
    HEADER = auto()
    ARGUMENTS = auto()


@dataclass(slots=True)
class _OpenString:
    """The tokens of a string in the arguments, from the first special token inside the string on."""

    token_ids: list[int] = field(default_factory=list)
    rest: str = ""  # the text before that token that was not emitted yet
    text: list[str] = field(default_factory=list)  # pieces to emit if the call turns out complete


class TolerantReader(Reader):
    """The tolerant level of :class:`constrained_k2.ToolCallParser`.

    A call counts once its arguments begin: until then its markers and its id are buffered; without arguments they are
    content. A section marker that is a token is always structure; a spelled-out marker, only if a call follows it. Text
    between a section's markers, outside calls, is dropped.

    A special token in an open string of the arguments is text if the call turns out complete that way. Until this is
    known, the tokens from there are buffered. If the call is not complete, it is cut off at the special token, and the
    buffered tokens are read again.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._names = {getattr(self._markers, name): name for name in self._markers.marker_texts}
        self._text_markers = TextMarkers()
        self._state = _State.PROSE
        self._think_end_expected = self.in_reasoning
        self._in_section = False  # a section's marker was read
        self._trusted = False  # that marker was a token, or a call has followed it
        self._has_call = False  # this section has a call
        self._has_text = False  # text was read since the section's latest marker, so blanks are part of the text
        self._has_noise = False  # the text buffered between calls is not all blank
        self._string = _OpenString()  # the open string with a special token in it; empty if there is none
        self._cut_strings = 0
        self._prefix = CallPrefix(self.declared)  # prefix of the next call; becomes content if no call follows
        self._arguments = ArgumentsText()
        self._uncalled = None if self.calls else UncalledFilter(self._markers)
        self._call_markers = frozenset(getattr(self._markers, name) for name in CALL_MARKERS)

    def read(self, token_id: int) -> None:
        """Read one token."""
        if self._uncalled is not None and not (self._uncalled.keep((token_id,)) and token_id not in self._call_markers):
            self._structure(self.vocabulary.token_bytes(token_id).decode(errors="replace"))
            return
        if self._string.token_ids:
            self._read_in_string(token_id)
            return
        if self.vocabulary.is_ordinary(token_id):
            self._read_text(self._decode(token_id))
            return
        text = self.vocabulary.special_text(token_id)
        if text is None:
            return  # an id without a token
        self._flush()
        if token_id in self._markers.stop_ids:
            if self._state is _State.HEADER:
                self._reject()  # the model ended the turn itself, so the call was not cut off
            self._close(stopped=True)
            self._structure(text)
        elif self._state is _State.ARGUMENTS and self._arguments.in_string and self._cut_strings < _MAX_CUT_STRINGS:
            self._string = _OpenString([token_id], self._arguments.buffered, [self._arguments.feed(text)])
        else:
            self._marker(Marker(self._names.get(token_id, ""), text))

    def _read_in_string(self, token_id: int) -> None:
        """Read a token after a special token in an open string of the arguments."""
        string, arguments = self._string, self._arguments
        string.token_ids.append(token_id)
        if self.vocabulary.is_ordinary(token_id):
            string.text.append(arguments.feed(self._decode(token_id)))
            return
        string.text.append(arguments.feed(self._decode_rest()))
        text = self.vocabulary.special_text(token_id) or ""
        if arguments.in_string and token_id not in self._markers.stop_ids:
            string.text.append(arguments.feed(text))
        elif token_id == self._markers.call_end and arguments.is_recoverable:
            self._string = _OpenString()
            self._emit_arguments("".join(string.text))
            self._finish_call("")
            self._structure(text)
        else:
            self._cut_string()

    def _cut_string(self) -> None:
        """Cut the call off at the special token, and read the tokens after it again."""
        string, self._string = self._string, _OpenString()
        self._cut_strings += 1
        self._decoder.reset()
        self._emit_arguments(string.rest)
        self.events.append(ev.CallCut(self._position))
        self._state = _State.SECTION
        if string.token_ids[0] == self._markers.call_end:
            self._structure(self.vocabulary.special_text(string.token_ids.pop(0)) or "")
        for token_id in string.token_ids:
            self.read(token_id)

    def finish(self, *, stopped: bool) -> None:
        """End the completion."""
        while self._string.token_ids:
            self._cut_string()
        self._flush()
        self._close(stopped=stopped)

    def _read_text(self, text: str) -> None:
        if not self.calls:
            self._prose(text)
            return
        for part in self._text_markers.split(text):
            if isinstance(part, Marker):
                self._marker(part)
            else:
                self._text(part)

    def _flush(self) -> None:
        """Emit an incomplete character, and text that might have become a marker."""
        self._read_text(self._decode_rest())
        if text := self._text_markers.flush():
            self._text(text)

    def _close(self, *, stopped: bool) -> None:
        if self._state is _State.HEADER:
            if self._prefix.spelled:
                self._reject()
            else:
                header, self._prefix.header = self._prefix.header, ""
                self._structure(self._prefix.take())
                self.events.append(ev.HeaderCut(header))
                self._state = _State.SECTION
        elif self._state is _State.ARGUMENTS:
            self._end_call(whole=stopped)
        if self._state is _State.SECTION:
            self._leave_section()

    def _text(self, text: str) -> None:
        match self._state:
            case _State.PROSE:
                self._prose(text)
            case _State.SECTION if self._may_be_dropped(text) and len(self._prefix.before) <= MAX_BLANKS:
                self._prefix.before += text
                self._has_noise = self._has_noise or not text.isspace()
            case _State.SECTION:
                self._not_a_call(text)
            case _State.HEADER:
                self._prefix.header += text
                if self._prefix.is_rejected():
                    self._reject()
            case _State.ARGUMENTS:
                self._emit_arguments(self._arguments.feed(text))

    def _may_be_dropped(self, text: str) -> bool:
        """True if the next text can be dropped: between a section's markers, or if it is blank."""
        return not self._has_text and (text.isspace() or (self._in_section and self._trusted))

    def _marker(self, marker: Marker) -> None:
        match self._state:
            case _State.PROSE:
                self._marker_in_prose(marker)
            case _State.SECTION:
                self._has_text = False
                self._marker_in_section(marker)
            case _State.HEADER if marker.name == "argument_begin":
                self._start_call(marker)
            case _State.HEADER:
                self._reject()
                self._marker(marker)
            case _State.ARGUMENTS if marker.spelled and self._arguments.in_string:
                self._text(marker.text)
            case _State.ARGUMENTS if marker.name == "call_end":
                if self._arguments.is_recoverable:
                    self._finish_call("spelled_markers" if marker.spelled else "")
                else:
                    self._end_call(whole=False)
                self._structure(marker.text)
            case _State.ARGUMENTS:
                self._end_call(whole=marker.name in _CALL_ENDS)
                self._marker(marker)

    def _marker_in_prose(self, marker: Marker) -> None:
        if marker.name == "section_begin" and self.calls:
            self._open_section(marker)
        elif marker.name == "call_begin" and self.calls:
            self._in_section = self._trusted = self._has_call = False
            self._prefix.open_call(marker, in_section=False, has_noise=False)
            self._state = _State.HEADER
        elif (opens := marker.name == "think_begin" and not self.in_reasoning) or (
            marker.name == "think_end" and self._think_end_expected
        ):
            self.in_reasoning = self._think_end_expected = opens
            self._structure(marker.text)
        else:
            self._prose(marker.text)

    def _marker_in_section(self, marker: Marker) -> None:
        if marker.name == "call_begin":
            self._prefix.open_call(marker, in_section=self._in_section, has_noise=self._take_noise())
            self._state = _State.HEADER
        elif marker.name == "section_begin":
            self._leave_section()
            self._open_section(marker)
        elif marker.name == "section_end" and (self._has_call or (self._trusted and not marker.spelled)):
            if marker.spelled:
                self._record("spelled_markers")
            self._leave_section(is_closed=True)
            self._structure(marker.text)
        elif marker.name in {"think_begin", "think_end"} and (self._trusted or self._has_call):
            self._leave_section()
            self._marker(marker)
        else:
            self._not_a_call(marker.text)

    def _open_section(self, marker: Marker) -> None:
        self._state = _State.SECTION
        self._in_section, self._trusted, self._has_call, self._has_text = True, not marker.spelled, False, False
        self._prefix.open_section(marker)
        if not marker.spelled:
            self._structure(marker.text)

    def _take_noise(self) -> bool:
        taken, self._has_noise = self._has_noise, False
        return taken

    def _leave_section(self, *, is_closed: bool = False) -> None:
        """Leave a section after which no call follows. Buffered blanks are dropped as structure.

        ``is_closed``: the section's end follows, so buffered text is dropped too. A spelled-out section without calls
        is content.
        """
        self._state = _State.PROSE
        before, has_noise = self._prefix.take(), self._take_noise()
        if before and (self._trusted or self._has_call) and (is_closed or not has_noise):
            if self._has_call:
                self._record("text_in_section" if has_noise else "blanks")
            self._structure(before)
        else:
            self._prose(before)

    def _not_a_call(self, text: str) -> None:
        self._prose(self._prefix.take() + text)
        self._has_text, self._has_noise = True, False
        if not (self._in_section and self._trusted):
            self._state = _State.PROSE

    def _reject(self, marker_text: str = "") -> None:
        """Emit the buffered opening as text, since it does not open a call."""
        self._state = _State.SECTION if self._has_call or self._trusted else _State.PROSE
        self._not_a_call(marker_text)

    def _start_call(self, marker: Marker) -> None:
        name_and_index = self._prefix.read(marker)
        if name_and_index is None:
            self._reject(marker.text)
            return
        recoveries = self._prefix.recoveries
        if self.in_reasoning:
            recoveries["in_reasoning"] = None
            self.in_reasoning = False
        self._structure(self._prefix.take() + marker.text)
        self._trusted, self._has_call, self._has_text = self._in_section, True, False
        self._emit_call_started(*name_and_index)
        self._record(*recoveries)
        self._state = _State.ARGUMENTS
        self._arguments = ArgumentsText()

    def _finish_call(self, recovery: str) -> None:
        rest, recoveries = self._arguments.finish()
        self._emit_arguments(rest)
        self._record(*filter(None, (recovery, *recoveries)))
        if recoveries:
            self.events.append(ev.ArgumentsRecovered(self._position, self._arguments.written))
        self.events.append(ev.CallFinished(self._position))
        self._state = _State.SECTION

    def _end_call(self, *, whole: bool) -> None:
        """End a call without an end marker: complete if its arguments are, and the model went on or stopped."""
        if whole and self._arguments.is_object:
            self._finish_call("no_call_end")
            return
        self._emit_arguments(self._arguments.buffered)
        self.events.append(ev.CallCut(self._position))
        self._state = _State.SECTION

    def _prose(self, text: str) -> None:
        if text:
            self.events.append(ev.ReasoningDelta(text) if self.in_reasoning else ev.ContentDelta(text))

    def _structure(self, text: str) -> None:
        """Drop markers, ids and blanks. A test replaces this method to check that nothing else is dropped."""
