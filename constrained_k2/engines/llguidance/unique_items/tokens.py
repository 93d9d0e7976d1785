"""Finds the tokens that may end an item, or hold a whole one, among all tokens of a vocabulary."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from constrained_k2.vocabulary.bitmask import TokenSet, words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

Row = npt.NDArray[np.int32]
_WORD = rb"[-+.0-9A-Za-z]"  # a character of a number, of true, false or null
_END = rb"[ \t\r\n,\]}]"  # what ends these
_OUTSIDE = re.compile(rb'[ \t\r\n]*,?[ \t\r\n]*(?=["\-0-9tfn])')
_BEFORE_COMMA = re.compile(rb"[ \t\r\n]*,")
_WORD_AND_END = re.compile(rb"(" + _WORD + rb"*)" + _END)
# The tokens that matter here at all: one in ten.
_RELEVANT = re.compile(rb'["\[\]{}:,]|^' + _WORD + rb"+" + _END + rb"|^[ \t\r\n]*[,\-0-9tfn]")
# Tokens in which more than one thing happens. Each is tried out where it is allowed, so these may find too many.
_STRING_AND_COMMA = re.compile(rb'"[ \t\r\n]*,[ \t\r\n]*')
_STRING_AND_ITEM = re.compile(rb'"[ \t\r\n]*,[ \t\r\n]*(?:"[\x00-\xff]*"|' + _WORD + rb"+" + _END + rb")")
_WORD_AND_COMMA = re.compile(_WORD + rb"+[ \t\r\n]*,")
_WHOLE_AND_COMMA = re.compile(rb'[ \t\r\n]*,?[ \t\r\n]*"[\x00-\xff]*"[ \t\r\n]*,')
_QUOTED = re.compile(rb'"')
_STRING_AND_MORE = re.compile(rb'"[ \t\r\n]*[,:}\]]')
_STRUCTURE = re.compile(rb'[,:}\]]|"[^"]*"')
_BRACKET = re.compile(rb"[}\]]")
_MEMBER_AND_BRACKET = re.compile(rb"[:,\[{][\x00-\xff]*[}\]]")
_OPENED_ITEM = re.compile(rb"[{\[][\x00-\xff]*[,:}\]]")
_OPENED_ARRAY = re.compile(rb'\[[ \t\r\n]*["\-0-9tfn][^\[]*,')


class TokenIndex:
    """The tokens of one vocabulary by what they do to items. Constant."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        size = vocabulary.size
        self._sorted, self._ids = vocabulary.sorted_tokens
        self._closing: dict[bytes, list[int]] = {}  # from within a string: text up to a quote -> tokens
        self._ending: dict[bytes, list[int]] = {}  # from within a number: characters before its end -> tokens
        self._second_holding: dict[bytes, list[int]] = {}  # from within a string: a whole item after it -> tokens
        self._holding: dict[bytes, list[int]] = {}  # from outside: a whole item -> tokens
        outside: list[tuple[bytes, int]] = []
        second: list[tuple[bytes, int]] = []
        commas: list[int] = []
        ends = [token_id for byte in b" \t\r\n,]}" for token_id in self.going_on(bytes((byte,)))]
        patterns = (
            *(_STRING_AND_ITEM, _STRING_AND_COMMA, _WHOLE_AND_COMMA, _WORD_AND_COMMA, _OPENED_ARRAY),
            *(_STRING_AND_MORE, _STRUCTURE, _OPENED_ITEM, _QUOTED, _BRACKET, _MEMBER_AND_BRACKET),
        )
        multiple: list[list[int]] = [[] for _ in patterns]
        for raw, token_id in zip(self._sorted, self._ids, strict=True):
            if not _RELEVANT.search(raw):
                continue
            for quote in _quotes(raw):
                self._closing.setdefault(raw[: quote + 1], []).append(token_id)
            if word := _WORD_AND_END.match(raw):
                self._ending.setdefault(word[1], []).append(token_id)
            if _BEFORE_COMMA.match(raw):
                commas.append(token_id)
            if start := _OUTSIDE.match(raw):
                text = raw[start.end() :]
                outside.append((text, token_id))
                for item in _whole_items(text):
                    self._holding.setdefault(item, []).append(token_id)
            for comma in _STRING_AND_COMMA.finditer(raw):
                second.append((raw[comma.end() :], token_id))
                for item in _whole_items(raw[comma.end() :]):
                    self._second_holding.setdefault(item, []).append(token_id)
            for found, pattern in zip(multiple, patterns, strict=True):
                if pattern.search(raw):
                    found.append(token_id)
        self._outside, self._second = _Beginnings(outside), _Beginnings(second)
        self.after_comma = frozenset(commas)
        self.commas, self.ends = (_row(ids, size) for ids in (commas, ends))
        items, strings, wholes, words, arrays, *others = (np.array(ids, dtype=np.int64) for ids in multiple)
        self.string_and_item, self.string_and_comma, self.whole_and_comma = items, strings, wholes
        self.word_and_comma, self.opened_array = words, arrays
        self.string_and_more, self.structure, self.opened_item, self.quoted, self.bracket, self.member = others

    @property
    def closings(self) -> Collection[bytes]:
        """The rests of strings that some token begins with, quotes included."""
        return self._closing.keys()

    def closing(self, rest: bytes) -> Sequence[int]:
        """Return the tokens that begin with the rest of a string, its quote included."""
        return self._closing.get(rest, ())

    def ending(self, rest: bytes) -> Sequence[int]:
        """Return the tokens that begin with the rest of a number, and end it."""
        return self._ending.get(rest, ())

    def holding(self, text: bytes) -> Sequence[int]:
        """Return the tokens that hold this whole item, from outside."""
        return self._holding.get(text, ())

    def second(self, text: bytes) -> Sequence[int]:
        """Return the tokens that end a string and then hold this whole item."""
        return self._second_holding.get(text, ())

    def beginning(self, text: bytes) -> Sequence[int]:
        """Return the tokens with an item that begins so, from outside; none for the empty text."""
        return self._outside.find(text)

    def second_beginning(self, text: bytes) -> Sequence[int]:
        """Return the tokens that end a string, and then begin an item so; none for the empty text."""
        return self._second.find(text)

    def second_longer(self, text: bytes) -> Sequence[int]:
        """Return those of :meth:`second_beginning` that begin an item with more than a text."""
        return self._second.find(text, is_longer=True)

    def going_on(self, rest: bytes) -> Sequence[int]:
        """Return the tokens that begin with a text."""
        return self._ids[_range(self._sorted, rest)]


