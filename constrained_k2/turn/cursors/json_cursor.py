"""Parses unfinished JSON incrementally: the open objects and arrays, their keys, and what comes next.

The text is valid so far, since a grammar checked it. It is fed piece by piece, each character once.
"""

import json
import re
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any

from constrained_k2.turn.cursors.schema_view import SchemaView

MAX_TOKEN = 4096  # stored characters of the current key, string or scalar; nothing is drafted for a longer one
_PLAIN = re.compile(r'[^"\\]+')  # string characters without quotes and escapes
_MAX_SCALAR = 256  # stored characters of each scalar member of an object


class JsonPart(IntEnum):
    """The part of the JSON text that comes next."""

    VALUE = 0  # a value
    FIRST_KEY = 1  # the first key of an object, or its end
    KEY = 2  # a key
    IN_KEY = 3  # the rest of a key
    COLON = 4  # a colon
    IN_STRING = 5  # the rest of a string
    IN_SCALAR = 6  # the rest of a number or literal, or what follows it
    AFTER = 7  # a comma, or the end of the container
    FIRST_ITEM = 8  # the first item of an array, or its end


@dataclass(slots=True)
class OpenContainer:
    """An open object or array."""

    view: SchemaView
    is_object: bool
    keys: list[str] = field(default_factory=list)  # an object's keys so far
    scalars: dict[str, str] = field(default_factory=dict)  # by key, its strings, numbers and literals so far, as JSON
    commas: int = 0
    start: int = 0  # offset of its bracket in what the cursor was fed


@dataclass(slots=True)
class JsonCursor:
    """The parser state in one JSON value, and the simplified schema of the current value (references resolved)."""

    schema: InitVar[Any]
    expect: JsonPart = JsonPart.VALUE
    frames: list[OpenContainer] = field(default_factory=list)  # the open containers, outermost first
    value: SchemaView = field(init=False)  # the schema of the value that comes next or is being written
    token: str = ""  # the characters of the key, string or scalar being written
    start: int = 0  # its offset, with the quote, in what was fed
    length: int = 0  # characters fed so far
    colon: str | None = None  # the blanks after the last colon; None before the first
    comma: str | None = None  # the blanks after the last comma; None before the first
    is_done: bool = False
    _escaped: bool = False
    _blanks: str | None = None

    def __post_init__(self, schema: Any) -> None:
        self.value = SchemaView.of(schema, schema)

    @property
    def depth(self) -> int:
        """The number of open objects and arrays."""
        return len(self.frames)

    @property
    def in_string(self) -> bool:
        """True in a string or a key, where blanks are characters."""
        return self.expect in {JsonPart.IN_STRING, JsonPart.IN_KEY}

    def copy(self) -> "JsonCursor":
        """An independent copy."""
        other = JsonCursor.__new__(JsonCursor)
        for name in JsonCursor.__slots__:
            setattr(other, name, getattr(self, name))
        other.frames = [
            OpenContainer(one.view, one.is_object, one.keys.copy(), one.scalars.copy(), one.commas, one.start)
            for one in self.frames
        ]
        return other

    def feed(self, text: str) -> None:
        """Advance over the next characters."""
        at, before = 0, self.length
        while at < len(text) and not self.is_done:
            run = _PLAIN.match(text, at) if self.in_string and not self._escaped else None
            if run:
                self.token, at = (self.token + run[0])[:MAX_TOKEN], run.end()
            else:
                self._step(text[at])
                at += 1
            self.length = before + at

    def next_blanks(self, default: str) -> str:
        """The blanks to draft after a colon or comma: as earlier in this text, else the default; empty elsewhere."""
        if self._blanks != "":
            return ""
        seen = (self.colon, self.comma) if self._is_after_colon() else (self.comma, self.colon)
        return next((blanks for blanks in seen if blanks is not None), default)

    def _is_after_colon(self) -> bool:
        return self.expect is JsonPart.VALUE and bool(self.frames) and self.frames[-1].is_object

    def _step(self, character: str) -> None:
        if self.expect in {JsonPart.IN_KEY, JsonPart.IN_STRING}:
            self._in_string(character)
        elif character in " \t\r\n":
            if self._blanks is not None and len(self._blanks) < MAX_TOKEN:
                self._blanks += character
            if self.expect is JsonPart.IN_SCALAR:
                self.end_value()
        elif self.expect is JsonPart.IN_SCALAR and character not in ",}]":
            self.token = (self.token + character)[:MAX_TOKEN]
        else:
            if self.expect is JsonPart.IN_SCALAR:
                self.end_value()
            self._structure(character)

    def _in_string(self, character: str) -> None:
        if character == '"' and not self._escaped:
            if self.expect is JsonPart.IN_KEY:
                self.frames[-1].keys.append(self.token)
                self.value = self.frames[-1].view.value_of(self.token)
                self.expect = JsonPart.COLON
            else:
                self.end_value()
            return
        self._escaped = character == "\\" and not self._escaped
        self.token = (self.token + character)[:MAX_TOKEN]

    def _structure(self, character: str) -> None:
        if character == ":":
            self.expect, self._blanks = JsonPart.VALUE, ""
        elif character == ",":
            frame, self._blanks = self.frames[-1], ""
            frame.commas += 1
            self.expect = JsonPart.KEY if frame.is_object else JsonPart.VALUE
            self.value = frame.view if frame.is_object else frame.view.item
        elif character in "}]":
            self.value = self.frames.pop().view
            self.end_value()
        else:
            self._begin(character)

    def _begin(self, character: str) -> None:
        if self._blanks is not None:  # the style of this text
            if self._is_after_colon():
                self.colon = self._blanks
            else:
                self.comma = self._blanks
            self._blanks = None
        self.token, self.start, self._escaped = "", self.length, False
        if character == '"':
            is_key = self.expect in {JsonPart.KEY, JsonPart.FIRST_KEY}
            self.expect = JsonPart.IN_KEY if is_key else JsonPart.IN_STRING
        elif character in "{[":
            self.frames.append(OpenContainer(self.value, character == "{", start=self.length))
            self.expect = JsonPart.FIRST_KEY if character == "{" else JsonPart.FIRST_ITEM
            self.value = self.value if character == "{" else self.value.item
        else:
            self.expect, self.token = JsonPart.IN_SCALAR, character

    def end_value(self) -> None:
        """End the value that is being written."""
        if self.token and self.frames and self.frames[-1].keys:
            text = f'"{self.token}"' if self.expect is JsonPart.IN_STRING else self.token
            self.frames[-1].scalars[self.frames[-1].keys[-1]] = text[:_MAX_SCALAR]
        self.token, self.expect, self._blanks = "", JsonPart.AFTER, None
        self.is_done = not self.frames


@lru_cache(maxsize=4096)
def spelled(key: str) -> str:
    """A key as JSON without its quotes, in the only spelling that the grammars accept."""
    return json.dumps(key, ensure_ascii=False)[1:-1]


def unspelled(begun: str) -> str | None:
    """The text of an unfinished JSON string, without its quote; None within an escape, or if it was not all stored."""
    if len(begun) >= MAX_TOKEN:
        return None
    try:
        text = json.loads(f'"{begun}"') if "\\" in begun else begun
    except ValueError:
        return None
    return str(text)
