"""Follows the text of arguments to the arrays whose items are compared."""

import json
from enum import IntEnum
from typing import NamedTuple

from constrained_k2.engines.llguidance.position import MARKER
from constrained_k2.engines.llguidance.unique_items.language import ItemLanguage
from constrained_k2.engines.llguidance.unique_items.objects import ItemState, canonical
from constrained_k2.engines.llguidance.unique_items.tokens import TokenIndex
from constrained_k2.engines.llguidance.unique_items.written import WrittenItems
from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, OPEN, SEPARATOR, unescape
from constrained_k2.grammar.lark.places import NOWHERE, Places
from constrained_k2.grammar.lark.unique_items import ItemTexts, UniqueItems

_OPEN, _CLOSE, _SEPARATOR = (MARKER + text.encode() for text in (OPEN, CLOSE, SEPARATOR))
_BEFORE_KEY = f'{ARGUMENT} key="'.encode()
_QUOTE, _BACKSLASH, _COMMA, _COLON, _BRACE = b'"\\,:{'
_ANY = UniqueItems(ItemTexts(()), has_containers=True)  # for a member: that is never exhausted
_BLANKS, _ENDS = frozenset(b" \t\r\n"), frozenset(b" \t\r\n,]}")


class Expect(IntEnum):
    """The part of the text that the next byte belongs to."""

    VALUE, KEY, IN_STRING, IN_KEY, IN_WORD, AFTER = range(6)
    IN_TAG, IN_TEXT, BETWEEN = range(6, 9)  # of XML arguments


class Frame(NamedTuple):
    """An open object or array."""

    place: int
    is_object: bool
    number: int = 0  # of the current item
    items: WrittenItems | None = None  # of an array whose items are compared
    length: int = 0  # how many it has here: it may have got more, which are then taken back


class Position(NamedTuple):
    """A position in the text; earlier ones stay valid when items are taken back."""

    expect: Expect
    place: int = NOWHERE  # of the value that is expected
    frames: tuple[Frame, ...] = ()
    text: bytes = b""  # of the key, tag or compared string or word that is being written
    is_compared: bool = False  # True if it is such a string or word
    escaped: bool = False  # True after a backslash
    item: ItemState | None = None  # the outermost object or array that is compared as an item
    values: WrittenItems | None = None  # what a member of that object may not be
    inner: bytes = b""  # the text so far of an object or array in a member of that

    @property
    def items(self) -> WrittenItems | None:
        """The values that the one which is expected or being written may not repeat."""
        return self.values or (self.frames[-1].items if self.frames else None)

    @property
    def is_member(self) -> bool:
        """True if the innermost object or array is the item."""
        return self.item is not None and self.item.depth == len(self.frames)


