"""Follows the text of arguments from key to key and from item to item.

A position takes constant memory: after ``{"a":[1,"b`` it holds the innermost object or array, which refers to the one
around it, and of the string ``b`` its size, hash and last bytes.
"""

import re
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from constrained_k2.engines.llguidance.position import MARKER
from constrained_k2.engines.llguidance.written.items import ItemPlaces, WrittenItems
from constrained_k2.engines.llguidance.written.spelled import unescaped
from constrained_k2.engines.llguidance.written.texts import EMPTY, Text, WrittenTexts
from constrained_k2.engines.llguidance.written.tokens import Matters, WrittenTokens
from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, OPEN, SEPARATOR
from constrained_k2.grammar.lark.places import NOWHERE
from constrained_k2.grammar.lark.unique_items import LONGEST

_OPEN, _CLOSE, _SEPARATOR = (MARKER + text.encode() for text in (OPEN, CLOSE, SEPARATOR))
_BEFORE_KEY = f'{ARGUMENT} key="'.encode()
_STRING_TYPE = b'type="string"'
_MAX_TAG = 64  # bytes of a tag that are kept, beside its key
_STRUCTURE = re.compile(rb'["{}\[\],:]')
_STRUCTURE_OR_WORD = re.compile(rb'["{}\[\],:\-0-9a-z]')
_REST_OF_WORD = re.compile(rb"[^ \t\r\n,\]}]*")
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\[\x00-\xff][^"\\]*)*')
_QUOTE, _BRACE, _BRACKET, _COMMA, _COLON = b'"{[,:'


class Within(IntEnum):
    """The part of the text that the next byte belongs to."""

    VALUE, STRING, KEY, ITEM, WORD = range(5)  # a compared item is in ITEM if it is a string, else in WORD
    TAG, ATTRIBUTE, AFTER_KEY, TEXT, BETWEEN = range(5, 10)  # of XML arguments


_WATCHED = {
    Within.VALUE: Matters.STRUCTURE | Matters.QUOTE,
    Within.STRING: Matters.BACKSLASH | Matters.QUOTE,
    Within.TEXT: Matters.QUOTE,
    Within.BETWEEN: Matters.QUOTE,
}


class Frame(NamedTuple):
    """An open object, or array (without keys)."""

    outer: "Frame | None"
    keys: WrittenTexts | None = None
    place: int = NOWHERE
    number: int = 0  # the index of an array's current item
    items: WrittenItems | None = None  # of an array whose items are compared


class Snapshot(NamedTuple):
    """A position in the text after a number of tokens; earlier ones stay valid when keys and items are taken back."""

    within: Within
    frame: Frame | None = None
    place: int = NOWHERE  # of the value that is expected
    expects_key: bool = False  # True if the next string is a key
    text: Text = EMPTY  # of the key or compared string that is being written
    word: bytes = b""  # of the item that is compared as a text; of a tag
    escaped: bool = False  # True after a backslash in a string
    length: int = 0  # tokens
    logged: int = 0  # keys and items

    @property
    def watched(self) -> int:
        """The tokens that may change the position."""
        if self.escaped or (self.within is Within.VALUE and self.frame is not None and self.frame.items is not None):
            return Matters.ANYWAY
        return _WATCHED.get(self.within, Matters.ANYWAY)

    @property
    def texts(self) -> WrittenTexts | None:
        """The texts that the key or string which is being written may not repeat; None if none is."""
        if self.frame is None:
            return None
        if self.within is Within.KEY or self.within is Within.ATTRIBUTE:
            return self.frame.keys
        items = self.frame.items
        return items.strings if self.within is Within.ITEM and items is not None else None

    @property
    def may_repeat_item(self) -> bool:
        """True if a token may repeat an item here, or hold two equal ones."""
        frame = self.frame
        if self.place != NOWHERE:
            return True
        while frame is not None:
            if frame.place != NOWHERE:
                return True
            frame = frame.outer
        return False


class Repetition(Exception):
    """A text writes a key or an item a second time, or nothing but a repetition can follow."""


class Scanner:
    """The keys and items of one text. Before it goes on from an earlier position, those after that are taken back."""

    def __init__(self, tokens: WrittenTokens, places: ItemPlaces | None, *, is_xml: bool) -> None:
        self._tokens = tokens
        self._places = places
        self._log: list[Callable[[], None]] = []  # takes back a key or item
        self._root = NOWHERE if places is None else places.root
        self._outer = Frame(None, WrittenTexts(tokens.in_attribute)) if is_xml else None
        self.start = Snapshot(Within.BETWEEN, self._outer) if is_xml else Snapshot(Within.VALUE, None, self._root)
        self.holding: set[int] = set()  # the tokens that may hold a whole key or item which some value has, or had
        self._ended: list[bytes] = []  # the keys and items that ended within the token that was followed last

    def restore(self, at: Snapshot) -> None:
        """Take back the keys and items after a position."""
        while len(self._log) > at.logged:
            self._log.pop()()

    def follow(self, at: Snapshot, token: bytes, length: int, *, may_repeat: bool = False) -> Snapshot:
        """Return the position after a token that the grammar allows, the last of ``length`` tokens.

        Raises:
            Repetition: A key or item comes again; keys and items may have to be taken back.
        """
        self._ended.clear()
        if token.startswith(MARKER):
            at = self._after_marker(at, token)
        elif at.within >= Within.TAG:
            at = self._in_tag(at, token, may_repeat=may_repeat)
        else:
            return self._after(at, token, length, may_repeat=may_repeat)
        return at._replace(length=length, logged=len(self._log))

    def _after(  # noqa: PLR0912 - a state machine
        self, at: Snapshot, token: bytes, length: int, *, may_repeat: bool
    ) -> Snapshot:
        within, frame, place, expects_key, text, word, escaped, *_ = at
        start, end, reach = 0, len(token), self._tokens.reach
        items = None if frame is None else frame.items
        while start < end:
            if within is Within.VALUE:
                found = (_STRUCTURE if items is None else _STRUCTURE_OR_WORD).search(token, start)
                if found is None:
                    break
                start = found.end()
                byte = token[start - 1]
                if byte == _QUOTE:
                    within = Within.KEY if expects_key else Within.STRING if items is None else Within.ITEM
                    text, word = EMPTY, b'"'
                elif byte in b"{}[],:":
                    frame, place, expects_key = self._structural(frame, place, byte, may_repeat=may_repeat)
                    items = None if frame is None else frame.items
                else:
                    within, word = Within.WORD, found[0]
                continue
            if within is Within.WORD:
                rest = _REST_OF_WORD.match(token, start)
                assert rest is not None
                word, start = word + rest[0], rest.end()
                if start < end and items is not None:
                    self._end_item(items, EMPTY, word, may_repeat=may_repeat)
                    within = Within.VALUE
                continue
            stop, escaped = _string_end(token, start, escaped=escaped)
            if within is Within.ITEM and items is not None and items.strings is None:
                word = (word + token[start:stop])[:LONGEST]
            elif within is not Within.STRING:
                text = text.longer(token[start:stop], reach)
            if stop == end:
                break
            if within is Within.KEY:
                text, expects_key = text.ended(reach), False
                place = self._end_key(frame, text, may_repeat=may_repeat)
            elif within is Within.ITEM and items is not None:
                self._end_item(items, text.ended(reach), word + b'"', may_repeat=may_repeat)
            within, start, text = Within.VALUE, stop + 1, EMPTY
        is_word = within is Within.WORD or (within is Within.ITEM and items is not None and items.strings is None)
        if is_word and items is not None and items.words is not None and items.words.is_spent(word) and not may_repeat:
            raise Repetition
        word = word if is_word else b""
        return Snapshot(within, frame, place, expects_key, text, word, escaped, length, len(self._log))

    def _structural(
        self, frame: Frame | None, place: int, byte: int, *, may_repeat: bool
    ) -> tuple[Frame | None, int, bool]:
        """Return where a structural character leads: the innermost object or array, the place, if a key comes next."""
        places = self._places
        if byte == _BRACE:
            return Frame(frame, WrittenTexts(self._tokens.in_json), place), NOWHERE, True
        if byte == _BRACKET:
            if places is None or place == NOWHERE:
                return Frame(frame), NOWHERE, False
            return Frame(frame, None, place, 0, places.items(place)), places.of_item(place, 0), False
        if frame is None or byte == _COLON:
            return frame, place, False
        if byte != _COMMA:
            return frame.outer, NOWHERE, False
        if frame.keys is not None:
            return frame, NOWHERE, True
        if places is None or frame.place == NOWHERE:
            return frame, NOWHERE, False
        if frame.items is not None and frame.items.is_exhausted and not may_repeat:
            raise Repetition
        frame = frame._replace(number=frame.number + 1)
        return frame, places.of_item(frame.place, frame.number), False

    def _in_tag(self, at: Snapshot, token: bytes, *, may_repeat: bool) -> Snapshot:
        if at.within is Within.TEXT or at.within is Within.BETWEEN:
            return at
        within, word, text, place = at.within, at.word, at.text, at.place
        if within is Within.TAG:
            missing = len(_BEFORE_KEY) - len(word)
            word, token = word + token[:missing], token[missing:]
            if word != _BEFORE_KEY:
                return at._replace(word=word)
            within, word = Within.ATTRIBUTE, b""
        if within is Within.ATTRIBUTE:
            stop = token.find(b'"')
            text = text.longer(token if stop < 0 else token[:stop], self._tokens.reach, has_escapes=False)
            if stop < 0:
                return at._replace(within=within, word=word, text=text)
            place = self._end_key(at.frame, text, may_repeat=may_repeat)
            within, token = Within.AFTER_KEY, token[stop + 1 :]
        return at._replace(within=within, word=(word + token)[-_MAX_TAG:], text=EMPTY, place=place)

    def _after_marker(self, at: Snapshot, marker: bytes) -> Snapshot:
        if marker == _OPEN:
            return Snapshot(Within.TAG, self._outer)
        if marker != _SEPARATOR or at.within is not Within.AFTER_KEY:
            return Snapshot(Within.BETWEEN, self._outer)
        if at.word.endswith(_STRING_TYPE):
            return Snapshot(Within.TEXT, self._outer)
        return Snapshot(Within.VALUE, self._outer, at.place)

    def _end_key(self, frame: Frame | None, key: Text, *, may_repeat: bool) -> int:
        """Return the place of the value under a key."""
        keys = None if frame is None else frame.keys
        if frame is None or keys is None:
            return NOWHERE
        if key not in keys:
            keys.add(key)
            self._log.append(partial(keys.remove, key))
            self._end(key.whole)
        elif not may_repeat:
            raise Repetition
        if self._places is None:
            return NOWHERE
        return self._places.of_key(self._root if frame is self._outer else frame.place, key.identity)

    def _end(self, text: bytes | None) -> None:
        if text is not None:
            self._ended.append(text)

    def _end_item(self, items: WrittenItems, text: Text, word: bytes, *, may_repeat: bool) -> None:
        if word.startswith(b'"') and (strings := items.strings) is not None:
            if text not in strings:
                strings.add(text)
                self._log.append(partial(strings.remove, text))
                self._end(text.whole)
                return
        elif len(word) > LONGEST:
            return
        elif (words := items.words) is not None and word not in words:
            words.add(word)
            self._log.append(partial(words.remove, word))
            self._end(unescaped(word[1:-1]) if word.startswith(b'"') else word)
            return
        if not may_repeat:
            raise Repetition

    def hold(self) -> None:
        """Note the tokens that hold what ended within the latest token, which was written and not only tried."""
        for text in self._ended:
            self.holding.update(self._tokens.whole.get(text, ()))


def _string_end(text: bytes, start: int, *, escaped: bool) -> tuple[int, bool]:
    """Return the index of the quote that ends a string, or the text's length, and True if it ends with a backslash."""
    rest = _REST_OF_STRING.match(text, start + escaped)
    stop = rest.end() if rest else start
    if stop >= len(text) or text[stop] == _QUOTE:
        return stop, False
    return len(text), True
