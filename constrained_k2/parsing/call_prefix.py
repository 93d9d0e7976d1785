"""Parses call headers tolerantly: call ids, and markers even if they are spelled in ordinary tokens."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k2 import CALL_MARKERS, KIMI_K2, MARKER_TEXTS, MISSPELLED_MARKERS

MAX_BLANKS = 4096  # characters buffered between calls; further ones are content
_MAX_ID = 4096  # max characters buffered after a call marker that is a special token
_MAX_SPELLED_ID = 300  # max characters buffered after a spelled-out call marker, which prose may quote
_BARE_NAME = re.compile(r"[\w.-]+")

_SPELLINGS: Mapping[str, str] = {MARKER_TEXTS[name]: name for name in CALL_MARKERS} | MISSPELLED_MARKERS
"""Text -> field of :class:`constrained_k2.ToolCallFormat`. Not ``<think>``: prose and code write it as text."""

_SPELLED = re.compile("|".join(map(re.escape, _SPELLINGS)))
_BEGINNINGS = frozenset(text[:length] for text in _SPELLINGS for length in range(1, len(text)))
_LONGEST = max(map(len, _BEGINNINGS))


@dataclass(frozen=True, slots=True)
class Marker:
    """A special token, or the text of a marker that was written as ordinary tokens (``spelled``)."""

    name: str  # field of :class:`constrained_k2.ToolCallFormat`; empty for other special tokens
    text: str
    spelled: bool = False


class TextMarkers:
    """Splits text at spelled-out markers. Buffers the end of the text while it may become a marker."""

    def __init__(self) -> None:
        self._buffer = ""

    def split(self, text: str) -> list[str | Marker]:
        """Return the non-empty parts that no later text can change."""
        text = self._buffer + text
        parts: list[str | Marker] = []
        start = 0
        for found in _SPELLED.finditer(text):
            if found.start() > start:
                parts.append(text[start : found.start()])
            parts.append(Marker(_SPELLINGS[found[0]], found[0], spelled=True))
            start = found.end()
        # A marker contains one '<', so only the text from the last '<' on can be the beginning of a marker.
        opening = text.rfind("<", max(start, len(text) - _LONGEST))
        if opening < 0 or text[opening:] not in _BEGINNINGS:
            opening = len(text)
        self._buffer = text[opening:]
        if opening > start:
            parts.append(text[start:opening])
        return parts

    def flush(self) -> str:
        """Return and clear the buffered text."""
        text, self._buffer = self._buffer, ""
        return text


@dataclass(slots=True)
class CallPrefix:
    """Buffers the markers, blanks and call id that open a call; ``declared`` is None if the tools are unknown."""

    declared: frozenset[str] | None
    before: str = ""  # buffered markers and blanks in front of the id
    header: str = ""  # the text between the call's marker and the arguments' marker
    spelled: bool = False  # the call's marker was written as ordinary tokens
    recoveries: dict[str, None] = field(default_factory=dict)  # recoveries used so far, as an ordered set

    def open_section(self, marker: Marker) -> None:
        """Begin with a section's marker; it is buffered only if it is spelled out."""
        self.recoveries = {}
        if marker.spelled:
            self.before = marker.text
            self.recoveries["spelled_markers"] = None

    def open_call(self, marker: Marker, *, in_section: bool, has_noise: bool) -> None:
        """Continue with a call's marker. ``has_noise``: the buffered text before it is not blank."""
        is_blank = self.before[-1:].isspace() and not has_noise
        self._note(
            no_section=not in_section, blanks=is_blank, text_in_section=has_noise, spelled_markers=marker.spelled
        )
        self.before += marker.text
        self.header = ""
        self.spelled = marker.spelled

    def is_rejected(self) -> bool:
        """True if the text cannot be an id any more."""
        limit = _MAX_SPELLED_ID if self.spelled else _MAX_ID
        return len(self.header) > limit or (self.spelled and "\n" in self.header.strip())

    def read(self, marker: Marker) -> tuple[str, int] | None:
        """Return the name and index of the call whose arguments begin at this marker; None if there is no call."""
        written = self.header.strip()
        name_and_index = self._read_id(written)
        spelled = marker.spelled or "spelled_markers" in self.recoveries
        declared = name_and_index and (self.declared is None or name_and_index[0] in self.declared)
        if name_and_index is None or (spelled and not declared):
            return None
        is_bare = written != KIMI_K2.call_id(*name_and_index)
        self._note(spelled_markers=marker.spelled, blanks=written != self.header, bare_id=is_bare)
        return name_and_index

    def take(self) -> str:
        """Return and clear all that is buffered."""
        taken = self.before + self.header
        self.before = self.header = ""
        self.recoveries = {}
        return taken

    def _note(self, **recoveries: bool) -> None:
        self.recoveries.update(dict.fromkeys(name for name, is_used in recoveries.items() if is_used))

    def _read_id(self, text: str) -> tuple[str, int] | None:
        """Parse ``functions.NAME:INDEX`` or ``NAME:INDEX``."""
        for bare, call_id in ((False, text), (True, f"functions.{text}")):
            try:
                name, index = KIMI_K2.parse_call_id(call_id)
            except InvalidRequest:
                continue
            if not bare or _BARE_NAME.fullmatch(name) or name in (self.declared or ()):
                return name, index
        return None