class Tracker:
    """Computes the positions of texts that a grammar allows. Shared by all calls.

    Positions of one call refer to its items, which :meth:`follow` adds to: before it goes on from an earlier position,
    that has to be :meth:`restored <restore>`.
    """

    def __init__(self, places: Places, tokens: TokenIndex, *, is_xml: bool) -> None:
        self._places = places.places
        self.tokens = tokens
        self._languages: dict[ItemTexts, ItemLanguage] = {}
        self.start = Position(Expect.BETWEEN if is_xml else Expect.VALUE, places.root)
        self._root = places.root

    @staticmethod
    def restore(position: Position) -> None:
        """Take back the items after a position."""
        for frame in position.frames:
            if frame.items is not None:
                frame.items.truncate(frame.length)

    def follow(self, position: Position, token: bytes) -> Position | None:
        """Return the position after a token that the grammar allows.

        None if it repeats an item, or if nothing but a repetition could follow; then items may have to be taken back.
        """
        if token.startswith(MARKER):
            return self._after_marker(position, token)
        if position.expect is Expect.IN_TEXT or position.expect is Expect.BETWEEN:
            return position
        if position.expect is Expect.IN_TAG:
            return position._replace(text=position.text + token)
        at, after = 0, position
        while at < len(token):
            start = at
            if after.expect is Expect.IN_STRING or after.expect is Expect.IN_KEY:
                end = _string_end(token, at, escaped=after.escaped)
                after = self._longer(after, token[at:end], escaped=_is_escaped(token, at, end, escaped=after.escaped))
                at = end
                if at == len(token):
                    after = self._inside(after, token[start:])
                    break
            following = self._step(after, token[at])
            if following is None:
                return None
            at += 1
            after = self._inside(following, token[start:at])
        if after.is_compared and after.items is not None and after.items.is_spent(after.text):
            return None
        return after

    @staticmethod
    def _inside(position: Position, text: bytes) -> Position:
        """Add to the text of an object or array in a member; it begins with its bracket."""
        if position.item is None or position.item.depth >= len(position.frames):
            return position
        return position._replace(inner=position.inner + text)

    @staticmethod
    def _longer(position: Position, text: bytes, *, escaped: bool) -> Position:
        if position.is_compared or position.expect is Expect.IN_KEY:
            return position._replace(text=position.text + text, escaped=escaped)
        return position if position.escaped is escaped else position._replace(escaped=escaped)

    def _step(self, position: Position, byte: int) -> Position | None:
        expect = position.expect
        if expect is Expect.IN_STRING:  # at its quote
            return self._end_item(position, position.text + b'"')
        if expect is Expect.IN_KEY:
            return self._end_key(position)
        if expect is Expect.IN_WORD:
            if byte not in _ENDS:
                return self._longer(position, bytes((byte,)), escaped=False)
            ended = self._end_item(position, position.text)
            return None if ended is None else self._step(ended, byte)
        if byte in _BLANKS or byte == _COLON:
            return position
        if byte == _COMMA:
            return self._next(position)
        if byte in b"]}":
            return self._close(position, byte)
        return self._begin(position, byte)

    def _begin(self, position: Position, byte: int) -> Position:
        """Begin a key or a value."""
        if position.expect is Expect.KEY:
            return position._replace(expect=Expect.IN_KEY, text=b'"', escaped=False)
        if byte in b"{[":
            return self._open(position, is_object=byte == _BRACE)
        expect = Expect.IN_STRING if byte == _QUOTE else Expect.IN_WORD
        is_compared = position.items is not None or position.is_member
        return position._replace(expect=expect, text=bytes((byte,)) if is_compared else b"", is_compared=is_compared)

    def _open(self, position: Position, *, is_object: bool) -> Position:
        place, item, owner = position.place, position.item, position.items
        unique = None if is_object or place == NOWHERE else self._places[place].unique
        items = None
        if unique is not None and (item is None or not unique.has_containers):
            items = WrittenItems(self._language(unique.texts), self.tokens, unique)
        if item is None and owner is not None and owner.spec is not None:
            spec = owner.spec.object if is_object else None
            earlier = owner.objects if is_object else owner.arrays
            item = ItemState.begin(spec, earlier, len(position.frames) + 1)
        frames = (*position.frames, Frame(place, is_object, items=items))
        if is_object:
            return position._replace(expect=Expect.KEY, frames=frames, item=item, values=None)
        within = self._item_place(place, 0)
        return position._replace(expect=Expect.VALUE, place=within, frames=frames, item=item, values=None)

    def _language(self, texts: ItemTexts) -> ItemLanguage:
        found = self._languages.get(texts)
        if found is None:
            found = self._languages.setdefault(texts, ItemLanguage.of(texts))
        return found

    def _end_key(self, position: Position) -> Position | None:
        place, item = position.frames[-1].place, position.item
        if place == NOWHERE and not position.is_member:
            return position._replace(expect=Expect.VALUE, place=NOWHERE, text=b"")
        key, values = json.loads(position.text + b'"'), None
        if place != NOWHERE:
            found = self._places[place]
            place = found.keys.get(key, found.extra)
        if item is not None and position.is_member:
            item = item.with_key(key)
            if item is None:
                return None
            if item.members is not None and (spent := item.spent_values()):
                texts = item.members[key].texts
                values = WrittenItems(self._language(texts), self.tokens, _ANY)
                for text in spent:
                    values.add(text)
        return position._replace(expect=Expect.VALUE, place=place, text=b"", item=item, values=values)

    def _end_item(self, position: Position, text: bytes) -> Position | None:
        """End a string or word; None if it is an item that is there already."""
        if position.is_member:
            return self._end_member(position, text, is_text=True)
        frames = position.frames
        if position.is_compared and (items := position.items) is not None:
            if text in items:
                return None
            items.add(text)
            frames = (*frames[:-1], frames[-1]._replace(length=len(items)))
        return position._replace(expect=Expect.AFTER, frames=frames, text=b"", is_compared=False)

    @staticmethod
    def _end_member(position: Position, text: bytes, *, is_text: bool) -> Position | None:
        """End a member of an item; None if only a repetition is left then."""
        item, frame = position.item, position.frames[-1]
        if item is not None and not frame.is_object:
            item = item.with_key(frame.number)
        assert item is not None
        item = item.with_value(text if is_text and item.members is not None else canonical(text))
        if item is None:
            return None
        return position._replace(expect=Expect.AFTER, text=b"", is_compared=False, item=item, values=None, inner=b"")

    def _close(self, position: Position, byte: int) -> Position | None:
        """Close an object or array; None if it is an item that is there already."""
        *outer, closed = position.frames
        item, after = position.item, position._replace(expect=Expect.AFTER, frames=tuple(outer), values=None)
        if item is None:
            return after
        if item.depth == len(outer):
            return self._end_member(after, position.inner + bytes((byte,)), is_text=False)
        if item.depth <= len(outer):
            return after
        if item.is_repeated():
            return None
        items = outer[-1].items
        assert items is not None
        items.add_value(item.written, is_object=closed.is_object)
        outer[-1] = outer[-1]._replace(length=len(items))
        return after._replace(frames=tuple(outer), item=None)

    def _next(self, position: Position) -> Position | None:
        """Begin the next member or item; None if there is no other item left."""
        *outer, frame = position.frames
        if frame.is_object:
            may_go_on = not position.is_member or position.item is None or position.item.may_go_on()
            return position._replace(expect=Expect.KEY) if may_go_on else None
        if frame.items is not None and frame.items.is_exhausted:
            return None
        frame = frame._replace(number=frame.number + 1)
        place = self._item_place(frame.place, frame.number)
        return position._replace(expect=Expect.VALUE, place=place, frames=(*outer, frame))

    def _item_place(self, place: int, number: int) -> int:
        if place == NOWHERE:
            return NOWHERE
        found = self._places[place]
        return found.prefix[number] if number < len(found.prefix) else found.rest

    def _after_marker(self, position: Position, marker: bytes) -> Position:
        if marker == _OPEN:
            return Position(Expect.IN_TAG)
        if marker == _CLOSE or position.expect is not Expect.IN_TAG:
            return Position(Expect.BETWEEN)
        name, _, kind = position.text.removeprefix(_BEFORE_KEY).partition(b'" type="')
        if kind == b'string"':
            return Position(Expect.IN_TEXT)
        found = self._places[self._root]
        return Position(Expect.VALUE, found.keys.get(unescape(name.decode()), found.extra))


def _string_end(token: bytes, start: int, *, escaped: bool) -> int:
    """Return the index of the quote that ends a string, or the token's length."""
    at = start + escaped
    while True:
        quote, backslash = token.find(b'"', at), token.find(b"\\", at)
        if quote < 0:
            return len(token)
        if backslash < 0 or quote < backslash:
            return quote
        at = backslash + 2


def _is_escaped(token: bytes, start: int, end: int, *, escaped: bool) -> bool:
    """Return True if the last byte before ``end`` is a backslash that escapes the next one."""
    text = token[start:end]
    count = len(text) - len(text.rstrip(b"\\"))
    return (count + (escaped and count == len(text))) % 2 == 1
