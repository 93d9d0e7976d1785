"""Runs regexes as lazily built DFAs, by partial derivatives.

A term is a sequence of regex items that remain to be matched. A DFA state is the set of terms that a prefix may have
reached. Terms and states are made when a text first reaches them.

    ^ab*$               begins in {ab*}; after a, and after each b, it is in {b*}
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from collections.abc import Iterator
from functools import cache, lru_cache
from math import inf
from threading import Lock
from typing import Any

from constrained_k2.grammar.patterns.characters import Ranges, Untranslatable, complement, holds, property_of, ranges_of
from constrained_k2.grammar.patterns.tree import REPEATS, Item, Items, parse, parts, walk
from constrained_k2.grammar.spelling import TOP

_MAX_TERMS = 4096  # max terms, and max states, of one pattern
_MAX_WIDTH = 64  # max terms of one state
_MAX_MOVES = 512  # max terms expanded, or steps compared, for one character
_MAX_WORK = 500_000  # max steps compared for one pattern: a third of a second
_FORMAT_SCALE = 16  # multiplies the limits on terms, moves and work for the patterns of formats, which are few
_TERM_BYTES = 500  # estimated size of a term and its moves
_GROUPS = (sre.BRANCH, sre.SUBPATTERN)
_START, _END = (sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_END)
_ANY_CHARACTER: Items = [(sre.IN, [(sre.RANGE, (0, TOP))])]
_ANY_TEXT = (sre.MAX_REPEAT, (0, sre.MAXREPEAT, _ANY_CHARACTER))
_DOT = [(0, 9), (11, 12), (14, 0x2027), (0x202A, TOP)]


class TooManyStates(Exception):
    """A pattern has more states than are tracked."""


class PatternStates:
    """The DFA of the texts that contain a match of one pattern. States are numbers. Thread-safe.

    Args:
        pattern: The pattern, as text or parsed.
        scale: Multiplies the limits on terms, states, moves and work.
        is_metered: False to limit only the work for each character, not the work for all texts together.

    Attributes:
        start: The state before the first character.
        span: An upper bound on the characters that complete a match, from any state from which a match is possible.

    Raises:
        Untranslatable: The pattern uses a feature that is not tracked; :meth:`after` may also raise it later.
        TooManyStates: A limit is exceeded; :meth:`after` may also raise it later.
    """

    def __init__(self, pattern: str | Items, scale: int = 1, *, is_metered: bool = True) -> None:
        self._root = parse(pattern) if isinstance(pattern, str) else pattern  # kept: its items are known by their ids
        self._max_terms, self._max_moves = scale * _MAX_TERMS, scale * _MAX_MOVES
        self._work = scale * _MAX_WORK if is_metered else inf
        self._items: list[tuple[Any, ...]] = []  # items as :func:`_read` returns them
        self._item_numbers: dict[tuple[Any, ...], int] = {}
        self._terms: list[tuple[int, int]] = [(-1, -1)]  # the first item and the term of the rest; number 0 is the end
        self._term_numbers: dict[tuple[int, int], int] = {}
        self._moves: dict[
            int, list[tuple[Ranges, int]]
        ] = {}  # term -> (characters that it begins with, term after them)
        self._states: list[frozenset[int]] = []
        self._state_numbers: dict[frozenset[int], int] = {}
        self._expanded = 0
        self._lock = Lock()
        self._any_text = self._before([_ANY_TEXT], 0)
        starts = set()
        for is_start, items in _beginnings(self._root):
            is_end = bool(items) and items[-1] == _END
            term = self._before(items[:-1], 0) if is_end else self._before(items, self._any_text)
            starts.add(term if is_start else self._before([_ANY_TEXT], term))
        self.start = self._state(starts)
        self.span = _span(self._root)

    def after(self, state: int, character: str) -> int:
        """Return the state after one more character.

        Raises:
            TooManyStates: A limit is exceeded.
        """
        code = ord(character)
        with self._lock:
            self._expanded = 0
            moves = [move for term in self._states[state] for move in self._moves_from(term)]
            self._work -= len(moves)
            if len(moves) > self._max_moves or self._work < 0:
                raise TooManyStates
            return self._state({term for ranges, term in moves if holds(ranges, code)})

    def terms(self, state: int) -> list[int]:
        """Return the terms of a state, in order."""
        return sorted(self._states[state])

    def moves(self, term: int) -> list[tuple[Ranges, int]]:
        """Return the steps from a term: (characters, the term after them). Raises as :meth:`after` does."""
        with self._lock:
            self._expanded = 0
            return self._moves_from(term)

    def may_end(self, term: int) -> bool:
        """Return True if a text that has reached a term matches. Raises as :meth:`after` does."""
        with self._lock:
            self._expanded = 0
            return self._may_end(term, set())

    def _may_end(self, term: int, seen: set[int]) -> bool:
        if not term or term in seen:
            return not term
        self._expanded += 1
        if self._expanded > self._max_moves:
            raise TooManyStates
        seen.add(term)
        number, rest = self._terms[term]
        kind, *arguments = self._items[number]
        if kind == "alternatives":
            return any(self._may_end(self._before(each, rest), seen) for each in arguments[0])
        if kind == "repetition" and arguments[1]:
            return self._may_end(self._before(arguments[0], rest), seen)  # all iterations can be empty if one can
        return kind != "character" and self._may_end(rest, seen)

    def _moves_from(self, term: int) -> list[tuple[Ranges, int]]:
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
        """Return True if all continuations match, False if none does, and None if it depends on the continuation."""
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

    def _expand(self, term: int, moves: list[tuple[Ranges, int]], expanding: set[int]) -> None:
        """Add the steps from a term. Parts that may be empty are skipped; ``expanding`` breaks cycles of such parts."""
        if not term or term in expanding:
            return
        self._expanded += 1
        if self._expanded > self._max_moves:
            raise TooManyStates
        expanding.add(term)
        number, rest = self._terms[term]
        kind, *arguments = self._items[number]
        if kind == "character":
            moves.append((arguments[0], rest))
        elif kind == "alternatives":
            for each in arguments[0]:
                self._expand(self._before(each, rest), moves, expanding)
        elif kind == "repetition":
            inner, least, most = arguments
            if not least:
                self._expand(rest, moves, expanding)
            if most is None or most > 0:
                again = ("repetition", inner, max(least - 1, 0), None if most is None else most - 1)
                following = self._term(self._item(again, _key(again)), rest)
                self._expand(self._before(inner, following), moves, expanding)

    def _before(self, items: Items, rest: int) -> int:
        """Return the term of parsed items that the term ``rest`` follows."""
        for item in reversed(items):
            number = self._item_numbers.get(("parsed", id(item)))
            if number is None:
                read = _read(item)
                number = self._item_numbers["parsed", id(item)] = self._item(read, _key(read) or ("item", id(item)))
            rest = self._term(number, rest)
        return rest

    def _item(self, item: tuple[Any, ...], key: tuple[Any, ...]) -> int:
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


def _read(item: Item) -> tuple[Any, ...]:
    """Return an item as a ``character`` with its ranges, ``alternatives``, a ``repetition``, or the ``end``."""
    operation, argument = item
    if operation in _GROUPS:
        return "alternatives", parts(item)
    if operation in REPEATS:
        least, most, inner = argument
        return "repetition", inner, least, None if most is sre.MAXREPEAT else most
    if item == _END:
        return ("end",)
    if operation is sre.ANY:
        return "character", _DOT
    if operation is sre.IN:
        return "character", _ranges_of(tuple(argument))
    if operation is sre.LITERAL:
        ranges = [(argument, argument)]
    elif operation is sre.NOT_LITERAL:
        ranges = complement([(argument, argument)])
    else:
        raise Untranslatable(str(operation).lower())
    if property_of(argument):
        raise Untranslatable("a character property")
    return "character", ranges


@lru_cache(1024)
def _ranges_of(members: tuple[Any, ...]) -> Ranges:
    """Return the code points of a character class, sorted."""
    ranges = ranges_of(members)
    if any(property_of(low) for low, _ in ranges):
        raise Untranslatable("a character property")
    return complement(complement(ranges))


def _key(read: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key that equal repetitions share; empty for other items."""
    kind, *arguments = read
    return (kind, id(arguments[0]), *arguments[1:]) if kind == "repetition" else ()


def _beginnings(items: Items) -> Iterator[tuple[bool, Items]]:
    """Yield the alternatives of a pattern: (True if anchored at the start, the items after the anchor)."""
    if items and items[0] == _START:
        yield True, items[1:]
    elif items and items[0][0] in _GROUPS and _START in walk(items[:1]):
        for each in parts(items[0]):
            yield from _beginnings([*each, *items[1:]])
    else:
        yield False, items


@lru_cache(1024)
def span_of(pattern: str) -> int:
    """Return an upper bound on the characters that a match needs; 0 if the pattern is not tracked."""
    try:
        return _span(parse(pattern))
    except Untranslatable:
        return 0


def _span(items: Items) -> int:
    """Return an upper bound on the characters that complete any prefix of a match."""
    total = 0
    for item in items:
        inner = max(map(_span, parts(item)), default=1)
        total += inner * max(item[1][0], 1) if item[0] in REPEATS else inner
    return total


@cache
def of_format(pattern: str) -> PatternStates:
    """Return the DFA of a format's pattern; all grammars share these DFAs, since formats have few patterns."""
    return PatternStates(pattern, _FORMAT_SCALE)
