"""The states of texts on the way to a match of a pattern, by partial derivatives.

A term is a sequence of items that remain to be matched, and a state the set of terms that a text may have come to.
Terms and states are made when a text first gets there.
"""

from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import Any

from constrained_k2.grammar.patterns import (
    Untranslatable,
    alternatives_of,
    characters_of,
    parsed_ways,
    repetition_of,
)
from constrained_k2.grammar.spelling import TOP

_MAX_TERMS = 4096  # of one pattern, and states
_FORMAT_SCALE = 16  # of these limits, for the patterns of formats, which are a few
_MAX_WIDTH = 64  # terms of one state
_MAX_MOVES = 512  # terms that are expanded, or steps that are compared, for one character
_MAX_WORK = 500_000  # steps that are compared for one pattern: a third of a second
_TERM_BYTES = 500  # estimate, with its moves

_Ranges = list[tuple[int, int]]
_Item = tuple[Any, ...]  # ("character", ranges), ("repetition", items, least, most) or ("alternatives", lists of items)


class TooManyStates(Exception):
    """A pattern has more states than are tracked."""


class PatternStates:
    """The states of the texts on the way to contain a match of one pattern, as numbers.

    Raises:
        Untranslatable: The pattern uses a feature that is not tracked; also later, by :meth:`after`.
    """

    def __init__(self, pattern: str, scale: int = 1) -> None:
        self._items: list[_Item] = []
        self._item_numbers: dict[tuple[Any, ...], int] = {}
        self._ways = parsed_ways(pattern)  # items are known by their ids
        self._max_terms, self._max_moves, self._work = scale * _MAX_TERMS, scale * _MAX_MOVES, scale * _MAX_WORK
        self._lock = Lock()
        self._terms: list[tuple[int, int]] = [(-1, -1)]  # the first item and the term of the rest; number 0 is the end
        self._term_numbers: dict[tuple[int, int], int] = {}
        self._moves: dict[int, list[tuple[_Ranges, int]]] = {}
        self._states: list[frozenset[int]] = []
        self._state_numbers: dict[frozenset[int], int] = {}
        self._expanded = 0
        anything = self._item(("character", [(0, TOP)]), ("any",))
        self._any_text = self._term(self._item(("repetition", anything, 0, None), ("any text",)), 0)
        self.span = max((_span(items) for _, items, _ in self._ways), default=0)
        starts = set()
        for is_start, items, is_end in self._ways:
            term = self._before(items, 0 if is_end else self._any_text)
            starts.add(term if is_start else self._term(self._terms[self._any_text][0], term))
        self.start = self._state(starts)

    def after(self, state: int, character: str) -> int:
        """Return the state after one more character.

        Raises:
            TooManyStates: A limit is met.
        """
        code = ord(character)
        with self._lock:
            self._expanded = 0
            moves = [move for term in self._states[state] for move in self._moves_from(term)]
            self._work -= len(moves)
            if len(moves) > self._max_moves or self._work < 0:
                raise TooManyStates
            return self._state({term for ranges, term in moves if any(low <= code <= high for low, high in ranges)})

    def _moves_from(self, term: int) -> list[tuple[_Ranges, int]]:
        moves = self._moves.get(term)
        if moves is None:
            moves = []
            self._expand(term, moves, set())
            self._moves[term] = moves
        return moves

    @property
    def cost_bytes(self) -> int:
        """Estimated size."""
        return _TERM_BYTES * len(self._terms)

    def is_decided(self, state: int) -> bool | None:
        """Return True if all continuations match, False if none does, and None if that depends on them."""
        terms = self._states[state]
        return False if not terms else True if self._any_text in terms else None

    def _state(self, terms: set[int]) -> int:
        if self._any_text in terms:
            terms = {self._any_text}
        if len(terms) > _MAX_WIDTH:
            raise TooManyStates
        number = self._state_numbers.setdefault(frozenset(terms), len(self._states))
        if number == len(self._states):
            if number >= self._max_terms:
                raise TooManyStates
            self._states.append(frozenset(terms))
        return number

    def _expand(self, term: int, moves: list[tuple[_Ranges, int]], expanding: set[int]) -> None:
        """Add the steps from a term. Parts that may be empty are passed; ``expanding`` ends their cycles."""
        if not term or term in expanding:
            return
        self._expanded += 1
        if self._expanded > self._max_moves:
            raise TooManyStates
        expanding.add(term)
        number, rest = self._terms[term]
        kind, *parts = self._items[number]
        if kind == "character":
            moves.append((parts[0], rest))
        elif kind == "alternatives":
            for way in parts[0]:
                self._expand(self._before(way, rest), moves, expanding)
        else:
            inner, least, most = parts
            if not least:
                self._expand(rest, moves, expanding)
            if most is None or most > 0:
                fewer, less = max(least - 1, 0), None if most is None else most - 1
                again = self._item(("repetition", inner, fewer, less), ("repetition", self._key(inner), fewer, less))
                following = self._term(again, rest)
                before = self._term(inner, following) if isinstance(inner, int) else self._before(inner, following)
                self._expand(before, moves, expanding)

    def _before(self, items: Iterable[Any], rest: int) -> int:
        """Return the term of parsed items before a term."""
        for item in reversed(list(items)):
            rest = self._term(self._read(item), rest)
        return rest

    def _read(self, parsed: Any) -> int:
        """Return the number of a parsed item."""
        operation, argument = parsed
        known = self._item_numbers.get(("parsed", id(parsed)))
        if known is not None:
            return known
        if (ranges := characters_of(operation, argument)) is not None:
            return self._item(("character", ranges), ("parsed", id(parsed)))
        if (ways := alternatives_of(operation, argument)) is not None:
            return self._item(("alternatives", ways), ("parsed", id(parsed)))
        if (found := repetition_of(operation, argument)) is not None:
            least, most, inner = found
            return self._item(("repetition", inner, least, most), ("repetition", self._key(inner), least, most))
        raise Untranslatable(str(operation).lower())

    @staticmethod
    def _key(inner: Any) -> tuple[str, int]:
        return ("item", inner) if isinstance(inner, int) else ("items", id(inner))

    def _item(self, item: _Item, key: tuple[Any, ...]) -> int:
        number = self._item_numbers.setdefault(key, len(self._items))
        if number == len(self._items):
            self._items.append(item)
        return number

    def _term(self, item: int, rest: int) -> int:
        number = self._term_numbers.setdefault((item, rest), len(self._terms))
        if number == len(self._terms):
            if number >= self._max_terms:
                raise TooManyStates
            self._terms.append((item, rest))
        return number


def _span(items: Iterable[Any]) -> int:
    """Return an upper bound of the characters that a match needs after any beginning of one."""
    total = 0
    for operation, argument in items:
        if (ways := alternatives_of(operation, argument)) is not None:
            total += max(map(_span, ways), default=0)
        elif (found := repetition_of(operation, argument)) is not None:
            total += _span(found[2]) * max(found[0], 1)
        else:
            total += 1
    return total


@cache
def of_format(pattern: str) -> PatternStates:
    """Return the states of a format's pattern, which all grammars share: there are a few."""
    return PatternStates(pattern, _FORMAT_SCALE)
