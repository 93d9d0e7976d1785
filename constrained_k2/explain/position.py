"""Parses arguments or an answer byte by byte: the next byte's path, and each value's text so far.

{"a": [1, "x     path ("a", 1), in a string whose text is "x; its array's text is [1, "x
"""

import json
from copy import copy
from itertools import islice
from typing import Self

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k3 import unescape
from constrained_k2.turn.cursors.json_cursor import JsonCursor, JsonPart, OpenContainer
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor, XtmlPart

Path = tuple[str | int, ...]
"""Keys and indexes, from the outermost value; deeper ones than :data:`MAX_PARTS` are left out."""

MAX_PARTS = 64

_BLANKS = frozenset(b" \t\r\n")
_ENDS_OF_SCALAR = frozenset(b",]}")
_BEGINS_VALUE = b'"{[-0123456789tfn'
_LONGEST_ESCAPE = 6
_DECODER = json.JSONDecoder(strict=False)
_KEYS = frozenset({JsonPart.FIRST_KEY, JsonPart.KEY, JsonPart.IN_KEY})
_FOLLOWING = {
    JsonPart.VALUE: _BEGINS_VALUE,
    JsonPart.FIRST_ITEM: _BEGINS_VALUE + b"]",
    JsonPart.FIRST_KEY: b'"}',
    JsonPart.KEY: b'"',
    JsonPart.COLON: b":",
}


class PathCursor:
    """The position at the end of a text that is valid so far. The text may be fed in any pieces.

    It feeds the cursors of drafts one character for each byte, so that their offsets count bytes. ``markers`` is the
    format of arguments in XTML blocks, None for JSON; ``json_text`` has the parts of the text that are JSON.
    """

    def __init__(self, markers: WireFormat | None = None) -> None:
        self.is_xml = markers is not None
        self.cursor = JsonCursor({}) if markers is None else XtmlCursor({}, markers)
        self.json_text = bytearray()
        self._outer = 0 if markers is None else 1  # XTML blocks are the members of an object without brackets

    def copy(self) -> Self:
        """An independent copy."""
        other = copy(self)
        other.cursor, other.json_text = self.cursor.copy(), self.json_text.copy()
        return other

    def feed(self, raw: bytes) -> None:
        """Advance over the next bytes."""
        if self._is_json:
            self.json_text += raw
        self.cursor.feed(raw.decode("latin-1"))

    def feed_marker(self, marker: int) -> None:
        """Advance over a marker of blocks, by its id."""
        assert isinstance(self.cursor, XtmlCursor)
        self.cursor.feed(marker)

    @property
    def _walk(self) -> JsonCursor:
        return self.cursor if isinstance(self.cursor, JsonCursor) else self.cursor.json

    @property
    def _part(self) -> XtmlPart:
        return XtmlPart.VALUE if isinstance(self.cursor, JsonCursor) else self.cursor.part

    @property
    def _is_json(self) -> bool:
        """True in JSON, rather than in tags and raw text."""
        cursor = self.cursor
        return isinstance(cursor, JsonCursor) or (cursor.part is XtmlPart.VALUE and cursor.kind != "string")

    @property
    def is_done(self) -> bool:
        """True after the JSON value, or between XTML blocks."""
        return self._part is XtmlPart.BETWEEN if self.is_xml else self._walk.is_done

    @property
    def depth(self) -> int:
        """The number of open objects and arrays."""
        return len(self._walk.frames) - self._outer

    @property
    def in_string(self) -> bool:
        """True in a string, a key of JSON, or raw text."""
        return self._part is XtmlPart.VALUE and self._walk.in_string

    @property
    def in_key(self) -> bool:
        """True if a key may begin, or is being written."""
        if isinstance(self.cursor, XtmlCursor) and self._part is XtmlPart.TAG:
            return self.cursor.tag.count('"') == 1
        return self._is_json and self._walk.expect in _KEYS

    def key_with(self, raw: bytes) -> tuple[str, list[str]]:
        """The current key as it ends if ``raw`` follows, and the object's earlier keys."""
        keys = [*map(_key, self._walk.frames[-1].keys)]
        if isinstance(self.cursor, XtmlCursor) and self._part is XtmlPart.TAG:
            begun = self.cursor.tag.partition('"')[2].encode("latin-1") + raw
            return unescape(begun.partition(b'"')[0].decode(errors="replace")), keys
        begun = bytes(self.json_text[self._walk.start :]) if self._walk.expect is JsonPart.IN_KEY else b""
        return _string_in(begun + raw), keys

    def may_follow(self, byte: int) -> bool | None:
        """True if a byte may follow in some JSON text, False if in none, None if only an engine can tell."""
        expect = self._walk.expect
        if not self._is_json:
            return None
        if self._walk.in_string:
            last = self.json_text[-_LONGEST_ESCAPE:]
            is_plain = byte < 0x7F and last[-1] < 0x80 and b"\\" not in last
            return byte >= 0x20 if is_plain else None
        if expect is JsonPart.IN_SCALAR or byte in _BLANKS:
            return None
        if expect is JsonPart.AFTER:
            closing = b",}" if self.depth and self._walk.frames[-1].is_object else b",]"
            return byte in closing if self.depth else None
        return byte in _FOLLOWING[expect]

    def ends_scalar(self, symbol: int) -> bool:
        """True if a byte, or any marker, ends the number or literal that is being written."""
        is_end = not 0 <= symbol < 256 or symbol in _ENDS_OF_SCALAR or symbol in _BLANKS
        return self._walk.expect is JsonPart.IN_SCALAR and is_end

    def path(self, symbol: int) -> Path:
        """The path to the value that a byte or marker belongs to: the one being written, or the innermost container.

        A byte that ends a number or literal belongs to it, and the attributes after a block's key to the block's value.
        """
        if isinstance(self.cursor, XtmlCursor) and self._part in {XtmlPart.BETWEEN, XtmlPart.TAG}:
            tag = self.cursor.tag if self._part is XtmlPart.TAG else ""
            return (
                (unescape(tag.split('"')[1].encode("latin-1").decode(errors="replace")),) if tag.count('"') > 1 else ()
            )
        expect, frames = self._walk.expect, self._walk.frames
        is_value = expect in {JsonPart.VALUE, JsonPart.IN_STRING, JsonPart.IN_SCALAR}
        if expect is JsonPart.FIRST_ITEM:
            is_value = symbol != ord("]") and symbol not in _BLANKS
        count = max(len(frames) - (not is_value), self._outer)
        return tuple(map(_child, islice(frames, min(count, MAX_PARTS))))

    def text_of(self, level: int) -> bytes | None:
        """The text, so far, of the value at the path's first ``level`` parts; None if it is not JSON."""
        if not self._is_json or level < self._outer:
            return None
        walk = self._walk
        if level < len(walk.frames):
            return bytes(self.json_text[walk.frames[level].start :])
        return bytes(self.json_text[walk.start :]) if walk.expect in {JsonPart.IN_STRING, JsonPart.IN_SCALAR} else b""


def _child(frame: OpenContainer) -> str | int:
    """The key or index of a container's current value, or of its latest value."""
    return _key(frame.keys[-1]) if frame.is_object and frame.keys else frame.commas


def _key(spelled: str) -> str:
    return _string_in(b'"%b"' % spelled.encode("latin-1"))


def _string_in(raw: bytes) -> str:
    """The text of a JSON string, or of its beginning; if an escape is cut off, escapes stay undecoded."""
    text = raw.decode(errors="replace")
    try:
        return str(_DECODER.raw_decode(f'{text}"')[0])  # reads up to the first closing quote
    except ValueError:
        return text[1:]
