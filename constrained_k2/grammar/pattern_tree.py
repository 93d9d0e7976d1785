"""ECMA-262 patterns as trees of Python's regex parser, and trees without assertions as regexes of a grammar's text."""

import math
import re
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
import re._parser as parser  # type: ignore[import-not-found] # the same
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from constrained_k2.grammar.characters import (
    PROPERTIES,
    PROPERTY,
    Untranslatable,
    in_either_case,
    one_character,
    property_of,
    ranges_of,
)
from constrained_k2.grammar.spelling import TOP, Spelling, spelling

Item = tuple[Any, Any]
"""An operation of Python's parser and its argument."""
Items = list[Item]

REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)  # which of several matches is found makes no difference
LOOKS = (sre.ASSERT, sre.ASSERT_NOT)
_GROUPS = (sre.BRANCH, sre.SUBPATTERN)
_OPEN_COUNT = re.compile(r"\{,[0-9]*\}")
_ESCAPE = (
    r"\\(?:p\{(?P<property>[A-Za-z_=]+)\}|u\{(?P<point>[0-9a-fA-F]+)\}|c(?P<control>[A-Za-z])"
    r"|u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})|.)"
)
_ESCAPED = re.compile(_ESCAPE, re.DOTALL)
# A reference by name, an escape, a class, or the opening of a named group.
_SPELLED = re.compile(rf"\\k<(?P<name>\w+)>|{_ESCAPE}|\[\^?]?(?:\\.|[^]\\])*\]|\(\?<(?=[A-Za-z_])", re.DOTALL)


def parse(pattern: str) -> Items:
    """Return the tree of a pattern, in which letter case and line ends do not depend on flags."""
    if any(PROPERTY <= ord(character) < PROPERTY + len(PROPERTIES) for character in pattern):
        raise Untranslatable("a character of the last private-use plane")
    if _OPEN_COUNT.search(pattern):
        raise Untranslatable("{,} and {,n} are literal text in ECMA-262, but repetitions in Python")
    try:
        parsed = parser.parse(_SPELLED.sub(_for_python, pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise Untranslatable(str(error)) from error
    if parsed.state.flags & ~re.UNICODE:
        raise Untranslatable("flags")
    return _without_flags(parsed, 0)


def _for_python(found: re.Match[str]) -> str:
    if found["name"]:
        return f"(?P={found['name']})"
    return "(?P<" if found[0] == "(?<" else _ESCAPED.sub(_escape_for_python, found[0])


def _escape_for_python(found: re.Match[str]) -> str:
    if found["property"] in PROPERTIES:
        return chr(PROPERTY + PROPERTIES.index(found["property"]))
    if found["point"] and int(found["point"], 16) <= TOP:
        return rf"\U{int(found['point'], 16):08x}"
    if found["control"]:
        return rf"\x{ord(found['control']) % 32:02x}"
    if found["high"]:
        low = int(found["low"], 16)
        return rf"\U{(int(found['high'], 16) - 0xD800) * 0x400 + low - 0xDC00 + 0x10000:08x}"
    return found[0]


def _without_flags(items: Iterable[Item], flags: int) -> Items:
    return [_without_flag(operation, argument, flags) for operation, argument in items]


def _without_flag(operation: Any, argument: Any, flags: int) -> Item:
    fold = flags & re.IGNORECASE
    if operation is sre.ANY and flags & re.DOTALL:
        return sre.IN, [(sre.RANGE, (0, TOP))]
    if fold and operation in (sre.LITERAL, sre.NOT_LITERAL, sre.IN):
        members = argument if operation is sre.IN else [(sre.LITERAL, argument)]
        is_negated = operation is sre.NOT_LITERAL or members[0][0] is sre.NEGATE
        ranges = in_either_case(ranges_of([member for member in members if member[0] is not sre.NEGATE]))
        both = [(sre.RANGE, pair) if pair[0] < pair[1] else (sre.LITERAL, pair[0]) for pair in ranges]
        return sre.IN, [(sre.NEGATE, None), *both] if is_negated else both
    if fold and operation is sre.GROUPREF:
        raise Untranslatable("a back-reference in either case")
    if operation is sre.SUBPATTERN:
        group, added, removed, inner = argument
        if (added | removed) & ~(re.IGNORECASE | re.DOTALL):
            raise Untranslatable("inline flags")
        return operation, (group, 0, 0, _without_flags(inner, (flags | added) & ~removed))
    if operation is sre.BRANCH:
        return operation, (None, [_without_flags(way, flags) for way in argument[1]])
    if operation in REPEATS:
        return operation, (*argument[:2], _without_flags(argument[2], flags))
    if operation in LOOKS:
        return operation, (argument[0], _without_flags(argument[1], flags))
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
    return [argument[1]] if operation in LOOKS else []


def walk(items: Items) -> Iterator[Item]:
    """Yield each item, and each inside of it."""
    for item in items:
        yield item
        for inner in parts(item):
            yield from walk(inner)


def width(items: Items) -> tuple[int, float]:
    """Return the fewest and the most characters that items without back-references match, whatever they assert."""
    least, most = 0, 0.0
    for operation, argument in items:
        low, high = 1, 1.0
        if operation in LOOKS or operation is sre.AT:
            low, high = 0, 0.0
        elif operation in REPEATS:
            low, high = width(argument[2])
            low *= argument[0]
            high = 0.0 if not high else high * (math.inf if argument[1] is sre.MAXREPEAT else argument[1])
        elif operation in _GROUPS:
            ways = [width(way) for way in parts((operation, argument))]
            low, high = min(way[0] for way in ways), max(way[1] for way in ways)
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
        return f"(?:{'|'.join(plain(way, form) for way in parts((operation, argument)))})"
    if operation in REPEATS:
        least, most, inner = argument
        return f"(?:{plain(inner, form)}){{{least},{'' if most is sre.MAXREPEAT else most}}}"
    raise Untranslatable(str(operation).lower())


def values(items: Items, limit: int) -> set[tuple[int, ...]] | None:
    """Return all texts that items match, as code points; None if they are more than ``limit``, or not known."""
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
        ways = [values(way, limit) for way in parts(item)]
        found = {text for way in ways for text in way or ()}
        return None if None in ways or len(found) > limit else found
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
