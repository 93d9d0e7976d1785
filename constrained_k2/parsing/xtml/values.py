"""Converts the typed values of XTML arguments to JSON text, and streams the part that is final."""

import json
import re
from typing import Protocol

from constrained_k2.formats.kimi_k3 import VALUE_TYPES
from constrained_k2.parsing.arguments import refuse_constant, rewrite

STRING, OBJECT, ARRAY = (VALUE_TYPES[kind] for kind in (str, dict, list))
TYPES = frozenset(VALUE_TYPES.values())

_BLANKS = re.compile(r"[ \t\n\r]*")
_OUTSIDE_STRING = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'["\\]')
# Numbers are only recognized, since Python refuses to convert numbers with thousands of digits.
_DECODER = json.JSONDecoder(parse_int=lambda _: 0, parse_float=lambda _: 0.0, parse_constant=refuse_constant)

_ENCODER = json.JSONEncoder(ensure_ascii=False)


class ValueReader(Protocol):
    """The value of one argument while it is written."""

    def feed(self, text: str) -> str:
        """Add what the model writes, and return the JSON text that can be emitted now."""

    def finish(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the rest of the JSON text and the recoveries used; None if the text does not have its type."""

    @property
    def buffered(self) -> str:
        """The text that was written and not emitted."""


def type_of(text: str) -> str | None:
    """Return the type of a JSON text, as the attribute names it; None if the text is not JSON."""
    try:
        return VALUE_TYPES[type(_DECODER.decode(text))]
    except (ValueError, RecursionError):
        return None


def quoted(text: str) -> str:
    """Return a JSON string."""
    return _ENCODER.encode(text)


class StringValue:
    """A string: its raw text is escaped character by character."""

    buffered = ""

    def __init__(self) -> None:
        self._begin = '"'

    def feed(self, text: str) -> str:
        """Add what the model writes, and return the JSON text that can be emitted now."""
        begin, self._begin = self._begin, ""
        return begin + quoted(text)[1:-1]

    def finish(self) -> tuple[str, tuple[str, ...]]:
        """Return the rest of the JSON text; every text is a string."""
        return f'{self._begin}"', ()


class RawValue:
    """All arguments of a call as one JSON text, which is not split."""

    buffered = ""

    def feed(self, text: str) -> str:
        """Add what the model writes, and return it."""
        return text

    def finish(self) -> tuple[str, tuple[str, ...]]:
        """Return nothing more."""
        return "", ()


class JsonValue:
    """A value that is not a string. Objects and arrays are streamed; other values are emitted at their end.

    At most one object or array is streamed, so that no value can add keys to the arguments.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._opener = {OBJECT: "{", ARRAY: "["}.get(kind, "")
        self._parts: list[str] = []
        self._emits = bool(self._opener)  # False once the text cannot be of the type
        self._emitted = 0  # characters
        self._depth = 0
        self._is_begun = self._in_string = self._escaped = False

    def feed(self, text: str) -> str:
        """Add what the model writes, and return the JSON text that can be emitted now."""
        self._parts.append(text)
        if not self._emits:
            return ""
        end = self._scan(text)
        self._emits = end == len(text)
        self._emitted += end
        return text[:end]

    def finish(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the rest of the JSON text; None if the text does not have its type."""
        written = "".join(self._parts)
        if type_of(written) != self._kind:
            return None
        return ("" if self._opener else written), ()

    @property
    def buffered(self) -> str:
        """The text that was written and not emitted."""
        return "".join(self._parts)[self._emitted :]

    def _scan(self, text: str) -> int:
        """Return the index after the end of the object or array; the text's length if it does not end."""
        index = 0
        while index < len(text):
            if self._in_string:
                index = self._scan_string(text, index)
            elif self._depth:
                found = _OUTSIDE_STRING.search(text, index)
                if found is None:
                    break
                index = found.end()
                self._in_string = found[0] == '"'
                self._depth += (found[0] in "[{") - (found[0] in "]}")
            else:
                index = _end_of_blanks(text, index)
                if index < len(text) and (self._is_begun or text[index] != self._opener):
                    return index
                if index < len(text):
                    self._is_begun, self._depth, index = True, 1, index + 1
        return len(text)

    def _scan_string(self, text: str, index: int) -> int:
        if self._escaped:
            self._escaped = False
            return index + 1
        found = _IN_STRING.search(text, index)
        if found is None:
            return len(text)
        self._escaped = found[0] == "\\"
        self._in_string = self._escaped
        return found.end()


class TolerantValue:
    """A value that is not a string, at the tolerant level: emitted at its end; a text that is not JSON is a string."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._parts: list[str] = []

    def feed(self, text: str) -> str:
        """Add what the model writes; nothing is emitted yet."""
        self._parts.append(text)
        return ""

    def finish(self) -> tuple[str, tuple[str, ...]]:
        """Return the JSON text and the recoveries used."""
        written = self.buffered
        found = type_of(written)
        if found is not None:
            return written, (() if found == self._kind else ("value_type",))
        rewritten = rewrite(written)
        if rewritten is not None and type_of(rewritten[0]) == self._kind:
            return rewritten
        return quoted(written), ("value_type",)

    @property
    def buffered(self) -> str:
        """The text that was written."""
        return "".join(self._parts)


def _end_of_blanks(text: str, index: int) -> int:
    found = _BLANKS.match(text, index)
    return index if found is None else found.end()
