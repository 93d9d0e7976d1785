"""Parses unfinished XTML arguments (Kimi K3): the current tag or value, keys and values so far."""

import json
import re
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from typing import Any

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k3 import unescape
from constrained_k2.turn.cursors.json_cursor import MAX_TOKEN, JsonCursor, JsonPart, OpenContainer, spelled
from constrained_k2.turn.cursors.xtml_tags import BLOCK_TOKENS

_ATTRIBUTES = re.compile(r'[^"]*"([^"]*)"[^"]*"([^"]*)"', re.DOTALL)
_MAX_TAG, _MAX_TAIL = 4096, 64  # stored characters of a tag, and of its end: a longer tag loses its middle


class XtmlPart(IntEnum):
    """The part of the arguments that comes next."""

    BETWEEN = 0  # a block, or the end of the arguments
    TAG = 1  # the rest of a block's tag
    VALUE = 2  # the value, or its end
    END_TAG = 3  # the rest of the tag that ends the block


@dataclass(slots=True)
class XtmlCursor:
    """The parser state in one call's arguments, which are valid so far.

    ``json`` treats the arguments as one open JSON object, whose keys and values so far are in its first frame. Strings
    are raw text in XTML; the current one is its ``token``. A value of another type is followed as JSON.
    """

    schema: InitVar[Any]
    markers: WireFormat
    part: XtmlPart = XtmlPart.BETWEEN
    tag: str = ""  # the text of the current or latest tag
    kind: str = ""  # the type word of the current block, such as "string"
    json: JsonCursor = field(init=False)
    is_done: bool = False  # never: a marker ends the arguments

    def __post_init__(self, schema: Any) -> None:
        self.json = JsonCursor(schema)
        self.json.frames.append(OpenContainer(self.json.value, is_object=True))
        self.json.expect = JsonPart.AFTER

    def copy(self) -> "XtmlCursor":
        """An independent copy."""
        other = XtmlCursor.__new__(XtmlCursor)
        for name in XtmlCursor.__slots__:
            setattr(other, name, getattr(self, name))
        other.json = self.json.copy()
        return other

    @property
    def members(self) -> OpenContainer:
        """The blocks so far."""
        return self.json.frames[0]

    @property
    def depth(self) -> int:
        """The tokens to reserve for closing the open block and containers and for the tags of missing required keys."""
        missing = set(map(spelled, self.members.view.required)).difference(self.members.keys)
        blocks = len(missing) + (self.part is not XtmlPart.BETWEEN)
        return BLOCK_TOKENS * blocks + len(self.json.frames) - 1

    @property
    def in_string(self) -> bool:
        """True in tags, raw text, and JSON strings and keys, where blanks are characters."""
        return self.part is not XtmlPart.VALUE or self.kind == "string" or self.json.in_string

    def feed(self, piece: str | int) -> None:
        """Advance over the next characters, or over a marker's id."""
        if isinstance(piece, int):
            self._mark(piece)
        elif self.part is not XtmlPart.VALUE:
            self.tag += piece
            if len(self.tag) > _MAX_TAG:
                self.tag = self.tag[: _MAX_TAG - _MAX_TAIL] + self.tag[-_MAX_TAIL:]
        elif self.kind == "string":
            self.json.token = (self.json.token + piece)[:MAX_TOKEN]
        else:
            self.json.feed(piece)

    def _mark(self, token_id: int) -> None:
        if token_id == self.markers.call_begin:
            self.part, self.tag = XtmlPart.TAG, ""
        elif token_id == self.markers.call_end:
            self._end_value()
            self.part, self.tag = XtmlPart.END_TAG, ""
        elif self.part is XtmlPart.TAG:
            self._begin_value()
        else:
            self.part = XtmlPart.BETWEEN

    def _begin_value(self) -> None:
        found = _ATTRIBUTES.fullmatch(self.tag)
        key, self.kind = (unescape(found[1]), found[2]) if found else ("", "")
        json_cursor = self.json
        self.part = XtmlPart.VALUE
        self.members.keys.append(spelled(key))
        json_cursor.value = self.members.view.value_of(key)
        json_cursor.expect = JsonPart.IN_STRING if self.kind == "string" else JsonPart.VALUE
        json_cursor.token = ""

    def _end_value(self) -> None:
        if self.kind == "string":
            self.json.token = json.dumps(self.json.token, ensure_ascii=False)[1:-1]
        if self.json.expect is not JsonPart.AFTER:
            self.json.end_value()
