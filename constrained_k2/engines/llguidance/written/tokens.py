"""Finds the tokens that may end a key or an item, or hold a whole one, among all tokens of a vocabulary."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.written.spelled import unescaped
from constrained_k2.vocabulary.bitmask import TokenSet, words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]
Row = npt.NDArray[np.int32]
_BLANKS = rb"[ \t\r\n]*"
_TWO_KEYS = re.compile(rb'"' + _BLANKS + rb':[\x00-\xff]*[,{][ \t\r\n]*"[\x00-\xff]*"')
_COMMA_AND_ITEM = re.compile(rb"," + _BLANKS + rb'["\-0-9tfn]')
_BEFORE_ITEM = re.compile(_BLANKS + rb",?" + _BLANKS + rb'(["\-0-9tfn][\x00-\xff]*)?')
# A comma before a whole item, or in an array that the token opens.
_TWO_ITEMS = re.compile(rb"," + _BLANKS + rb'(?:"[\x00-\xff]*"|[-+.0-9A-Za-z]+[ \t\r\n,\]}])|\[[\x00-\xff]*,')
_STRING = re.compile(rb'"([^"\\]*(?:\\[\x00-\xff][^"\\]*)*)"')
_TO_QUOTE = re.compile(rb'([^"\\]*(?:\\[\x00-\xff][^"\\]*)*)"')
_WORD = re.compile(rb"(?<![-+.0-9A-Za-z])[-+.0-9A-Za-z]+(?=[ \t\r\n,\]}])")
_TO_END = re.compile(rb"([-+.0-9A-Za-z]*)[ \t\r\n,\]}]")
_RELEVANT = re.compile(rb'["\\{}\[\],:]|[-+.0-9A-Za-z][ \t\r\n]')  # of these tokens alone is more than that to tell
_STRUCTURE = frozenset(b"{}[],:")
_MAX_CACHED = 4096


class Matters:
    """Why a token may change where a text stands: bits, as plain integers, since each token of a text is looked up."""

    ANYWAY = 1  # each does: within a key, a compared item or a tag
    STRUCTURE = 2
    BACKSLASH = 4
    QUOTE = 8  # also special tokens


class Closing:
    """The tokens that end a string or word, by its rest that they begin with."""

    def __init__(self, ids: Mapping[bytes, list[int]]) -> None:
        self.ids: dict[bytes, Ids] = {rest: np.array(found, dtype=np.int64) for rest, found in ids.items()}
        self.longest = max(map(len, self.ids), default=0)  # bytes

    def rests_of(self, text: bytes) -> Iterator[tuple[bytes, Ids]]:
        """Yield the rests of a text, but the empty one, that some token begins with, and these tokens."""
        for size in range(1, min(self.longest, len(text)) + 1):
            rest = text[-size:]
            if (ids := self.ids.get(rest)) is not None:
                yield rest, ids


class WrittenTokens:
    """The tokens of one vocabulary by what they do to keys and items. Constant.

    Attributes:
        matters: By token id, the bits of :class:`Matters`.
        quoted: The tokens that hold a quote.
        in_json: The tokens that end a string in JSON, by the rest of the string without escapes.
        in_words: The tokens that end a number or word, by the rest of it.
        in_attribute: The tokens that end an attribute's value, by the rest of the value.
        whole: The tokens that may hold a whole key, string or word, by its text.
        two_keys: The tokens that may end two keys.
        with_comma: The tokens that hold a comma.
        begin_item: The tokens with a comma that may begin an item, by the bytes of it that they have more than.
        two_items: The tokens that may end two items, or that may open an array.
        commas: A mask of the tokens that may begin with a comma.
        reach: The bytes at the end of a key or string that tokens can tell apart.
        longest: The bytes of the longest token.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        size = vocabulary.size
        self.words = words_per_row(size)
        self.matters = bytearray([Matters.ANYWAY | Matters.QUOTE]) * size
        self._sorted, self._ids = vocabulary.sorted_tokens
        self.longest = max(map(len, self._sorted), default=0)
        quoted, with_comma, two_keys, two_items = (list[int]() for _ in range(4))
        begin_item: list[tuple[int, int]] = []  # bytes of the item, token id
        in_items: list[tuple[bytes, int]] = []  # the part of a token that begins an item, token id
        in_json, in_words, in_attribute, whole = (dict[bytes, list[int]]() for _ in range(4))
        for raw, token_id in zip(self._sorted, self._ids, strict=True):
            self.matters[token_id] = Matters.ANYWAY
            if (found := _BEFORE_ITEM.match(raw)) and found[1]:
                in_items.append((found[1], token_id))
            if not _RELEVANT.search(raw):
                continue
            self.matters[token_id] |= _matters(raw)
            for text in set(_whole_texts(raw)):
                whole.setdefault(text, []).append(token_id)
            if b"," in raw:
                with_comma.append(token_id)
            if begun := _COMMA_AND_ITEM.search(raw):
                begin_item.append((len(raw) - begun.end() + 1, token_id))
                if _TWO_ITEMS.search(raw):
                    two_items.append(token_id)
            if (word := _TO_END.match(raw)) and word[1]:
                in_words.setdefault(word[1], []).append(token_id)
            if b'"' not in raw:
                continue
            quoted.append(token_id)
            in_attribute.setdefault(raw[: raw.index(b'"')], []).append(token_id)
            if rest := _TO_QUOTE.match(raw):
                in_json.setdefault(unescaped(rest[1]), []).append(token_id)
            if _TWO_KEYS.search(raw):
                two_keys.append(token_id)
        in_words[b""] = [token_id for byte in b" \t\r\n,]}" for token_id in self.going_on(bytes((byte,)))]
        self.quoted, self.with_comma, self.two_keys, self.two_items = (
            np.array(ids, dtype=np.int64) for ids in (quoted, with_comma, two_keys, two_items)
        )
        self.begin_item: list[Ids] = [
            np.array([token_id for length, token_id in begin_item if length > fewer], dtype=np.int64)
            for fewer in range(max(begin_item, default=(0, 0))[0] + 1)
        ]
        self.in_json, self.in_words, self.in_attribute = map(Closing, (in_json, in_words, in_attribute))
        self.whole: Mapping[bytes, list[int]] = whole
        self.reach = max(self.in_json.longest, self.in_attribute.longest, max(map(len, whole), default=0)) + 1
        before_commas = list(self._before(b" \t\r\n"))
        commas = [token_id for before in before_commas for token_id in self.going_on(before + b",")]
        self.commas = np.zeros(self.words, dtype=np.int32)
        TokenSet(commas, size).fill(self.commas)
        self.ids_going_on = lru_cache(_MAX_CACHED)(self._ids_going_on)  # shared by all items that end so
        self._in_items = sorted(in_items)

    def _before(self, bytes_: bytes) -> Iterator[bytes]:
        """Yield the texts of these bytes that some token goes on from."""
        waiting = [b""]
        while waiting:
            before = waiting.pop()
            yield before
            waiting += (found for byte in bytes_ if self.going_on(found := before + bytes((byte,))))

    def going_on(self, rest: bytes) -> Sequence[int]:
        """Return the tokens that begin with these bytes, at least one."""
        first = bisect_left(self._sorted, rest)
        return self._ids[first : bisect_left(self._sorted, _after(rest), first)]

    def _ids_going_on(self, rest: bytes) -> Ids:
        return np.array(self.going_on(rest), dtype=np.int64)

    def beginning(self, text: bytes) -> list[int]:
        """Return the tokens that begin an item so, also behind a comma."""
        if not text:
            return []
        first = bisect_left(self._in_items, (text,))
        last = bisect_left(self._in_items, (_after(text),), first)
        return [token_id for _, token_id in self._in_items[first:last]]


def _matters(raw: bytes) -> int:
    found = 0 if _STRUCTURE.isdisjoint(raw) else Matters.STRUCTURE
    return found | (Matters.BACKSLASH if b"\\" in raw else 0) | (Matters.QUOTE if b'"' in raw else 0)


def _after(text: bytes) -> bytes:
    """Return the first text after all that begin with this one; it does not end with 0xFF."""
    return text[:-1] + bytes((text[-1] + 1,))


def _whole_texts(raw: bytes) -> Iterator[bytes]:
    """Yield what may be a whole key, string or word in a token, as JSON and as an attribute."""
    at = raw.find(b'"')
    while at >= 0:
        if found := _STRING.match(raw, at):
            yield unescaped(found[1])
        end = raw.find(b'"', at + 1)
        if end >= 0:
            yield raw[at + 1 : end]
        at = end
    for word in _WORD.finditer(raw):
        yield word[0]
