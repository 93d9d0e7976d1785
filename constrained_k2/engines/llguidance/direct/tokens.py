"""A lazily built trie of a vocabulary's tokens by their bytes, without the special tokens.

Within a number, only the branches of digits, signs, ``.``, ``e`` and of the bytes that may follow a number are visited.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.direct.lexemes import (
    WHITESPACE,
    NumberState,
    end_of_characters,
    following_bytes,
    is_complete,
    is_unfinished,
    number_after,
)
from constrained_k2.engines.llguidance.direct.rules import NumberKind
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

T = TypeVar("T")
Ids = npt.NDArray[np.int64]
Row = npt.NDArray[np.int32]
Range = tuple[int, int, int]
"""Tokens ``[first, end)`` in the order of their bytes, and the depth: the number of leading bytes already followed."""
_NO_IDS: Ids = np.zeros(0, dtype=np.int64)
_DIGITS = re.compile(rb"[0-9]+")
_MAX_WORDS = 4096
QUOTE = 0x22
Bounds = tuple[tuple[int, int], ...]
"""Ranges of bytes, each ``[low, high)``."""
NUMBER_BYTES: Bounds = ((0x2B, 0x3A), (0x45, 0x46), (0x65, 0x66))  # signs, point and digits; E; e


class Split(NamedTuple):
    """The tokens below a node that continue a lexeme.

    In a string, the token ``ab`` is inside, ``"}`` is at_once, ``ab"}`` is later. In a number: ``2``, ``}``, ``2}``.
    """

    inside: Row  # tokens that end inside the lexeme: a mask, [words]
    at_once: "TokenNode"  # tokens that end the lexeme at their first byte, and continue after its end
    later: "TokenNode"  # tokens that add bytes to the lexeme, and continue after its end


class TokenNode:
    """A trie node, or a union of nodes: the remaining bytes of the tokens in some ranges. Results are cached."""

    __slots__ = ("_children", "_ids", "_known", "index", "ranges")

    def __init__(self, index: "TokenTrie", ranges: Iterable[Range]) -> None:
        self.index = index
        self.ranges = tuple(ranges)
        self._children: dict[int, TokenNode | None] = {}
        self._known: dict[object, Any] = {}  # cached results, by method and arguments
        self._ids: Ids | None = None

    @property
    def ids(self) -> Ids:
        """The tokens that end here."""
        if self._ids is None:
            tokens, ids = self.index.tokens, self.index.ids
            found = []
            for first, end, depth in self.ranges:
                at = first
                while at < end and len(tokens[at]) == depth:
                    found.append(ids[at])
                    at += 1
            self._ids = np.array(found, dtype=np.int64)
        return self._ids

    @property
    def is_open(self) -> bool:
        """True if some token continues from here."""
        return any(len(self.index.tokens[end - 1]) > depth for _, end, depth in self.ranges)

    def child(self, byte: int) -> "TokenNode | None":
        """Return the node after one more byte; None if no token has it."""
        try:
            return self._children[byte]
        except KeyError:
            node = TokenNode(self.index, self._narrowed(byte, byte + 1, 1))
            found = self._children[byte] = node if node.ranges else None
            return found

    def characters(self, *, any_spelling: bool, begun: bytes = b"") -> Split:
        """Split the tokens that continue a JSON string, after the bytes ``begun`` of an unfinished character."""
        key = "characters", any_spelling, begun
        return self._once(key, lambda: self._characters(begun, any_spelling=any_spelling))

    def number(self, kind: NumberKind, state: NumberState) -> Split:
        """Split the tokens that continue a number."""
        return self._once((kind, state), lambda: self._number(kind, state))

    def blanks(self, most: int) -> "tuple[Row, TokenNode]":
        """Return the tokens of 1 to ``most`` whitespace bytes, and the node after 0 to ``most`` such bytes."""
        return self._once(("blanks", most), lambda: self._after_blanks(most))

    def beginning(self, bounds: Bounds) -> Sequence[Range]:
        """Return the tokens whose next byte is in one of the bounds."""
        return self._once(bounds, lambda: [each for low, high in bounds for each in self._narrowed(low, high, 0)])

    def _once(self, key: object, compute: Callable[[], T]) -> T:
        found: T | None = self._known.get(key)
        if found is None:
            found = self._known[key] = compute()
        return found

    def _narrowed(self, low: int, high: int, more: int) -> Iterable[Range]:
        """Yield the ranges of tokens whose next byte is in ``[low, high)``, with ``more`` added to the depth."""
        tokens = self.index.tokens
        for first, end, depth in self.ranges:
            before = tokens[first][:depth]
            start = bisect_left(tokens, before + bytes((low,)), first, end)
            stop = bisect_left(tokens, before + bytes((high,)), start, end) if high < 256 else end
            if start < stop:
                yield start, stop, depth + more

    def _characters(self, begun: bytes, *, any_spelling: bool) -> Split:
        tokens, ids = self.index.tokens, self.index.ids
        inside: list[int] = []
        at_once: list[Range] = []
        later: list[Range] = []
        ranges: Iterable[Range] = self.ranges
        if begun:
            following = following_bytes(begun, any_spelling=any_spelling)
            ranges = self.beginning(tuple((byte, byte + 1) for byte in following))
        for first, end, depth in ranges:
            for at in range(first, end):
                text, start = tokens[at], depth
                if begun:
                    text, start = begun + text[depth:], 0
                stop = end_of_characters(text, start, any_spelling=any_spelling)
                if stop == len(text):
                    if stop > start:
                        inside.append(ids[at])
                elif text[stop] == QUOTE:
                    ended = at_once if stop == start else later
                    ended.append((at, at + 1, stop + 1 + len(tokens[at]) - len(text)))
                elif is_unfinished(text[stop:], any_spelling=any_spelling):
                    inside.append(ids[at])
        return Split(self.index.row(inside), TokenNode(self.index, at_once), TokenNode(self.index, later))

    def _number(self, kind: NumberKind, state: NumberState) -> Split:
        tokens, ids = self.index.tokens, self.index.ids
        inside: list[int] = []
        later: list[Range] = []
        for first, end, depth in self.beginning(NUMBER_BYTES):
            for at in range(first, end):
                token, current = tokens[at], state
                for place in range(depth, len(token)):
                    following = number_after(kind, current, token[place])
                    if following is None:
                        if place > depth and is_complete(current):
                            later.append((at, at + 1, place))
                        break
                    current = following
                else:
                    inside.append(ids[at])
        at_once = self if is_complete(state) else TokenNode(self.index, ())
        return Split(self.index.row(inside), at_once, TokenNode(self.index, later))

    def _after_blanks(self, most: int) -> "tuple[Row, TokenNode]":
        inside: list[int] = []
        after = list(self.ranges)
        level: list[TokenNode] = [self]
        for _ in range(most):
            level = [child for node in level for byte in WHITESPACE if (child := node.child(byte)) is not None]
            for node in level:
                inside.extend(node.ids.tolist())
                after.extend(node.ranges)
        return self.index.row(inside), TokenNode(self.index, after)


class TokenTrie:
    """The token trie of one vocabulary. It also knows how far one token can reach past the end of a value."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens, self.ids = vocabulary.sorted_tokens
        self.bytes_of = vocabulary.ordinary_bytes
        self._words = words_per_row(vocabulary.size)
        self.root = TokenNode(self, ((0, len(self.tokens), 0),))
        self.endings, self.key_starts, self.depth, self.digits, commas = _seen(self.tokens)
        self.reach = commas + 1  # one more than the items that a token can end
        self._words_known: dict[bytes, tuple[Ids, TokenNode | None]] = {}

    def word(self, text: bytes) -> "tuple[Ids, TokenNode | None]":
        """Return the tokens that are prefixes of a text, and the node after it; None if no token starts with it."""
        found = self._words_known.get(text)
        if found is None:
            ids: list[Ids] = []
            node: TokenNode | None = self.root
            for byte in text:
                node = node and node.child(byte)
                if node is None:
                    break
                ids.append(node.ids)
            if len(self._words_known) >= _MAX_WORDS:
                self._words_known.clear()
            found = self._words_known[text] = (np.concatenate(ids or [_NO_IDS]), node)
        return found

    def row(self, ids: Sequence[int]) -> Row:
        """Return a mask of these tokens, int32 ``[words]``."""
        row = self.empty()
        add_ids(row, np.array(ids, dtype=np.int64))
        return row

    def empty(self) -> Row:
        """Return a mask of no tokens, int32 ``[words]``."""
        return np.zeros(self._words, dtype=np.int32)


def add_ids(row: Row, ids: Ids) -> None:
    """Add tokens to a mask, int32 ``[words]``, in place."""
    if len(ids):
        np.bitwise_or.at(row.view(np.uint32), ids >> 5, np.uint32(1) << (ids & 31).astype(np.uint32))


def _seen(tokens: Iterable[bytes]) -> tuple[frozenset[bytes], frozenset[int], int, int, int]:
    """Return the texts before a quote, the bytes after ``,"``, and a token's most brackets, digits and commas."""
    endings, starts = set[bytes](), set[int]()
    depth = digits = commas = 0
    for token in tokens:
        if b"}" in token or b"]" in token:
            depth = max(depth, token.count(b"}") + token.count(b"]"))
        commas = max(commas, token.count(b","))
        if _DIGITS.search(token):
            digits = max(digits, *map(len, _DIGITS.findall(token)))
        place = token.find(b'"')
        while place >= 0:
            endings.update(token[first:place] for first in range(place + 1))
            if place + 1 < len(token) and token[:place].rstrip(WHITESPACE).endswith(b","):
                starts.add(token[place + 1])
            place = token.find(b'"', place + 1)
    return frozenset(endings), frozenset(starts), depth, digits, commas
