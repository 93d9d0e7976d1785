"""Finds XTML tags that a model spelled in ordinary tokens instead of special ones."""

import re

from constrained_k2.formats.kimi_k3 import ARGUMENT, CALL, CLOSE, JSON, MESSAGE, OPEN, RESPONSE, SEPARATOR, TOOLS
from constrained_k2.parsing.xtml.tags import Tag

_MAX_BODY = 300  # characters; prose may quote the beginning of a tag
_NAMES = f"{RESPONSE}|{TOOLS}|{CALL}|{ARGUMENT}|{JSON}|{MESSAGE}"
_BEGIN = f"{re.escape(OPEN)}|{re.escape(CLOSE)}"
_TAG = re.compile(rf"({_BEGIN})((?:{_NAMES})(?![^ <])[^<\n]{{0,{_MAX_BODY}}}){re.escape(SEPARATOR)}")
_UNFINISHED = re.compile(rf"(?:{_BEGIN})[^<\n]{{0,{_MAX_BODY}}}(.*)", re.DOTALL)
_LONGEST = max(len(OPEN), len(CLOSE)) + _MAX_BODY + len(SEPARATOR)


class SpelledTags:
    """Splits text at spelled-out tags. Buffers the end of the text while it may become a tag."""

    def __init__(self) -> None:
        self._buffer = ""

    def split(self, text: str) -> list[str | Tag]:
        """Return the non-empty parts that no later text can change."""
        text = self._buffer + text
        parts: list[str | Tag] = []
        start = 0
        for found in _TAG.finditer(text):
            if found.start() > start:
                parts.append(text[start : found.start()])
            parts.append(Tag(found[1] == CLOSE, found[2], found[0]))
            start = found.end()
        end = _begin_of_unfinished(text, max(start, len(text) - _LONGEST))
        self._buffer = text[end:]
        if end > start:
            parts.append(text[start:end])
        return parts

    def flush(self) -> str:
        """Return and clear the buffered text."""
        text, self._buffer = self._buffer, ""
        return text


def _begin_of_unfinished(text: str, start: int) -> int:
    """Return the index of an unfinished tag that later text may complete; the text's length if there is none."""
    at = text.find("<", start)
    while at >= 0:
        rest = text[at:]
        if OPEN.startswith(rest) or CLOSE.startswith(rest):
            return at
        found = _UNFINISHED.fullmatch(rest)
        if found is not None and SEPARATOR.startswith(found[1]):
            return at
        at = text.find("<", at + 1)
    return len(text)
