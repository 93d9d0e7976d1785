"""Finds a shortest suffix with which a prefix matches all given regexes, by a bounded search.

^[a-z]+-[0-9]{3}$   after ab:      -000
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from collections import deque
from collections.abc import Sequence
from functools import reduce
from itertools import islice, product

from constrained_k2.grammar.patterns.characters import Ranges, common, holds, property_of, ranges_of
from constrained_k2.grammar.patterns.states import PatternStates
from constrained_k2.grammar.patterns.tree import REPEATS, Item, Items, parse, parts

_MAX_PLACES = 1024  # max sets of terms that one search visits: a few milliseconds
_LIKED = "a0A-_./ TZ"  # preferred characters, if several are possible
_ESCAPED = frozenset(map(ord, '"\\'))
_SPACE = ord(" ")
_SURROGATES = range(0xD800, 0xE000)
_CHARACTERS = (sre.LITERAL, sre.IN)
_BOUNDARIES = ((sre.AT, sre.AT_BOUNDARY), (sre.AT, sre.AT_NON_BOUNDARY))

_Place = tuple[tuple[int, ...], int]  # a term of each pattern, and the number of characters, capped at ``least``


def shortest_suffix(
    states: Sequence[tuple[PatternStates, int]], least: int = 0, max_places: int = _MAX_PLACES
) -> str | None:
    """Return a shortest suffix of at least ``least`` characters after which each pattern matches.

    None if the search finds none: it visits at most ``max_places`` sets of terms, and compares twice as many steps.

    Raises:
        TooManyStates: A pattern exceeds a limit.
        Untranslatable: A pattern uses a feature that is not tracked.
    """
    patterns = [pattern for pattern, _ in states]
    starts = product(*(pattern.terms(state) for pattern, state in states))
    came: dict[_Place, tuple[_Place, str] | None] = dict.fromkeys((terms, 0) for terms in islice(starts, max_places))
    left, steps = deque(came), 0
    while left:
        place = left.popleft()
        terms, count = place
        if count >= least and all(map(PatternStates.may_end, patterns, terms)):
            return _written(place, came)
        for moves in product(*map(PatternStates.moves, patterns, terms)):
            steps += 1
            if steps > 2 * max_places or len(came) >= max_places:
                return None
            after = tuple(term for _, term in moves), min(count + 1, least)
            if after not in came and (ranges := reduce(common, [ranges for ranges, _ in moves])):
                came[after] = place, liked(ranges)
                left.append(after)
    return None


def without_assertions(pattern: str) -> Items:
    """Return a parsed pattern without word boundaries and character properties, which matches about the same texts.

    A class with a character property becomes ``a``.

    Raises:
        Untranslatable: The pattern cannot be parsed.
    """
    return _plain(parse(pattern))


def _plain(items: Items) -> Items:
    return [one for item in items for one in _without(item)]


def _without(item: Item) -> Items:
    operation, argument = item
    inner = [_plain(step) for step in parts(item)]
    if operation is sre.BRANCH:
        return [(operation, (None, inner))]
    if operation is sre.SUBPATTERN or operation in REPEATS:
        return [(operation, (*argument[:-1], inner[0]))]
    ranges = ranges_of(argument if operation is sre.IN else [item]) if operation in _CHARACTERS else []
    if any(property_of(low) for low, _ in ranges):
        return [(sre.LITERAL, ord("a"))]
    return [] if item in _BOUNDARIES else [item]


def liked(ranges: Ranges) -> str:
    """Return a character in ``ranges``: a common one, else one near a range's start, unescaped if possible."""
    liked = next((one for one in _LIKED if holds(ranges, ord(one))), None)
    if liked is not None:
        return liked
    codes = (code for low, high in ranges for code in range(max(low, _SPACE), min(high, max(low, _SPACE) + 2) + 1))
    plain = (code for code in codes if code not in _ESCAPED and code not in _SURROGATES)
    return chr(next(plain, ranges[0][0]))


def _written(place: _Place, came: dict[_Place, tuple[_Place, str] | None]) -> str:
    characters = []
    while (step := came[place]) is not None:
        place, character = step
        characters.append(character)
    return "".join(reversed(characters))
