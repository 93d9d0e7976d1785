"""Translates ECMA-262 character classes into code point ranges, and ranges into grammar regexes.

A regex matches one character as JSON, raw text or an XTML attribute spells it.

[^"]                in JSON:      any character but a quote; a backslash is spelled as two
"""

import re._constants as sre  # type: ignore[import-not-found] # standard library, without stubs
from bisect import bisect_right
from collections import defaultdict
from functools import cache, lru_cache
from typing import Any

from constrained_k2.grammar.spelling import JSON, TOP, Spelling

Ranges = list[tuple[int, int]]
"""Code points, as ranges that include both ends."""

# Python's re has no \p{…}. Properties without characters that JSON escapes become private-use placeholders.
PROPERTIES = (
    *("L", "Letter", "Lu", "Uppercase_Letter", "Ll", "Lowercase_Letter", "Lt", "Lm", "Lo", "M", "Mark", "Mn", "Mc"),
    *("S", "Symbol", "Sm", "Sc", "Sk", "So", "Z", "Separator", "Zs", "Space_Separator", "Zl", "Zp"),
    *("N", "Number", "Nd", "Decimal_Number", "Nl", "No", "Alphabetic", "Uppercase", "Lowercase"),
    *(f"{key}={name}" for key in ("Script", "sc") for name in ("Latin", "Greek", "Cyrillic", "Han", "Hiragana")),
    *(f"{key}={name}" for key in ("Script", "sc") for name in ("Katakana", "Hangul", "Arabic", "Hebrew", "Thai")),
)
PROPERTY = 0x10F000
"""The placeholder of the first property."""
_DIGIT, _SPACE = [(48, 57)], [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
                              (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]  # fmt: skip
_WORD = [(48, 57), (65, 90), (95, 95), (97, 122)]
_CATEGORIES = {sre.CATEGORY_DIGIT: _DIGIT, sre.CATEGORY_SPACE: _SPACE, sre.CATEGORY_WORD: _WORD}
_NEGATED = {sre.CATEGORY_NOT_DIGIT: _DIGIT, sre.CATEGORY_NOT_SPACE: _SPACE, sre.CATEGORY_NOT_WORD: _WORD}


_ASCII = 128
_CASED_TOP = 0x1F000  # no letter from here on has two cases


class Untranslatable(Exception):
    """The pattern has a part that no regular expression can express, or that costs too much."""


def ranges_of(members: Any) -> Ranges:
    """Return the code points of a character class; digits, spaces and word characters as in ECMA-262."""
    ranges: Ranges = []
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
    if negated and any(property_of(low) for low, high in ranges if low == high):
        raise Untranslatable("a negated class with a character property")
    return complement(ranges) if negated else ranges


def one_character(ranges: Ranges, form: Spelling) -> str:
    """Return a regex that matches one character in ``ranges``: unescaped if the spelling allows it, else escaped."""
    return _one_character(tuple(ranges), form)


@lru_cache(1024)
def _one_character(ranges: tuple[tuple[int, int], ...], form: Spelling) -> str:
    escaped = [code for code in form.escapes if any(low <= code <= high for low, high in ranges)]
    properties = [property_of(low) for low, high in ranges if low == high and property_of(low)]
    raw = raw_class([(low, high) for low, high in ranges if low != high or not property_of(low)], form)
    if raw or properties:
        raw = f"[{''.join(properties)}{raw[1:-1]}]"
    alternatives = [*filter(None, (raw,)), *(form.escapes[code] for code in escaped)]
    if not alternatives:
        raise Untranslatable("an empty class")
    return f"(?:{'|'.join(alternatives)})"


def character_but(excluded: str) -> str:
    """Return a regex that matches one character of a JSON string, in its one spelling, except those in ``excluded``."""
    return one_character(complement([(ord(character), ord(character)) for character in excluded]), JSON)


def raw_class(ranges: Ranges, form: Spelling = JSON) -> str:
    """Return a regex class of the characters in ``ranges`` that are written without an escape; empty if none are."""
    pieces = ((max(low, first), min(high, last)) for low, high in ranges for first, last in form.plain)
    points = "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in pieces if low <= high)
    return points and f"[{points}]"


def complement(ranges: Ranges) -> Ranges:
    """Return the ranges of all other code points, sorted and without overlaps."""
    free, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            free.append((start, low - 1))
        start = max(start, high + 1)
    return [*free, (start, TOP)] if start <= TOP else free


def common(some: Ranges, others: Ranges) -> Ranges:
    """Return the ranges of the code points that are in both lists of ranges, sorted and without overlaps."""
    return complement([*complement(some), *complement(others)])


def holds(ranges: Ranges, code: int) -> bool:
    """Return True if a code point is in ranges that are sorted and do not overlap."""
    at = bisect_right(ranges, (code, TOP)) - 1
    return at >= 0 and ranges[at][1] >= code


def property_of(code: int) -> str:
    """Return the property that a placeholder means; empty for any other character."""
    known = 0 <= code - PROPERTY < len(PROPERTIES)
    return rf"\p{{{PROPERTIES[code - PROPERTY]}}}" if known else ""


def in_either_case(ranges: Ranges, *, is_negated: bool = False) -> Ranges:
    """Return the ranges with the other case of each letter.

    Dialects disagree about non-ASCII letters that fold to an ASCII letter, such as the Kelvin sign (U+212A). So these
    letters are in neither a class nor its negation.
    """
    top = _CASED_TOP if is_negated or any(high >= _ASCII for _, high in ranges) else _ASCII
    cases = _other_cases(top, is_mixed=is_negated)
    if sum(high - low + 1 for low, high in ranges) < len(cases):
        codes = [code for low, high in ranges for code in range(low, high + 1) if code in cases]
    else:
        codes = [code for code in cases if any(low <= code <= high for low, high in ranges)]
    found = {other for code in codes for other in cases[code]}
    return [*ranges, *((code, code) for code in sorted(found.difference(codes)))]


@cache
def _other_cases(top: int, *, is_mixed: bool) -> dict[int, tuple[int, ...]]:
    """Return, for each letter below a code point, the other letters with equal case folding.

    ``is_mixed``: also pairs of an ASCII and a non-ASCII letter.
    """
    groups = defaultdict[str, list[int]](list)
    for code in range(top):
        upper = chr(code).upper()
        groups[(upper if len(upper) == 1 else chr(code)).lower()[0]].append(code)
    cases = {}
    for group in groups.values():
        for code in group if len(group) > 1 else ():
            others = (other for other in group if other != code)
            cases[code] = tuple(other for other in others if is_mixed or (other < _ASCII) == (code < _ASCII))
    return cases
