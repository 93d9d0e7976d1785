"""What stands in front of a call's arguments at the tolerant level: held back, for it is content if none follow."""

import re

from constrained_k2.errors import InvalidRequest
from constrained_k2.format import ToolCallFormat
from constrained_k2.parsing.leniencies import BARE_ID, BLANKS, NO_SECTION, SPELLED_MARKERS
from constrained_k2.parsing.spelling import Marker

_LONGEST_BLANKS = 4096  # characters held back between calls; more are content, as they come
_LONGEST_HEADER = 4096  # characters; behind a spelled-out marker, which prose may hold too, less is waited for
_LONGEST_SPELLED_HEADER = 300
_BARE_NAME = re.compile(r"[\w.-]+")


class Opening:
    """The markers, blanks and the id that may open a call.

    Args:
        declared: The names that may be called; None if they are not known.

    Attributes:
        held: Markers and blanks in front of the header.
        header: What was written between the call's marker and that of its arguments.
        spelled: Whether the call's marker is spelled out of ordinary tokens.
        due: The leniencies used so far, as an ordered set.
    """

    def __init__(self, declared: frozenset[str] | None) -> None:
        self._declared = declared
        self.held = ""
        self.header = ""
        self.spelled = False
        self.due: dict[str, None] = {}

    @property
    def may_hold_blanks(self) -> bool:
        """Whether more blanks can be held back."""
        return len(self.held) <= _LONGEST_BLANKS

    def section(self, marker: Marker) -> None:
        """Begin at a section's marker, which is held back only if it is spelled out."""
        self.due = {}
        if marker.spelled:
            self.held = marker.text
            self.due[SPELLED_MARKERS] = None

    def call(self, marker: Marker, *, in_section: bool) -> None:
        """Go on at a call's marker."""
        if not in_section:
            self.due[NO_SECTION] = None
        if self.held[-1:].isspace():
            self.due[BLANKS] = None
        if marker.spelled:
            self.due[SPELLED_MARKERS] = None
        self.held += marker.text
        self.header = ""
        self.spelled = marker.spelled

    def is_none(self) -> bool:
        """Whether it is certain that no id comes, so that the text need not be held back any longer."""
        if not self.spelled:
            return len(self.header) > _LONGEST_HEADER
        return len(self.header) > _LONGEST_SPELLED_HEADER or "\n" in self.header.strip()

    def read(self, marker: Marker) -> tuple[str, int] | None:
        """The name and the index of the call whose arguments begin at a marker; None if it is no call."""
        written = self.header.strip()
        name_and_index = self._read_id(written)
        spelled = marker.spelled or SPELLED_MARKERS in self.due
        if name_and_index is None or (spelled and not self.is_declared(name_and_index[0])):
            return None
        if marker.spelled:
            self.due[SPELLED_MARKERS] = None
        if written != self.header:
            self.due[BLANKS] = None
        if written != ToolCallFormat.call_id(*name_and_index):
            self.due[BARE_ID] = None
        return name_and_index

    def is_declared(self, name: str) -> bool:
        """Whether a tool has this name; True where the tools are not known."""
        return self._declared is None or name in self._declared

    def take_held(self) -> str:
        """What stands in front of the header; nothing is held back any more."""
        held, self.held = self.held, ""
        self.due = {}
        return held

    def take_header(self) -> str:
        """What was written of the header."""
        header, self.header = self.header, ""
        return header

    def take_due(self) -> dict[str, None]:
        """The leniencies, which the call to come then begins without."""
        due, self.due = self.due, {}
        return due

    def _read_id(self, text: str) -> tuple[str, int] | None:
        """The name and the index in ``functions.NAME:INDEX``, or in ``NAME:INDEX``; None if it is neither."""
        for bare, call_id in ((False, text), (True, f"functions.{text}")):
            try:
                name, index = ToolCallFormat.parse_call_id(call_id)
            except InvalidRequest:
                continue
            if not bare or _BARE_NAME.fullmatch(name) or name in (self._declared or ()):
                return name, index
        return None
