"""Translates ECMA-262 patterns on a string's value into regular expressions on its text in a grammar.

On this text, patterns can be intersected with negations, exclusions and keys.
"""

import re
import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
import re._parser as parser  # type: ignore[import-not-found] # the same
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from constrained_k2.grammar.spelling import JSON, TOP, Spelling, spelling

# Python's re has no \p{…}. Properties without characters that JSON escapes are parsed as private placeholders.
_PROPERTIES = (
    *("L", "Letter", "Lu", "Uppercase_Letter", "Ll", "Lowercase_Letter", "Lt", "Lm", "Lo", "M", "Mark", "Mn", "Mc"),
    *("N", "Number", "Nd", "Decimal_Number", "Nl", "No", "Alphabetic", "Uppercase", "Lowercase"),
    *(f"{key}={name}" for key in ("Script", "sc") for name in ("Latin", "Greek", "Cyrillic", "Han", "Hiragana")),
    *(f"{key}={name}" for key in ("Script", "sc") for name in ("Katakana", "Hangul", "Arabic", "Hebrew", "Thai")),
)
_PROPERTY = 0x10F000
_OPEN_COUNT = re.compile(r"\{,[0-9]*\}")
_MAX_WAYS = 64
_MAX_PARSED = 16  # patterns whose parsed items are cached: a few hundred kilobytes each
_MAX_CLASSES = 256  # character classes whose regexes are cached
_LETTERS = re.compile(r"\\(?:p\{([A-Za-z_=]+)\}|.)", re.DOTALL)
_START, _END = (sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_END)
_DIGIT, _SPACE = [(48, 57)], [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
                              (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]  # fmt: skip
_ANY = ((0, 9), (11, 12), (14, 0x2027), (0x202A, TOP))
_WORD = [(48, 57), (65, 90), (95, 95), (97, 122)]
_CATEGORIES = {sre.CATEGORY_DIGIT: _DIGIT, sre.CATEGORY_SPACE: _SPACE, sre.CATEGORY_WORD: _WORD}
_NEGATED = {sre.CATEGORY_NOT_DIGIT: _DIGIT, sre.CATEGORY_NOT_SPACE: _SPACE, sre.CATEGORY_NOT_WORD: _WORD}


class Untranslatable(Exception):
    """The pattern uses an unsupported feature: look-around, back-references, inner anchors, flags."""


def found_anywhere(pattern: str, form: Spelling = JSON) -> str:
    """Return a Lark regex of the strings, quotes included, whose value contains a match of the pattern."""
    return "/" + "|".join(f"{form.quote}{way}{form.quote}" for way in spelled_ways(pattern, form)) + "/"


def spelled_ways(pattern: str, form: Spelling = JSON) -> list[str]:
    """Return alternative regexes of the text between the quotes whose value contains a match of the pattern."""
    more = f"{form.character}*"
    return [
        f"{'' if starts else more}{_sequence(items, form)}{'' if ends else more}"
        for starts, items, ends in parsed_ways(pattern)
    ]


@lru_cache(_MAX_PARSED)
def parsed_ways(pattern: str) -> list[tuple[bool, list[Any], bool]]:
    """Return the alternatives of a pattern: (anchored at the start, items of ``re._parser``, anchored at the end)."""
    if any(_PROPERTY <= ord(character) < _PROPERTY + len(_PROPERTIES) for character in pattern):
        raise Untranslatable("a character of the last private-use plane")
    if _OPEN_COUNT.search(pattern):
        raise Untranslatable("{,} and {,n} are literal text in ECMA-262, but repetitions in Python")
    try:
        parsed = parser.parse(_LETTERS.sub(_placeholder, pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise Untranslatable(str(error)) from error
    if parsed.state.flags & ~re.UNICODE:
        raise Untranslatable("flags")
    ways = list(islice(_ways(list(parsed)), _MAX_WAYS + 1))
    if len(ways) > _MAX_WAYS:
        raise Untranslatable(f"anchors in more than {_MAX_WAYS} alternatives")
    return ways


def character_but(excluded: str) -> str:
    """Return a regex of one character of a JSON string, in its one spelling, that is not among these."""
    return _characters(tuple(complement([(ord(character), ord(character)) for character in excluded])), JSON)


def _placeholder(found: re.Match[str]) -> str:
    return chr(_PROPERTY + _PROPERTIES.index(found[1])) if found[1] in _PROPERTIES else found[0]


def _property(code: int) -> str:
    """Return the property that a placeholder means; empty for any other character."""
    known = 0 <= code - _PROPERTY < len(_PROPERTIES)
    return rf"\p{{{_PROPERTIES[code - _PROPERTY]}}}" if known else ""


def _ways(items: list[Any]) -> Iterator[tuple[bool, list[Any], bool]]:
    """Yield the alternatives of a pattern without anchors: (anchored at the start, items, anchored at the end)."""
    starts = bool(items) and items[0] == _START
    items = items[starts:]
    ends = bool(items) and items[-1] == _END
    items = items[: len(items) - ends]
    for index in {0, len(items) - 1} if items else ():
        if items[index][0] in (sre.BRANCH, sre.SUBPATTERN) and _has_anchors(items[index]):
            for inner in _alternatives(*items[index]):
                for more_starts, way, more_ends in _ways([*items[:index], *inner, *items[index + 1 :]]):
                    yield starts or more_starts, way, ends or more_ends
            return
    yield starts, items, ends


def _alternatives(operation: Any, argument: Any) -> list[Any]:
    if operation is sre.BRANCH:
        return list(argument[1])
    if argument[1] or argument[2]:
        raise Untranslatable("inline flags")
    return [argument[3]]


def _has_anchors(item: Any) -> bool:
    if item[0] in (sre.BRANCH, sre.SUBPATTERN):
        return any(map(_has_anchors, chain.from_iterable(_alternatives(*item))))
    return item[0] is sre.AT


def characters_of(operation: Any, argument: Any) -> list[tuple[int, int]] | None:
    """Return the ranges of an item that is one character; None for any other item."""
    if operation is sre.LITERAL and not _property(argument):
        return [(argument, argument)]
    if operation is sre.NOT_LITERAL and not _property(argument):
        return complement([(argument, argument)])
    if operation is sre.ANY:
        return list(_ANY)
    if operation is sre.IN:
        ranges = _class(argument)
        if any(_property(low) for low, high in ranges if low == high):
            raise Untranslatable("a character property")
        return ranges
    return None


def repetition_of(operation: Any, argument: Any) -> tuple[int, int | None, Any] | None:
    """Return the bounds and the items of a repetition; None for any other item."""
    if operation not in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        return None
    least, most, inner = argument
    return least, None if most is sre.MAXREPEAT else most, inner


def alternatives_of(operation: Any, argument: Any) -> list[Any] | None:
    """Return the alternatives of a group, each a list of items; None for any other item."""
    return _alternatives(operation, argument) if operation in (sre.BRANCH, sre.SUBPATTERN) else None


def _sequence(items: Any, form: Spelling) -> str:
    return "".join(_item(form, *item) for item in items)


def _item(form: Spelling, operation: Any, argument: Any) -> str:
    if operation is sre.LITERAL:
        return _property(argument) or spelling(chr(argument), form)
    if operation is sre.NOT_LITERAL and not _property(argument):
        return _characters(((0, argument - 1), (argument + 1, TOP)), form)
    if operation is sre.ANY:
        return _characters(_ANY, form)
    if operation is sre.IN:
        return _characters(tuple(_class(argument)), form)
    if operation in (sre.BRANCH, sre.SUBPATTERN):
        return f"(?:{'|'.join(_sequence(way, form) for way in _alternatives(operation, argument))})"
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, inner = argument
        return f"(?:{_sequence(inner, form)}){{{least},{'' if most is sre.MAXREPEAT else most}}}"
    raise Untranslatable(str(operation).lower())


def _class(members: Any) -> list[tuple[int, int]]:
    """Return the code points of a character class; digits, spaces and word characters are those of ECMA-262."""
    ranges: list[tuple[int, int]] = []
    negated = bool(members) and members[0][0] is sre.NEGATE
    for operation, argument in members[negated:]:
        if operation is sre.LITERAL:
            ranges.append((argument, argument))
        elif operation is sre.RANGE:
            ranges.append(argument)
        elif argument in _CATEGORIES:
            ranges += _CATEGORIES[argument]
        elif argument in _NEGATED:
            ranges += complement(_NEGATED[argument])
        else:
            raise Untranslatable(str(argument).lower())
    if negated and any(_property(low) for low, high in ranges if low == high):
        raise Untranslatable("a negated class with a character property")
    return complement(ranges) if negated else ranges


@lru_cache(_MAX_CLASSES)
def _characters(ranges: tuple[tuple[int, int], ...], form: Spelling) -> str:
    """Return a regex of one character of these ranges: plain where the spelling allows it, else escaped."""
    escaped = [code for code in form.escapes if any(low <= code <= high for low, high in ranges)]
    properties = [_property(low) for low, high in ranges if low == high and _property(low)]
    raw = raw_class([(low, high) for low, high in ranges if low != high or not _property(low)], form)
    if raw or properties:
        raw = f"[{''.join(properties)}{raw[1:-1]}]"
    ways = [*filter(None, (raw,)), *(form.escapes[code] for code in escaped)]
    if not ways:
        raise Untranslatable("an empty class")
    return f"(?:{'|'.join(ways)})"


def raw_class(ranges: list[tuple[int, int]], form: Spelling = JSON) -> str:
    """Return a regex class of the characters in these ranges that are written as themselves; empty if none."""
    pieces = ((max(low, first), min(high, last)) for low, high in ranges for first, last in form.plain)
    points = "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in pieces if low <= high)
    return points and f"[{points}]"


def complement(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of all other code points."""
    free, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            free.append((start, low - 1))
        start = max(start, high + 1)
    return [*free, (start, TOP)] if start <= TOP else free
