"""The path to the end of a JSON text: the open containers with the keys and indexes in them, and where each begins."""

import json
import re
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from constrained_k2.turn.drafts.json_tracker import Expect

Path = tuple[str | int, ...]
"""Keys and indexes, from the outermost value; deeper ones than :data:`MAX_PARTS` are left out."""

MAX_PARTS = 64

_BLANKS = frozenset(b" \t\r\n")
_ENDS_OF_SCALAR = frozenset(b",]}")
_END_OF_RUN = re.compile(rb'["\\]')


@dataclass(slots=True)
class Container:
    """An open object or array."""

    is_object: bool
    start: int  # offset of its bracket
    child: str | int = 0  # the key or index of the value that is being written, or of the latest one
    keys: list[str] = field(default_factory=list)  # an object's keys so far


@dataclass(slots=True)
class JsonPath:
    """The position in one JSON value, which is valid so far. Text is fed in any pieces."""

    text: bytearray = field(default_factory=bytearray)
    containers: list[Container] = field(default_factory=list)
    expect: Expect = Expect.VALUE
    is_done: bool = False
    _token: int = 0  # offset of the key or value that is being written
    _is_escaped: bool = False

    def copy(self) -> Self:
        """An independent copy."""
        other = copy(self)
        other.text = self.text.copy()
        other.containers = [
            Container(each.is_object, each.start, each.child, each.keys.copy()) for each in self.containers
        ]
        return other

    def feed(self, raw: bytes) -> None:
        """Advance over the next bytes."""
        at, end = len(self.text), len(self.text) + len(raw)
        self.text += raw
        while at < end and not self.is_done:
            if self.in_string:
                at = self._string(at)
            else:
                self._step(self.text[at], at)
                at += 1

    @property
    def in_string(self) -> bool:
        """True in a string or a key."""
        return self.expect in {Expect.IN_STRING, Expect.IN_KEY}

    @property
    def in_key(self) -> bool:
        """True where a key may begin, or is being written."""
        return self.expect in {Expect.FIRST_KEY, Expect.KEY, Expect.IN_KEY}

    def key_with(self, raw: bytes) -> tuple[str, list[str]]:
        """The key that is being written, if ``raw`` follows, up to its end; and the object's keys before it."""
        begun = bytes(self.text[self._token :]) if self.expect is Expect.IN_KEY else b""
        return _string_in(begun + raw), self.containers[-1].keys

    def ends_scalar(self, byte: int) -> bool:
        """True if a byte, or any marker, ends the number or literal that is being written."""
        return self.expect is Expect.IN_SCALAR and (not 0 <= byte < 256 or byte in _ENDS_OF_SCALAR or byte in _BLANKS)

    def path(self, byte: int) -> Path:
        """The path to the value that a byte would belong to: the one being written, or the innermost container.

        A byte that ends a number or literal belongs to that one.
        """
        is_value = self.expect in {Expect.VALUE, Expect.IN_STRING, Expect.IN_SCALAR}
        if self.expect is Expect.FIRST_ITEM:
            is_value = byte != ord("]") and byte not in _BLANKS
        count = len(self.containers) - (not is_value)
        return tuple(each.child for each in islice(self.containers, max(0, min(count, MAX_PARTS))))

    @property
    def depth(self) -> int:
        """The number of open containers."""
        return len(self.containers)

    def text_of(self, level: int) -> bytes:
        """The text so far of the value at the first ``level`` parts of the path."""
        if level < len(self.containers):
            return bytes(self.text[self.containers[level].start :])
        is_begun = self.expect in {Expect.IN_STRING, Expect.IN_SCALAR}
        return bytes(self.text[self._token :]) if is_begun else b""

    def _string(self, at: int) -> int:
        """Follow a string from an offset; returns the offset after its end, or after its last byte."""
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        found = _END_OF_RUN.search(self.text, at)
        if found is None:
            return len(self.text)
        if found[0] == b"\\":
            self._is_escaped = True
        elif self.expect is Expect.IN_KEY:
            innermost = self.containers[-1]
            innermost.child = _string_in(bytes(self.text[self._token : found.end()]))
            innermost.keys.append(innermost.child)
            self.expect = Expect.COLON
        else:
            self._end_value()
        return found.end()

    def _step(self, byte: int, at: int) -> None:
        if self.expect is Expect.IN_SCALAR:
            if not self.ends_scalar(byte):
                return
            self._end_value()
        if byte in _BLANKS or self.is_done:
            return
        if byte == ord(":"):
            self.expect = Expect.VALUE
        elif byte in b"}]":
            self.containers.pop()
            self._end_value()
        elif byte == ord(","):
            innermost = self.containers[-1]
            self.expect = Expect.KEY if innermost.is_object else Expect.VALUE
            if isinstance(innermost.child, int):
                innermost.child += 1
        elif byte in b"{[":
            self.containers.append(Container(byte == ord("{"), at))
            self.expect = Expect.FIRST_KEY if byte == ord("{") else Expect.FIRST_ITEM
        else:
            is_key = self.expect in {Expect.KEY, Expect.FIRST_KEY}
            self._token = at
            self.expect = Expect.IN_SCALAR if byte != ord('"') else Expect.IN_KEY if is_key else Expect.IN_STRING

    def _end_value(self) -> None:
        self.expect = Expect.AFTER
        self.is_done = not self.containers


def _string_in(raw: bytes) -> str:
    """The text of a JSON string, or of the beginning of one; without its escapes decoded if they are cut."""
    end = next((found.start() for found in re.finditer(rb'(?<!\\)(?:\\\\)*"', raw[1:])), None)
    inner = raw[1:] if end is None else raw[1:][: raw[1:].index(b'"', end)]
    try:
        return str(json.loads(b'"' + inner + b'"', strict=False))
    except ValueError:
        return inner.decode(errors="replace")
