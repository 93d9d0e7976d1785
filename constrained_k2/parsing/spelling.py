"""Markers in text: the five of tool calls, spelled out of ordinary tokens."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from constrained_k2.format import MARKER_TEXTS

_SPELLINGS: Mapping[str, str] = {
    MARKER_TEXTS[name]: name for name in ("section_begin", "section_end", "call_begin", "argument_begin", "call_end")
} | {
    "<|tool_call_section_begin|>": "section_begin",  # the slip that vLLM's and SGLang's parsers know too
    "<|tool_call_section_end|>": "section_end",
}
"""Text -> field of :class:`constrained_k2.ToolCallFormat`. ``<think>`` is not here: prose and code write it as text."""

_SPELLED = re.compile("|".join(map(re.escape, _SPELLINGS)))
_BEGINNINGS = frozenset(text[:length] for text in _SPELLINGS for length in range(1, len(text)))
_LONGEST = max(map(len, _BEGINNINGS))


@dataclass(frozen=True, slots=True)
class Marker:
    """A special token, or a marker's text.

    Attributes:
        name: Its field of :class:`constrained_k2.ToolCallFormat`; empty for a special token of another purpose.
        text: Its text.
        spelled: Whether it is text, made of ordinary tokens.
    """

    name: str
    text: str
    spelled: bool = False


class SpelledMarkers:
    """Splits text at spelled-out markers; holds back its end as long as that may become one."""

    def __init__(self) -> None:
        self._held = ""

    def split(self, text: str) -> list[str | Marker]:
        """The parts that are certain now, in order; texts are never empty."""
        text = self._held + text
        parts: list[str | Marker] = []
        start = 0
        for found in _SPELLED.finditer(text):
            if found.start() > start:
                parts.append(text[start : found.start()])
            parts.append(Marker(_SPELLINGS[found[0]], found[0], spelled=True))
            start = found.end()
        # No marker has a second '<', so only the text behind the last one can be a beginning.
        opening = text.rfind("<", max(start, len(text) - _LONGEST))
        if opening < 0 or text[opening:] not in _BEGINNINGS:
            opening = len(text)
        self._held = text[opening:]
        if opening > start:
            parts.append(text[start:opening])
        return parts

    def flush(self) -> str:
        """What was held back and became no marker."""
        held, self._held = self._held, ""
        return held
