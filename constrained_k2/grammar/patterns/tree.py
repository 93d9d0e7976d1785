"""Parses ECMA-262 patterns into trees of Python's regex parser, and writes trees as grammar regexes.

^a|b$               is a branch of (start, a) and (b, end)
"""

import math
import re
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
import re._parser as parser  # type: ignore[import-not-found] # standard library, without stubs
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from constrained_k2.grammar.patterns.characters import (
    PROPERTIES,
    PROPERTY,
    Untranslatable,
    in_either_case,
    one_character,
    property_of,
    ranges_of,
)
from constrained_k2.grammar.spelling import TOP, Spelling, spelling
from constrained_k2.schema.ecma import NotAPattern, NotInPython, in_python

Item = tuple[Any, Any]
"""An operation of Python's parser and its argument."""
Items = list[Item]

REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)  # greedy or lazy: which match is found makes no difference
LOOKS = (sre.ASSERT, sre.ASSERT_NOT)
_GROUPS = (sre.BRANCH, sre.SUBPATTERN)
_FOLD, _DOT_ALL = int(re.IGNORECASE), int(re.DOTALL)


def parse(pattern: str) -> Items:
    """Return the tree of a pattern, in which letter case and line ends do not depend on flags.

    Raises:
        Untranslatable: The pattern is malformed, not regular, or has lookaround. Leading lookahead is split off before,
            by :mod:`constrained_k2.schema.pattern`.
    """
    if any(PROPERTY <= ord(character) < PROPERTY + len(PROPERTIES) for character in pattern):
        raise Untranslatable("a character of the last private-use plane")
    try:
        parsed = parser.parse(in_python(pattern, _placeholder))
    except (NotAPattern, NotInPython) as error:
        raise Untranslatable(str(error)) from error
    except (re.error, OverflowError, RecursionError) as error:
        raise Untranslatable(f"its counts or groups are too many: {error}") from error
    if parsed.state.flags & ~re.UNICODE:
        raise Untranslatable("flags")
    items = without_flags(parsed, 0)
    if any(operation in LOOKS for operation, _ in walk(items)):
        raise Untranslatable("lookaround other than lookahead right after the first ^")
    return items


def _placeholder(written: str) -> str:
    name = written[3:-1]
    if written[1] == "P" or name not in PROPERTIES:
        raise NotInPython(f"the property {written}")
    return chr(PROPERTY + PROPERTIES.index(name))


def without_flags(items: Iterable[Item], flags: int) -> Items:
    """Return items in which the flags for letter case and line ends are replaced by character classes."""
    return [_without_flag(operation, argument, flags) for operation, argument in items]


def _without_flag(operation: Any, argument: Any, flags: int) -> Item:
    fold = flags & _FOLD
    if operation is sre.ANY and flags & _DOT_ALL:
        return sre.IN, [(sre.RANGE, (0, TOP))]
    if fold and operation in (sre.LITERAL, sre.NOT_LITERAL, sre.IN):
        members = argument if operation is sre.IN else [(sre.LITERAL, argument)]
        is_negated = operation is sre.NOT_LITERAL or members[0][0] is sre.NEGATE
        classes = [member for member in members if member[0] is sre.CATEGORY]  # \w, \d and \s do not depend on the case
        listed = [member for member in members if member[0] not in {sre.CATEGORY, sre.NEGATE}]
        ranges = in_either_case(ranges_of(listed), is_negated=is_negated)
        both = [(sre.RANGE, pair) if pair[0] < pair[1] else (sre.LITERAL, pair[0]) for pair in ranges]
        return sre.IN, [*[(sre.NEGATE, None)] * is_negated, *both, *classes]
    if fold and operation is sre.GROUPREF:
        raise Untranslatable("a back-reference in either case")
    if operation is sre.SUBPATTERN:
        group, added, removed, inner = argument
        if (added | removed) & ~(_FOLD | _DOT_ALL):
            raise Untranslatable("inline flags")
        return operation, (group, 0, 0, without_flags(inner, (flags | added) & ~removed))
    if operation is sre.BRANCH:
        return operation, (None, [without_flags(each, flags) for each in argument[1]])
    if operation in REPEATS:
        return operation, (*argument[:2], without_flags(argument[2], flags))
    return operation, argument


