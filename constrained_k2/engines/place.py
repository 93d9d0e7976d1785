"""Where a text stands in a grammar of ours, in a form that is equal for texts that may go on in the same ways.

A place is what the grammar's plan (:mod:`constrained_k2.grammar.plan`) says matters of all that is open, and the text
since the last joint (a brace, bracket, comma, colon, the end of a string), byte by byte: of that everything matters.
Below an opaque node the text is kept whole.
"""

import json
import re
from enum import IntEnum
from typing import NamedTuple

from constrained_k2.grammar.plan import OPAQUE, ArrayPlan, GrammarPlan, NodePlan, ObjectPlan
from constrained_k2.grammar.terminals import MAX_BLANKS

_MOST_TEXT = MAX_BLANKS
_MOST_OPEN = 24  # what is nested more deeply is not followed any further: its places would grow with every bracket
_MOST_COUNTED = 64  # more keys that are not declared are not counted one by one (a parameter's bits)

_HEX = rb"[0-9a-fA-F]"
_CHARACTER = re.compile(
    rb'[^"\\\x00-\x1f\x80-\xff]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}'
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
    rb'|\\["\\/bfnrt]|\\u(?:[0-9a-cA-CefEF]' + _HEX + rb"{3}|[dD][0-7]" + _HEX + rb"{2}"
    rb"|[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2})"
)
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')


class Stands(IntEnum):
    """What stands next."""

    VALUE = 0
    FIRST_KEY = 1
    KEY = 2
    IN_KEY = 3
    COLON = 4
    IN_FREE_STRING = 5
    IN_LISTED_STRING = 6
    IN_OTHER_STRING = 7
    IN_SCALAR = 8
    AFTER = 9
    FIRST_ITEM = 10
    LOST = 11


class Open(NamedTuple):
    """An object or array that is open.

    Attributes:
        node: Its node; :data:`OPAQUE` inside an opaque value.
        is_object: Which of the two.
        keys: An object's declared keys so far, a bit for each by its number in the plan: there may be thousands.
        number: An object's other keys so far, where they count; the items before the one that stands next.
    """

    node: int
    is_object: bool
    keys: int = 0
    number: int = 0


