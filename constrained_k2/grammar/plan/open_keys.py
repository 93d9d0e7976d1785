"""Detects objects with infinitely many undeclared keys: their ``minProperties`` can be enforced.

Such keys need not repeat. A matcher masks a key that the object already has
(:mod:`constrained_k2.engines.llguidance.uniqueness`), unless all keys with the same prefix have been written.
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.tree import REPEATS, Items, parse, parts, walk, width
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.grammar.productivity import MAX_COMBINED_PATTERNS, patterns_of_keys
from constrained_k2.schema.shapes import ANY, EVERYTHING, ListedValue, Object, String

_START = (sre.AT, sre.AT_BEGINNING)
_END = (sre.AT, sre.AT_END)


def has_endless_keys(planning: Planning, shape: Object) -> bool:
    """Return True if each prefix of an undeclared key begins infinitely many such keys; False also if unknown."""
    patterns = patterns_of_keys(shape)
    if shape.wanted or len(patterns) > MAX_COMBINED_PATTERNS or (planning.effort == "relaxed" and patterns):
        return False
    extras = planning.productivity.extra_nodes(shape)
    possible = {frozenset(found) for found, node in extras if planning.productivity.is_productive(node)}
    is_any = len(possible) == 1 << len(patterns)  # whatever patterns a key matches
    names = EVERYTHING if shape.names == ANY else planning.normalizer.shapes(shape.names)
    strings = [name for name in names if isinstance(name, String)]
    if len(strings) != 1 or any(isinstance(name, ListedValue) for name in names):
        return False
    if strings[0].longest is not None or strings[0].formats or strings[0].absent:
        return False
    named = sorted(strings[0].patterns)
    if is_any:
        return not named or (len(named) == 1 and ends_freely(named[0]))
    if named or strings[0].excluded:
        return False
    if possible == {frozenset(patterns)} and len(patterns) == 1:
        return ends_freely(patterns[0])
    # A longer key matches the same patterns, and maybe more.
    is_growing = all(found | {pattern} in possible for found in possible for pattern in patterns)
    return is_growing and bool(possible) and all(_has_free_end(_tree(pattern)) for pattern in patterns)


def _tree(pattern: str) -> Items | None:
    try:
        return parse(pattern)
    except Untranslatable:
        return None


def ends_freely(pattern: str) -> bool:
    """Return True if each prefix of a match is a prefix of infinitely many matches."""
    items = _tree(pattern)
    return items is not None and (_has_free_end(items) or _ends_in_repetition(items))


def _has_free_end(items: Items | None) -> bool:
    """Return True if what follows a match makes no difference."""
    return items is not None and not any(
        operation is sre.GROUPREF or (operation is sre.AT and (operation, argument) != _START)
        for operation, argument in walk(items)
    )


def _ends_in_repetition(items: Items) -> bool:
    """Return True if all matches end in an unbounded repetition and ``$``."""
    *before, end = items
    return end == _END and _has_free_end(before) and _is_repeated(before)


def _is_repeated(items: Items) -> bool:
    if not items:
        return False
    operation, argument = items[-1]
    if operation in REPEATS:
        return argument[1] is sre.MAXREPEAT and width(argument[2])[0] > 0
    return operation in (sre.BRANCH, sre.SUBPATTERN) and all(map(_is_repeated, parts(items[-1])))
