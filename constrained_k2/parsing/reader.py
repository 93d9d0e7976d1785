"""The strict parser, which accepts exactly Kimi K2's format, and the base class of all parsers."""

import codecs
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum, auto

from constrained_k2.errors import InvalidRequest
from constrained_k2.parsing import events as ev
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_ID = 4096  # bytes


@dataclass(eq=False)
class Reader(ABC):
    """The state machine of one level of :class:`constrained_k2.ToolCallParser`."""

    vocabulary: Vocabulary
    events: list[ev.Event]  # grows; the caller may empty it at any time
    declared: frozenset[str] | None  # None if the tools are unknown
    in_reasoning: bool  # the text is reasoning: at first, if the prompt ended in <think>
    calls: bool  # if False, calls are dropped

    def __post_init__(self) -> None:
        self._markers = self.vocabulary.format
        self._position = -1  # the latest call's number in the turn
        self._called = ""  # the latest call's function
        self._used: set[str] = set()  # the recoveries recorded for the latest call
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @abstractmethod
    def read(self, token_id: int) -> None:
        """Read one token, which must be in the vocabulary."""

    @abstractmethod
    def finish(self, *, stopped: bool) -> None:
        """End the completion: emit buffered text, and report a call that is still open as cut off.

        ``stopped``: the model ended its turn, although its stop token is not among the tokens.
        """

    def _decode(self, token_id: int) -> str:
        return self._decoder.decode(self.vocabulary.token_bytes(token_id))

    def _decode_rest(self) -> str:
        """Return an incomplete UTF-8 character as U+FFFD, and reset the decoder."""
        return self._decoder.decode(b"", final=True)

    def _emit_call_started(self, name: str, index: int) -> None:
        self._position += 1
        self._called = name
        self._used.clear()
        self.events.append(ev.CallStarted(self._position, name, index))
        if self.declared is not None and name not in self.declared:
            self.events.append(ev.UndeclaredCall(self._position))

    def _emit_repeated(self) -> None:
        """Report the latest call as declined: the section's end cut it off."""
        markers = self._markers
        self.events.append(ev.CallDeclined(f"{markers.header_begin}{markers.escape_name(self._called)}"))

    def _emit_arguments(self, text: str) -> None:
        if text:
            self.events.append(ev.ArgumentsDelta(self._position, text))

    def _record(self, *recoveries: str) -> None:
        """Report recoveries of the latest call, each only once."""
        for recovery in recoveries:
            if recovery not in self._used:
                self._used.add(recovery)
                self.events.append(ev.RecoveryUsed(self._position, recovery))


class _State(IntEnum):
    TEXT = auto()
    REASONING = auto()
    SECTION = auto()  # in the tool-calls section, between calls
    HEADER = auto()
    ARGUMENTS = auto()
    MALFORMED = auto()  # in a call whose id is not functions.NAME:INDEX


_PROSE = {_State.TEXT: ev.ContentDelta, _State.REASONING: ev.ReasoningDelta}


class StrictReader(Reader):
    """The strict level of :class:`constrained_k2.ToolCallParser`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._state = _State.REASONING if self.in_reasoning else _State.TEXT
        self._header = bytearray()
        self._reason = ""  # the reason why text in a section is malformed
        self._steps = {
            _State.TEXT: self._in_prose,
            _State.REASONING: self._in_prose,
            _State.SECTION: self._in_section,
            _State.HEADER: self._in_header,
            _State.ARGUMENTS: self._in_arguments,
            _State.MALFORMED: self._in_malformed,
        }

    def read(self, token_id: int) -> None:
        """Read one token."""
        self._steps[self._state](token_id)

    def finish(self, *, stopped: bool) -> None:  # noqa: ARG002 - an open call is cut off either way
        """End the completion; a call that is still open is reported as cut off."""
        if self._state is _State.HEADER:
            self.events.append(ev.HeaderCut(self._header.decode(errors="replace")))
        self._go_to(_State.TEXT)

    def _in_prose(self, token_id: int) -> None:
        markers = self._markers
        in_text = self._state is _State.TEXT
        if token_id == markers.section_begin:
            self._go_to(_State.SECTION)
        elif token_id == (markers.think_begin if in_text else markers.think_end):
            self._go_to(_State.REASONING if in_text else _State.TEXT)
        elif token_id not in markers.stop_ids:
            self._emit(self._decode(token_id))

    def _in_section(self, token_id: int) -> None:
        markers = self._markers
        if token_id == markers.call_begin:
            self._go_to(_State.HEADER)
            self._header.clear()
        elif token_id == markers.section_end:
            self._go_to(_State.TEXT)
        elif token_id not in markers.stop_ids:
            self._reason = "text between calls"
            self._emit(self._decode(token_id))

    def _in_header(self, token_id: int) -> None:
        if token_id == self._markers.argument_begin:
            try:
                name, index = self._markers.parse_call_id(self._header.decode())
            except (InvalidRequest, UnicodeDecodeError):
                self._reject_header("the call id is not functions.NAME:INDEX")
                self._emit(self._decode(token_id))
            else:
                self._emit_call_started(name, index)
                self._go_to(_State.ARGUMENTS)
        elif token_id == self._markers.section_end:
            self.events.append(ev.CallDeclined(self._header.decode(errors="replace")))
            self._go_to(_State.TEXT)
        elif self.vocabulary.is_ordinary(token_id):
            self._header += self.vocabulary.token_bytes(token_id)
            if len(self._header) > _MAX_ID:
                self._reject_header(f"the call id is longer than {_MAX_ID} bytes")
        else:
            self._reject_header("a special token in the call id")
            self._in_malformed(token_id)

    def _in_arguments(self, token_id: int) -> None:
        if token_id == self._markers.call_end:
            self._emit(self._decode_rest())
            self.events.append(ev.CallFinished(self._position))
            self._state = _State.SECTION
        elif self.vocabulary.is_ordinary(token_id):
            self._emit_arguments(self._decode(token_id))
        else:
            self._go_to(_State.SECTION)
            if token_id == self._markers.section_end:
                self._emit_repeated()
            self._in_section(token_id)

    def _in_malformed(self, token_id: int) -> None:
        if token_id in {self._markers.call_begin, self._markers.section_end, *self._markers.stop_ids}:
            self._go_to(_State.SECTION)
            self._in_section(token_id)
        else:
            self._emit(self._decode(token_id))
            if token_id == self._markers.call_end:
                self._go_to(_State.SECTION)

    def _reject_header(self, reason: str) -> None:
        """Turn the header written so far into malformed text."""
        self._state, self._reason = _State.MALFORMED, reason
        # Decoded incrementally, since the header may end inside a character that later tokens complete.
        self._emit(f"{self.vocabulary.special_text(self._markers.call_begin)}{self._decoder.decode(self._header)}")

    def _go_to(self, state: _State) -> None:
        """Emit an incomplete character, report a call that is still open as cut off, and change the state."""
        self._emit(self._decode_rest())
        if self._state is _State.ARGUMENTS:
            self.events.append(ev.CallCut(self._position))
        self._state = state

    def _emit(self, text: str) -> None:
        if self._state is _State.ARGUMENTS:
            self._emit_arguments(text)
        elif text:
            prose = _PROSE.get(self._state)
            self.events.append(ev.MalformedDelta(text, self._reason) if prose is None else prose(text))