class Place(NamedTuple):
    """A place.

    Attributes:
        stands: What stands next.
        value: The node of the value that stands next or is being written; :data:`OPAQUE` elsewhere.
        open: What is open, outermost first.
        text: The text since the last joint; of a free string only a character that has begun.
        kept: How many are open outside the opaque value that this is inside of; -1 outside of any.
        escaped: Whether a string's last character was a backslash that escapes the next.
    """

    stands: Stands
    value: int
    open: tuple[Open, ...] = ()
    text: bytes = b""
    kept: int = -1
    escaped: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether the place says all that matters: else it is equal to others by chance."""
        return len(self.text) <= _MOST_TEXT and self.stands not in _UNTOLD

    @property
    def is_in_string(self) -> bool:
        """Whether a plain token leaves the place as it is."""
        return (self.stands is Stands.IN_FREE_STRING and not self.text) or (
            self.stands is Stands.IN_OTHER_STRING and not self.escaped
        )


def is_plain(token: bytes) -> bool:
    """Whether a token is of whole characters that end no string and need no escape."""
    if not _PLAIN.fullmatch(token):
        return False
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


class Follower:
    """Follows texts that the grammar allows.

    Args:
        plan: The grammar's.
    """

    def __init__(self, plan: GrammarPlan) -> None:
        self._nodes = plan.nodes
        self._most_text = max(plan.longest_name, _MOST_TEXT)
        self.start = Place(Stands.VALUE, plan.root)

    def follow(self, place: Place, token: bytes) -> Place:
        """The place behind a token, which the grammar allows at ``place``."""
        for byte in token:
            if place.stands is Stands.LOST:
                break
            if place.stands in _IN_STRINGS:
                place = self._in_string(place, byte)
            elif byte in b" \t\r\n":
                place = self._longer(self._ended(place) if place.stands is Stands.IN_SCALAR else place, byte)
            elif place.stands is Stands.IN_SCALAR and byte not in b",}]":
                place = self._longer(place, byte)
            else:
                place = self._joint(self._ended(place) if place.stands is Stands.IN_SCALAR else place, byte)
        return place

    def _plan(self, node: int) -> NodePlan:
        return _UNKNOWN if node == OPAQUE else self._nodes[node]

    def _in_string(self, place: Place, byte: int) -> Place:
        if byte == _QUOTE and not place.escaped:
            if place.stands is Stands.IN_KEY:
                return self._key_ended(self._longer(place, byte))
            return self._ended(place if place.kept < 0 else self._longer(place, byte))
        escaped = byte == _BACKSLASH and not place.escaped
        if place.stands is Stands.IN_OTHER_STRING:  # never within a kept text
            return place if place.escaped is escaped else place._replace(escaped=escaped)
        longer = self._longer(place, byte)
        if place.stands is Stands.IN_FREE_STRING and _CHARACTER.fullmatch(longer.text):
            return place._replace(text=b"", escaped=False)
        return longer if place.escaped is escaped else longer._replace(escaped=escaped)

    def _key_ended(self, place: Place) -> Place:
        owner = place.open[-1]
        plan = self._plan(owner.node).object
        place = place._replace(stands=Stands.COLON)
        if place.kept >= 0 or plan is None:
            return place._replace(value=OPAQUE)
        name = json.loads(place.text.decode()) if len(place.text) <= self._most_text else None
        if name is not None and name in plan.values:
            key, value = plan.values[name]
            owner = owner._replace(keys=owner.keys | 1 << key)
        else:
            value = plan.extra
            owner = owner._replace(number=min(owner.number + plan.counts_extra, _MOST_COUNTED))
        outer = place.open[:-1]
        if value == OPAQUE:  # what comes depends on the key
            return place._replace(open=(*outer, owner), value=OPAQUE, kept=len(place.open))
        return place._replace(open=(*outer, owner), value=value, text=b"")

    def _joint(self, place: Place, byte: int) -> Place:
        """A character of the structure, or the first one of a value or key."""
        if byte == _COLON:
            return self._cut(place._replace(stands=Stands.VALUE), byte)
        if byte == _COMMA:
            owner = place.open[-1]
            if owner.is_object:
                return self._cut(place._replace(stands=Stands.KEY), byte)
            owner = self._behind_item(owner)
            place = place._replace(stands=Stands.VALUE, open=(*place.open[:-1], owner), value=self._item(owner))
            return self._cut(place, byte)
        if byte in b"}]":
            return self._ended(self._longer(place, byte) if place.kept >= 0 else place, closed=True)
        if byte == _QUOTE:
            return self._opened_string(place)
        if byte in b"{[":
            return self._opened(place, byte)
        return self._longer(self._cut(place._replace(stands=Stands.IN_SCALAR)), byte)

    def _item(self, owner: Open) -> int:
        plan = self._plan(owner.node).array
        return OPAQUE if plan is None else plan.item(owner.number)

    def _behind_item(self, owner: Open) -> Open:
        plan = self._plan(owner.node).array
        return owner if plan is None else owner._replace(number=min(owner.number + 1, plan.counted))

    def _opened_string(self, place: Place) -> Place:
        if place.stands in _KEYS:
            return self._longer(self._cut(place._replace(stands=Stands.IN_KEY, escaped=False)), _QUOTE)
        plan = self._plan(place.value)
        if place.kept >= 0:
            return self._longer(place._replace(stands=Stands.IN_LISTED_STRING, escaped=False), _QUOTE)
        if plan.free_strings:
            return place._replace(stands=Stands.IN_FREE_STRING, text=b"", escaped=False)
        if plan.listed_strings:
            return place._replace(stands=Stands.IN_LISTED_STRING, text=b'"', escaped=False)
        return place._replace(stands=Stands.IN_OTHER_STRING, text=b"", escaped=False)

    def _opened(self, place: Place, byte: int) -> Place:
        if len(place.open) == _MOST_OPEN:
            return Place(Stands.LOST, OPAQUE)
        is_object = byte == _BRACE
        plan = self._plan(place.value)
        inner: ObjectPlan | ArrayPlan | None = plan.object if is_object else plan.array
        if place.kept >= 0 or inner is None:
            kept = place.kept if place.kept >= 0 else len(place.open)
            place = self._longer(place._replace(kept=kept), byte)
            owner = Open(OPAQUE, is_object)
        else:
            place = self._cut(place, byte)
            owner = Open(place.value, is_object)
        if is_object:
            return place._replace(stands=Stands.FIRST_KEY, open=(*place.open, owner), value=OPAQUE)
        return place._replace(stands=Stands.FIRST_ITEM, open=(*place.open, owner), value=self._item(owner))

    def _longer(self, place: Place, byte: int) -> Place:
        """With a byte of text more, up to a length from which on places are not shared anyway."""
        if len(place.text) > self._most_text:
            return place
        return place._replace(text=place.text + bytes((byte,)))

    def _cut(self, place: Place, byte: int | None = None) -> Place:
        """At a joint, ``byte``: the text begins anew unless it is kept."""
        if place.kept >= 0:
            return place if byte is None else self._longer(place, byte)
        return place._replace(text=b"") if place.text else place

    @staticmethod
    def _ended(place: Place, *, closed: bool = False) -> Place:
        """Behind a value."""
        opened = place.open[:-1] if closed else place.open
        if 0 <= place.kept < len(opened):
            return place._replace(stands=Stands.AFTER, value=OPAQUE, open=opened)
        return Place(Stands.AFTER, OPAQUE, opened)


_UNKNOWN = NodePlan()
_UNTOLD = frozenset({Stands.IN_OTHER_STRING, Stands.LOST})
_QUOTE, _BACKSLASH, _COLON, _COMMA, _BRACE = b'"\\:,{'
_KEYS = frozenset({Stands.KEY, Stands.FIRST_KEY})
_IN_STRINGS = frozenset({Stands.IN_KEY, Stands.IN_FREE_STRING, Stands.IN_LISTED_STRING, Stands.IN_OTHER_STRING})
