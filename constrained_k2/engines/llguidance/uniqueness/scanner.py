"""Scans arguments for object keys and ``uniqueItems`` array items, and raises if one is repeated.

A snapshot takes constant memory: after ``{"a":[1,"b`` it has the innermost object or array, which refers to the
enclosing one, and the size, hash and last bytes of the string ``b``.
"""

import re
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from constrained_k2.engines.llguidance.position import MARKER
from constrained_k2.engines.llguidance.uniqueness.items import ItemPaths
from constrained_k2.engines.llguidance.uniqueness.texts import EMPTY, SeenTexts, Text, identity_of
from constrained_k2.engines.llguidance.uniqueness.tokens import ALONE, TokenEffect, TokenEffects
from constrained_k2.engines.llguidance.xtml_text import BEFORE_KEY, OPEN, SEPARATOR
from constrained_k2.grammar.plan.item_paths import NO_PATH

_STRING_TYPE = b'type="string"'
_MAX_TAG = 64  # stored bytes of a tag, besides its key
_STRUCTURE = re.compile(rb'["{}\[\],:]')
_STRUCTURE_OR_WORD = re.compile(rb'["{}\[\],:\-0-9a-z]')
_REST_OF_WORD = re.compile(rb"[^ \t\r\n,\]}]*")
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\[\x00-\xff][^"\\]*)*')
_QUOTE, _BRACE, _BRACKET, _COMMA, _COLON = b'"{[,:'
_ALONE = {first: identity_of(word) for first, word in ALONE.items()}


class Within(IntEnum):
    """The part of the text that the next byte belongs to."""

    VALUE, STRING, KEPT, WORD = range(4)  # KEPT: a key or a compared string; WORD: another compared item
    TAG, ATTRIBUTE, AFTER_KEY, TEXT, BETWEEN = range(4, 9)  # only in XML arguments


_WATCHED = {
    Within.VALUE: TokenEffect.STRUCTURE | TokenEffect.QUOTE,
    Within.STRING: TokenEffect.BACKSLASH | TokenEffect.QUOTE,
    Within.TEXT: TokenEffect.QUOTE,
    Within.BETWEEN: TokenEffect.QUOTE,
}


class KeyScope(NamedTuple):
    """An open object or array."""

    outer: "KeyScope | None"
    is_object: bool
    texts: SeenTexts | None = None  # the keys, or the strings of an array whose items are compared
    words: SeenTexts | None = None  # the numbers and literals of an array whose items are compared
    path: int = NO_PATH
    number: int = 0  # the index of an array's current item
    alone: bytes = b""  # the first bytes with which only one possible literal begins

    def has_alone(self, byte: int) -> bool:
        """Return True if the only possible item with this first byte is in the array already."""
        return byte in self.alone and self.words is not None and self.words.has(_ALONE[byte])


class Snapshot(NamedTuple):
    """The scanner's state after a number of tokens; earlier snapshots stay valid when keys and items are undone."""

    within: Within
    frame: KeyScope | None = None
    path: int = NO_PATH  # the path of the expected value, as a node of ItemPaths
    keeps_next: bool = False  # True if the next string is a key or a compared item
    text: Text = EMPTY  # the key or compared item that is being written
    tag: bytes = b""
    escaped: bool = False  # True after a backslash in a string
    length: int = 0  # tokens
    logged: int = 0  # keys and items in the undo log

    @property
    def watched(self) -> int:
        """Flags (:class:`TokenEffect`) of the tokens that may change the scanner's state."""
        if self.escaped or (self.within is Within.VALUE and self.frame is not None and self.frame.words is not None):
            return TokenEffect.ANYWAY
        return _WATCHED.get(self.within, TokenEffect.ANYWAY)

    @property
    def texts(self) -> SeenTexts | None:
        """The seen keys or items that the current one may not repeat; None if no such text is being written."""
        if self.frame is None:
            return None
        if self.within is Within.WORD:
            return self.frame.words
        return self.frame.texts if self.within is Within.KEPT or self.within is Within.ATTRIBUTE else None

    @property
    def alone(self) -> list[bytes]:
        """The literals (``null``, ``true``, ``false``, ``0``) that the array already contains, and the current one."""
        frame = self.frame
        if frame is None or self.within not in {Within.VALUE, Within.WORD}:
            return []
        own = self.text.identity if self.within is Within.WORD else None
        return [ALONE[first] for first in frame.alone if frame.has_alone(first) or own == _ALONE[first]]


class Repetition(Exception):
    """A token repeats a key or an item, or leaves only continuations that repeat one."""


class Scanner:
    """Stores the seen keys and items of one call. Call :meth:`restore` before an earlier snapshot is used again."""

    def __init__(self, tokens: TokenEffects, paths: ItemPaths, *, is_xml: bool) -> None:
        self._tokens = tokens
        self._paths = paths
        self._log: list[Callable[[], None]] = []  # functions that undo one key or item each
        self._outer = KeyScope(None, True, SeenTexts(tokens.in_attribute)) if is_xml else None  # noqa: FBT003 - a field
        self.start = Snapshot(Within.BETWEEN, self._outer) if is_xml else Snapshot(Within.VALUE, None, paths.root)
        self.holding: set[int] = set()  # tokens that may contain a whole key or item seen in this call
        self._ended: list[bytes] = []  # the keys and items that ended inside the latest token

    def restore(self, at: Snapshot) -> None:
        """Undo the keys and items that were added after a snapshot."""
        while len(self._log) > at.logged:
            self._log.pop()()

    def follow(self, at: Snapshot, token: bytes, length: int, *, may_repeat: bool = False) -> Snapshot:
        """Return the snapshot after a token that the grammar allows, the last of ``length`` tokens.

        Raises:
            Repetition: A key or item is repeated; :meth:`restore` has to undo what the token added.
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
        within, frame, path, keeps_next, text, _, escaped, *_ = at
        start, end, reach = 0, len(token), self._tokens.reach
        while start < end:
            words = None if frame is None else frame.words
            if within is Within.VALUE:
                found = (_STRUCTURE if words is None else _STRUCTURE_OR_WORD).search(token, start)
                if found is None:
                    break
                byte, start = token[found.start()], found.end()
                if byte == _QUOTE:
                    within = Within.KEPT if keeps_next else Within.STRING
                elif byte in b"{}[],:":
                    frame, path, keeps_next = self._structural(frame, path, byte)
                else:
                    within, start = Within.WORD, start - 1
                    if frame is not None and frame.has_alone(byte) and not may_repeat:
                        raise Repetition
            elif within is Within.WORD:
                rest = _REST_OF_WORD.match(token, start)
                assert rest is not None
                text, start = text.longer(rest[0], reach, has_escapes=False), rest.end()
                if start < end:
                    self._keep(words, text, may_repeat=may_repeat)
                    within, keeps_next, text = Within.VALUE, False, EMPTY
            else:
                stop, escaped = _string_end(token, start, escaped=escaped)
                if within is Within.KEPT:
                    text = text.longer(token[start:stop], reach)
                if stop == end:
                    break
                if within is Within.KEPT and frame is not None:
                    text, keeps_next = text.ended(reach), False
                    self._keep(frame.texts, text, may_repeat=may_repeat)
                    path = self._paths.of_key(frame.path, text.identity) if frame.is_object else NO_PATH
                within, start, text = Within.VALUE, stop + 1, EMPTY
        return Snapshot(within, frame, path, keeps_next, text, b"", escaped, length, len(self._log))

    def _structural(self, frame: KeyScope | None, path: int, byte: int) -> tuple[KeyScope | None, int, bool]:
        """Return the container and value path after a structural character, and True if the next text is compared."""
        if byte == _BRACE:
            return KeyScope(frame, True, SeenTexts(self._tokens.in_json), None, path), NO_PATH, True  # noqa: FBT003
        if byte == _BRACKET:
            return self._array(frame, path)
        if frame is None or byte == _COLON:
            return frame, path, False
        if byte != _COMMA:
            return frame.outer, NO_PATH, False
        if not frame.is_object and frame.path != NO_PATH:
            frame = frame._replace(number=frame.number + 1)
            return frame, self._paths.of_item(frame.path, frame.number), frame.texts is not None
        return frame, NO_PATH, frame.is_object

    def _array(self, outer: KeyScope | None, path: int) -> tuple[KeyScope, int, bool]:
        alone, item = self._paths.compared(path), self._paths.of_item(path, 0)
        if alone is None:
            return KeyScope(outer, False, None, None, path), item, False  # noqa: FBT003 - a field
        strings, words = SeenTexts(self._tokens.in_json), SeenTexts(self._tokens.in_words)
        return KeyScope(outer, False, strings, words, path, alone=alone), item, True  # noqa: FBT003 - a field

    def _in_tag(self, at: Snapshot, token: bytes, *, may_repeat: bool) -> Snapshot:
        if at.within is Within.TEXT or at.within is Within.BETWEEN:
            return at
        within, tag, text = at.within, at.tag, at.text
        if within is Within.TAG:
            missing = len(BEFORE_KEY) - len(tag)
            tag, token = tag + token[:missing], token[missing:]
            if tag != BEFORE_KEY:
                return at._replace(tag=tag)
            within, tag = Within.ATTRIBUTE, b""
        if within is Within.ATTRIBUTE:
            stop = token.find(b'"')
            text = text.longer(token if stop < 0 else token[:stop], self._tokens.reach, has_escapes=False)
            if stop < 0:
                return at._replace(within=within, tag=tag, text=text)
            self._keep(None if self._outer is None else self._outer.texts, text, may_repeat=may_repeat)
            within, token = Within.AFTER_KEY, token[stop + 1 :]
        return at._replace(within=within, tag=(tag + token)[-_MAX_TAG:], text=text)  # the key leads to the value

    def _after_marker(self, at: Snapshot, marker: bytes) -> Snapshot:
        if marker == OPEN:
            return Snapshot(Within.TAG, self._outer)
        if marker != SEPARATOR or at.within is not Within.AFTER_KEY:
            return Snapshot(Within.BETWEEN, self._outer)
        if at.tag.endswith(_STRING_TYPE):
            return Snapshot(Within.TEXT, self._outer)
        return Snapshot(Within.VALUE, self._outer, self._paths.of_key(self._paths.root, at.text.identity))

    def _keep(self, texts: SeenTexts | None, text: Text, *, may_repeat: bool) -> None:
        """Record a key or an item that has ended."""
        if texts is None:
            return
        if text not in texts:
            texts.add(text)
            self._log.append(partial(texts.remove, text))
            if (whole := text.whole) is not None:
                self._ended.append(whole)
        elif not may_repeat:
            raise Repetition

    def hold(self) -> None:
        """Add to ``holding`` the tokens that contain a key or item that the latest (accepted) token completed."""
        for text in self._ended:
            self.holding.update(self._tokens.whole.get(text, ()))


def _string_end(text: bytes, start: int, *, escaped: bool) -> tuple[int, bool]:
    """Return the index of the quote that ends a string, or the text's length, and True if it ends with a backslash."""
    rest = _REST_OF_STRING.match(text, start + escaped)
    stop = rest.end() if rest else start
    if stop >= len(text) or text[stop] == _QUOTE:
        return stop, False
    return len(text), True
