"""Follows the text of arguments from key to key."""

import re
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from constrained_k2.engines.llguidance.distinct_keys.spelled import unescaped
from constrained_k2.engines.llguidance.distinct_keys.tokens import Closing, Ids, KeyTokens
from constrained_k2.engines.llguidance.position import MARKER
from constrained_k2.formats.kimi_k3 import ARGUMENT, CLOSE, OPEN, SEPARATOR

_OPEN, _CLOSE, _SEPARATOR = (MARKER + text.encode() for text in (OPEN, CLOSE, SEPARATOR))
_BEFORE_KEY = f'{ARGUMENT} key="'.encode()
_IN_TAG = re.compile(re.escape(_BEFORE_KEY) + rb'([^"]*)"')
_STRING_TYPE = b'type="string"'
_STRUCTURE = re.compile(rb'["{}\[\],:]')
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\[\x00-\xff][^"\\]*)*')
_QUOTE, _BRACE, _BRACKET, _COMMA, _COLON = b'"{[,:'
_NONE: Ids = np.array([], dtype=np.int64)


class Within(IntEnum):
    """The part of the text that the next byte belongs to."""

    VALUE, STRING, KEY = range(3)
    TAG, TEXT, BETWEEN = range(3, 6)  # of XML arguments


class WrittenKeys:
    """The keys that one object has so far."""

    __slots__ = ("_closers", "_closing", "texts")

    def __init__(self, closing: Closing) -> None:
        self._closing = closing
        self._closers: dict[bytes, list[Ids]] = {}  # beginning of a key -> tokens with its rest, if there is a rest
        self.texts: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """Add a key that is not there yet."""
        self.texts.add(key)
        for beginning, ids in self._ways_to_end(key):
            self._closers.setdefault(beginning, []).append(ids)

    def remove(self, key: bytes) -> None:
        """Remove the key that was added last."""
        self.texts.discard(key)
        for beginning, _ in self._ways_to_end(key):
            ways = self._closers[beginning]
            ways.pop()
            if not ways:
                del self._closers[beginning]

    def repeating(self, beginning: bytes) -> list[Ids]:
        """Return the tokens that go on from a beginning to a key that is there."""
        found = self._closers.get(beginning, [])
        return [self._closing.ids.get(b"", _NONE), *found] if beginning in self.texts else found

    def _ways_to_end(self, key: bytes) -> list[tuple[bytes, Ids]]:
        sizes = range(1, min(self._closing.longest, len(key)) + 1)
        rests = ((key[:-size], self._closing.ids.get(key[-size:])) for size in sizes)
        return [(beginning, ids) for beginning, ids in rests if ids is not None]


class Frame(NamedTuple):
    """An open object, or array (without keys)."""

    outer: "Frame | None"
    keys: WrittenKeys | None


class Snapshot(NamedTuple):
    """A position in the text after a number of tokens; earlier ones stay valid when keys are taken back."""

    within: Within
    frame: Frame | None = None
    expects_key: bool = False  # True if the next string is a key; in a tag, while its key has not ended
    text: bytes = b""  # of the key or tag that is being written
    escaped: bool = False  # True after a backslash in a string
    length: int = 0  # tokens
    logged: int = 0  # keys of all objects

    @property
    def keys(self) -> WrittenKeys | None:
        """The keys that the one which is being written may not repeat; None if none is."""
        if self.frame is None or not (self.within is Within.KEY or (self.within is Within.TAG and self.expects_key)):
            return None
        return self.frame.keys


class RepeatedKey(Exception):
    """A text writes a key a second time."""


class Scanner:
    """The keys of one text. Positions refer to them: before it goes on from an earlier one, keys are taken back."""

    def __init__(self, tokens: KeyTokens, *, is_xml: bool) -> None:
        self._tokens = tokens
        self._is_xml = is_xml
        self._log: list[tuple[WrittenKeys, bytes]] = []
        self._root = Frame(None, WrittenKeys(tokens.in_attribute)) if is_xml else None
        self.start = Snapshot(Within.BETWEEN if is_xml else Within.VALUE, self._root)
        self.holding: set[int] = set()  # the tokens that may hold a whole key which some object has, or had

    def restore(self, at: Snapshot) -> None:
        """Take back the keys after a position."""
        while len(self._log) > at.logged:
            keys, key = self._log.pop()
            keys.remove(key)

    def follow(self, at: Snapshot, tokens: list[bytes], *, may_repeat: bool = False) -> Snapshot:
        """Return the position after tokens that the grammar allows.

        Raises:
            RepeatedKey: A key comes again; keys may have to be taken back.
        """
        length = at.length + len(tokens)
        if not self._is_xml:
            at = self._after(at, b"".join(tokens), may_repeat=may_repeat)
            return at._replace(length=length, logged=len(self._log))
        waiting: list[bytes] = []
        for token in tokens:
            if token.startswith(MARKER):
                at = self._after_marker(self._after(at, b"".join(waiting), may_repeat=may_repeat), token)
                waiting = []
            else:
                waiting.append(token)
        at = self._after(at, b"".join(waiting), may_repeat=may_repeat)
        return at._replace(length=length, logged=len(self._log))

    @staticmethod
    def beginning(at: Snapshot, after: bytes) -> bytes | None:
        """Return the beginning of the key that is being written, ``after`` being the text since the position.

        None where a tag has not come to its key.
        """
        text = at.text + after
        if at.within is Within.TAG:
            return text[len(_BEFORE_KEY) :] if text.startswith(_BEFORE_KEY) else None
        return text

    def _after(self, at: Snapshot, text: bytes, *, may_repeat: bool) -> Snapshot:
        if at.within is Within.TAG:
            return self._in_tag(at, text, may_repeat=may_repeat)
        if at.within is Within.TEXT or at.within is Within.BETWEEN:
            return at
        within, frame, expects_key, key, escaped, *_ = at
        place, end = 0, len(text)
        while place < end:
            if within is Within.VALUE:
                found = _STRUCTURE.search(text, place)
                if found is None:
                    break
                place = found.end()
                byte = text[place - 1]
                if byte == _QUOTE:
                    within = Within.KEY if expects_key else Within.STRING
                else:
                    frame, expects_key = self._structural(frame, byte)
                continue
            stop, escaped = _string_end(text, place, escaped=escaped)
            if within is Within.KEY:
                key += text[place:stop]
            if stop == end:
                break
            if within is Within.KEY:
                self._end_key(frame, unescaped(key), may_repeat=may_repeat)
                key, expects_key = b"", False
            within, place = Within.VALUE, stop + 1
        return Snapshot(within, frame, expects_key, key, escaped)

    def _in_tag(self, at: Snapshot, text: bytes, *, may_repeat: bool) -> Snapshot:
        text, expects_key = at.text + text, at.expects_key
        if expects_key and (found := _IN_TAG.match(text)):
            self._end_key(at.frame, found[1], may_repeat=may_repeat)
            expects_key = False
        return at._replace(text=text, expects_key=expects_key)

    def _structural(self, frame: Frame | None, byte: int) -> tuple[Frame | None, bool]:
        """Return the innermost object or array after a structural character, and True if a key comes next."""
        if byte == _BRACE:
            return Frame(frame, WrittenKeys(self._tokens.in_json)), True
        if byte == _BRACKET:
            return Frame(frame, None), False
        if byte == _COMMA:
            return frame, frame is not None and frame.keys is not None
        return (frame if byte == _COLON or frame is None else frame.outer), False

    def _after_marker(self, at: Snapshot, marker: bytes) -> Snapshot:
        if marker == _OPEN:
            return Snapshot(Within.TAG, self._root, expects_key=True)
        if marker != _SEPARATOR or at.within is not Within.TAG:
            return Snapshot(Within.BETWEEN, self._root)
        return Snapshot(Within.TEXT if at.text.endswith(_STRING_TYPE) else Within.VALUE, self._root)

    def _end_key(self, frame: Frame | None, key: bytes, *, may_repeat: bool) -> None:
        keys = None if frame is None else frame.keys
        if keys is None:
            return
        if key not in keys.texts:
            keys.add(key)
            self._log.append((keys, key))
            self.holding.update(self._tokens.whole.get(key, ()))
        elif not may_repeat:
            raise RepeatedKey


def _string_end(text: bytes, start: int, *, escaped: bool) -> tuple[int, bool]:
    """Return the index of the quote that ends a string, or the text's length, and True if it ends with a backslash."""
    rest = _REST_OF_STRING.match(text, start + escaped)
    stop = rest.end() if rest else start
    if stop >= len(text) or text[stop] == _QUOTE:
        return stop, False
    return len(text), True