def parts(item: Item) -> list[Items]:
    """Return the sequences of items that an item contains."""
    operation, argument = item
    if operation is sre.BRANCH:
        return list(argument[1])
    if operation is sre.SUBPATTERN:
        return [argument[3]]
    if operation in REPEATS:
        return [argument[2]]
    return []


def walk(items: Items) -> Iterator[Item]:
    """Yield each item, and all items inside of it."""
    for item in items:
        yield item
        for inner in parts(item):
            yield from walk(inner)


def width(items: Items) -> tuple[int, float]:
    """Return the fewest and the most characters that items without back-references match, ignoring assertions."""
    least, most = 0, 0.0
    for operation, argument in items:
        low, high = 1, 1.0
        if operation is sre.AT:
            low, high = 0, 0.0
        elif operation in REPEATS:
            low, high = width(argument[2])
            low *= argument[0]
            high = 0.0 if not high else high * (math.inf if argument[1] is sre.MAXREPEAT else argument[1])
        elif operation in _GROUPS:
            alternatives = [width(each) for each in parts((operation, argument))]
            low, high = min(each[0] for each in alternatives), max(each[1] for each in alternatives)
        least, most = least + low, most + high
    return least, most


def plain(items: Iterable[Item], form: Spelling) -> str:
    """Return the regex of items without assertions and back-references."""
    return "".join(_item(form, *item) for item in items)


def _item(form: Spelling, operation: Any, argument: Any) -> str:
    if operation is sre.LITERAL:
        return property_of(argument) or spelling(chr(argument), form)
    if operation is sre.NOT_LITERAL and not property_of(argument):
        return one_character([(0, argument - 1), (argument + 1, TOP)], form)
    if operation is sre.ANY:
        return one_character([(0, 9), (11, 12), (14, 0x2027), (0x202A, TOP)], form)
    if operation is sre.IN:
        return one_character(ranges_of(argument), form)
    if operation in _GROUPS:
        return f"(?:{'|'.join(plain(each, form) for each in parts((operation, argument)))})"
    if operation in REPEATS:
        least, most, inner = argument
        return f"(?:{plain(inner, form)}){{{least},{'' if most is sre.MAXREPEAT else most}}}"
    raise Untranslatable(str(operation).lower())


def values(items: Items, limit: int) -> set[tuple[int, ...]] | None:
    """Return all texts that items match, as code points; None if there are more than ``limit``, or if unknown."""
    found: set[tuple[int, ...]] = {()}
    for item in items:
        more = _values(item, limit)
        if more is None or len(more) * len(found) > limit:
            return None
        found = {one + other for one, other in product(found, more)}
    return found


def _values(item: Item, limit: int) -> set[tuple[int, ...]] | None:
    operation, argument = item
    if operation is sre.LITERAL and not property_of(argument):
        return {(argument,)}
    if operation is sre.IN:
        ranges = ranges_of(argument)
        if any(map(property_of, (low for low, _ in ranges))) or sum(high - low + 1 for low, high in ranges) > limit:
            return None
        return {(code,) for low, high in ranges for code in range(low, high + 1)}
    if operation in _GROUPS:
        alternatives = [values(each, limit) for each in parts(item)]
        found = {text for each in alternatives for text in each or ()}
        return None if None in alternatives or len(found) > limit else found
    if operation in REPEATS and argument[1] <= limit and (inner := values(argument[2], limit)) is not None:
        texts: set[tuple[int, ...]] = {()}
        found = set()
        for count in range(argument[1] + 1):
            found |= texts if count >= argument[0] else set()
            texts = {one + other for one, other in product(texts, inner)}
            if max(len(found), len(texts)) > limit:
                return None
        return found
    return None


def nested_count(items: Items) -> int:
    """Return the largest product of the finite counts of nested repetitions."""
    largest = 1
    for item in items:
        inner = max((nested_count(part) for part in parts(item)), default=1)
        is_counted = item[0] in REPEATS and item[1][1] is not sre.MAXREPEAT
        largest = max(largest, inner * max(item[1][1], 1) if is_counted else inner)
    return largest