class _Beginnings:
    """Finds tokens by the beginning of a text."""

    def __init__(self, pairs: list[tuple[bytes, int]]) -> None:
        pairs.sort()
        self._texts = [text for text, _ in pairs]
        self._ids = [token_id for _, token_id in pairs]

    def find(self, beginning: bytes, *, is_longer: bool = False) -> Sequence[int]:
        if not beginning:
            return ()
        found = _range(self._texts, beginning)
        first = bisect_right(self._texts, beginning) if is_longer else found.start
        return self._ids[first : found.stop]


def allowed_of(ids: npt.NDArray[np.int64], row: Row) -> list[int]:
    """Return those of these tokens that a mask, int32 ``[words]``, allows."""
    if not len(ids):
        return []
    found: list[int] = ids[(row[ids >> 5] >> (ids & 31)) & 1 != 0].tolist()
    return found


def forbid(ids: Iterable[int], row: Row) -> None:
    """Remove tokens from a mask, int32 ``[words]``, in place."""
    words = row.view(np.uint32)
    for token_id in ids:
        words[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))


def _range(texts: Sequence[bytes], beginning: bytes) -> slice:
    first = bisect_left(texts, beginning)
    following = beginning.rstrip(b"\xff")
    last = bisect_left(texts, following[:-1] + bytes((following[-1] + 1,))) if following else len(texts)
    return slice(first, last)


def _quotes(text: bytes) -> Iterable[int]:
    at = text.find(b'"')
    while at >= 0:
        yield at
        at = text.find(b'"', at + 1)


def _whole_items(text: bytes) -> Iterable[bytes]:
    """Yield what may be a whole item at the beginning of a text."""
    if text.startswith(b'"'):
        yield from (text[: quote + 1] for quote in _quotes(text) if quote)
    elif word := _WORD_AND_END.match(text):
        yield word[1]


def _row(ids: Iterable[int], size: int) -> Row:
    row = np.zeros(words_per_row(size), dtype=np.int32)
    TokenSet(ids, size).fill(row)
    return row
