"""The path to the end of XTML arguments: the key of the open block, and the position in its value."""

import re
from copy import copy
from dataclasses import dataclass, field
from typing import Self

from constrained_k2.explain.json_path import JsonPath, Path
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k3 import unescape
from constrained_k2.turn.drafts.json_tracker import Expect
from constrained_k2.turn.drafts.xtml.tracker import Place

_ATTRIBUTES = re.compile(r'[^"]*"([^"]*)"[^"]*"([^"]*)"', re.DOTALL)


@dataclass(slots=True)
class XtmlPath:
    """The position in one call's arguments, which are valid so far."""

    markers: WireFormat
    place: Place = Place.BETWEEN
    tag: bytearray = field(default_factory=bytearray)
    kind: str = ""  # the type word of the block
    keys: list[str] = field(default_factory=list)
    value: JsonPath | None = None  # in a value that is JSON

    def copy(self) -> Self:
        """An independent copy."""
        other = copy(self)
        other.tag, other.keys = self.tag.copy(), self.keys.copy()
        other.value = None if self.value is None else self.value.copy()
        return other

    @property
    def is_done(self) -> bool:
        """True where the arguments may end, by their tags."""
        return self.place is Place.BETWEEN

    @property
    def depth(self) -> int:
        """As :attr:`JsonPath.depth`."""
        return 0 if self.value is None else self.value.depth

    @property
    def in_string(self) -> bool:
        """True in a value that is raw text, or in a string of another value."""
        return self.place is Place.VALUE and (self.value is None or self.value.in_string)

    @property
    def in_key(self) -> bool:
        """True in a key: of a tag, or within a value."""
        if self.place is Place.TAG:
            return self.tag.count(b'"') == 1
        return self.place is Place.VALUE and self.value is not None and self.value.in_key

    def feed(self, raw: bytes) -> None:
        """Advance over the next bytes."""
        if self.place is not Place.VALUE:
            self.tag += raw
        elif self.value is not None:
            self.value.feed(raw)

    def key_with(self, raw: bytes) -> tuple[str, list[str]]:
        """As :meth:`JsonPath.key_with`."""
        if self.value is not None and self.place is Place.VALUE:
            return self.value.key_with(raw)
        begun = self.tag.partition(b'"')[2] + raw
        return unescape(begun.partition(b'"')[0].decode(errors="replace")), self.keys

    def ends_scalar(self, symbol: int) -> bool:
        """As :meth:`JsonPath.ends_scalar`."""
        return self.place is Place.VALUE and self.value is not None and self.value.ends_scalar(symbol)

    def path(self, symbol: int) -> Path:
        """As :meth:`JsonPath.path`; the attributes behind a key belong to its value."""
        if self.place is Place.BETWEEN:
            return ()
        if self.place is Place.TAG:
            return (self._key(),) if self.tag.count(b'"') > 1 else ()
        inner = self.value
        is_inside = self.place is Place.VALUE and inner is not None and inner.expect is not Expect.AFTER
        return (self.keys[-1], *(inner.path(symbol) if is_inside and inner is not None else ()))

    def text_of(self, level: int) -> bytes | None:
        """As :meth:`JsonPath.text_of`, if the value is JSON there; else None."""
        if level and self.place is Place.VALUE and self.value is not None:
            return self.value.text_of(level - 1)
        return None

    def _key(self) -> str:
        return unescape(self.tag.split(b'"')[1].decode(errors="replace"))

    def feed_marker(self, marker: int) -> None:
        """Advance over a marker, by its id."""
        if marker == self.markers.call_begin:
            self.place, self.tag = Place.TAG, bytearray()
        elif marker == self.markers.call_end:
            self.place, self.tag, self.value = Place.END_TAG, bytearray(), None
        elif self.place is Place.TAG:
            found = _ATTRIBUTES.fullmatch(self.tag.decode(errors="replace"))
            self.keys.append(unescape(found[1]) if found else "")
            self.kind = found[2] if found else ""
            self.place, self.value = Place.VALUE, None if self.kind == "string" else JsonPath()
        else:
            self.place = Place.BETWEEN
