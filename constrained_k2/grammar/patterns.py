"""Patterns on a string's value, as expressions on its JSON spelling: what lets patterns meet negations and keys."""

import re
import re._constants as sre  # type: ignore[import-not-found] # the standard library's own, without stubs
import re._parser as parser  # type: ignore[import-not-found] # the same
from collections.abc import Iterator
from typing import Any

from constrained_k2.grammar.terminals import CHARACTER, spelling

_TOP = 0x10FFFF
# Python knows no \p{…}: each of those without characters that JSON escapes is parsed as a character of its own.
_PROPERTIES = (
    *("L", "Letter", "Lu", "Uppercase_Letter", "Ll", "Lowercase_Letter", "Lt", "Lm", "Lo", "M", "Mark", "Mn", "Mc"),
    *("N", "Number", "Nd", "Decimal_Number", "Nl", "No", "Alphabetic", "Uppercase", "Lowercase"),
    *(f"{key}={name}" for key in ("Script", "sc") for name in ("Latin", "Greek", "Cyrillic", "Han", "Hiragana")),
    *(f"{key}={name}" for key in ("Script", "sc") for name in ("Katakana", "Hangul", "Arabic", "Hebrew", "Thai")),
)
_PROPERTY = 0x10F000
_OPEN_COUNT = re.compile(r"\{,[0-9]")
_MOST_WAYS = 64
_LETTERS = re.compile(r"\\(?:p\{([A-Za-z_=]+)\}|.)", re.DOTALL)


class Untranslatable(Exception):
    """The pattern uses what has no counterpart here: look-around, back-references, inner anchors, flags."""


def found_anywhere(pattern: str) -> str:
    """A Lark regex of the JSON strings, quotes included, in whose value the pattern is found.

    Raises:
        Untranslatable: See there.
    """
    return "/" + "|".join(f'"{way}"' for way in spelled_ways(pattern)) + "/"


def spelled_ways(pattern: str) -> list[str]:
    """Regexes, one of which each JSON string in whose value the pattern is found matches between its quotes.

    Raises:
        Untranslatable: See there.
    """
    if any(_PROPERTY <= ord(character) < _PROPERTY + len(_PROPERTIES) for character in pattern):
        raise Untranslatable("a character of the last private plane")
    if _OPEN_COUNT.search(pattern):
        raise Untranslatable("{,n}, which is text in ECMA-262")
    try:
        parsed = parser.parse(_LETTERS.sub(_stand_in, pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise Untranslatable(str(error)) from error
    if parsed.state.flags & ~re.UNICODE:
        raise Untranslatable("flags")
    branches = []
    for anchored_start, items, anchored_end in _ways(list(parsed)):
        before = "" if anchored_start else f"{CHARACTER}*"
        after = "" if anchored_end else f"{CHARACTER}*"
        branches.append(f"{before}{_sequence(items)}{after}")
        if len(branches) > _MOST_WAYS:
            raise Untranslatable("anchors in very many alternatives")
    return branches


def character_but(excluded: str) -> str:
    """A regex of one character in its one spelling that is none of these."""
    return _characters(_complement([(ord(character), ord(character)) for character in excluded]))


def _stand_in(found: re.Match[str]) -> str:
    if found[1] not in _PROPERTIES:
        return found[0]
    return chr(_PROPERTY + _PROPERTIES.index(found[1]))


def _property(code: int) -> str:
    """The property that a stand-in means; empty for any other character."""
    known = 0 <= code - _PROPERTY < len(_PROPERTIES)
    return rf"\p{{{_PROPERTIES[code - _PROPERTY]}}}" if known else ""


_START, _END = (sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_END)


def _ways(items: list[Any]) -> Iterator[tuple[bool, list[Any], bool]]:
    """The pattern as alternatives without anchors, and whether each begins and ends where the text does."""
    starts = bool(items) and items[0] == _START
    items = items[starts:]
    ends = bool(items) and items[-1] == _END
    items = items[: len(items) - ends]
    for place in {0, len(items) - 1} if items else ():
        if items[place][0] in (sre.BRANCH, sre.SUBPATTERN) and _has_anchors(items[place]):
            for inner in _alternatives(*items[place]):
                for more_starts, way, more_ends in _ways([*items[:place], *inner, *items[place + 1 :]]):
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
    operation = item[0]
    return operation is sre.AT or (
        operation in (sre.BRANCH, sre.SUBPATTERN)
        and any(map(_has_anchors, (inner for way in _alternatives(*item) for inner in way)))
    )


def _sequence(items: Any) -> str:
    return "".join(_item(*item) for item in items)


def _item(operation: Any, argument: Any) -> str:
    if operation is sre.LITERAL:
        return _property(argument) or spelling(chr(argument))
    if operation is sre.NOT_LITERAL and not _property(argument):
        return _characters([(0, argument - 1), (argument + 1, _TOP)])
    if operation is sre.ANY:
        return _characters([(0, 9), (11, 12), (14, 0x2027), (0x202A, _TOP)])
    if operation is sre.IN:
        return _characters(_class(argument))
    if operation is sre.BRANCH:
        return f"(?:{'|'.join(_sequence(branch) for branch in argument[1])})"
    if operation is sre.SUBPATTERN:
        _, added, removed, inner = argument
        if added or removed:
            raise Untranslatable("inline flags")
        return f"(?:{_sequence(inner)})"
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, inner = argument
        return f"(?:{_sequence(inner)}){{{least},{'' if most is sre.MAXREPEAT else most}}}"
    raise Untranslatable(str(operation).lower())


_DIGIT, _SPACE = [(48, 57)], [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
                              (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]  # fmt: skip
_WORD = [(48, 57), (65, 90), (95, 95), (97, 122)]
_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGIT,
    sre.CATEGORY_SPACE: _SPACE,
    sre.CATEGORY_WORD: _WORD,
}
_OPPOSITES = {
    sre.CATEGORY_NOT_DIGIT: _DIGIT,
    sre.CATEGORY_NOT_SPACE: _SPACE,
    sre.CATEGORY_NOT_WORD: _WORD,
}


def _class(members: Any) -> list[tuple[int, int]]:
    """The code points of a character class; digits, spaces and word characters are those of ECMA-262."""
    ranges: list[tuple[int, int]] = []
    negated = False
    for operation, argument in members:
        if operation is sre.NEGATE:
            negated = True
        elif operation is sre.LITERAL:
            ranges.append((argument, argument))
        elif operation is sre.RANGE:
            ranges.append(argument)
        elif argument in _CATEGORIES:
            ranges += _CATEGORIES[argument]
        elif argument in _OPPOSITES:
            ranges += _complement(_OPPOSITES[argument])
        else:
            raise Untranslatable(str(argument).lower())
    if negated and any(_property(low) for low, high in ranges if low == high):
        raise Untranslatable("a negated class with a character property")
    return _complement(ranges) if negated else ranges


def _complement(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    free, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            free.append((start, low - 1))
        start = max(start, high + 1)
    return [*free, (start, _TOP)] if start <= _TOP else free


def _characters(ranges: list[tuple[int, int]]) -> str:
    """One character of these ranges: raw where JSON allows it, else in its escapes; other escapes are not written."""
    special = [code for code in (*range(32), 34, 92) if any(low <= code <= high for low, high in ranges)]
    ways = [spelling(chr(code)) for code in special]
    raw = [_property(low) for low, high in ranges if low == high and _property(low)]
    ranges = [(low, high) for low, high in ranges if low != high or not _property(low)]
    raw += [
        f"{_point(piece_low)}-{_point(piece_high)}"
        for low, high in ranges
        for piece_low, piece_high in _without(max(low, 32), high)
        if piece_low <= piece_high
    ]
    if raw:
        ways.insert(0, f"[{''.join(raw)}]")
    if not ways:
        raise Untranslatable("an empty class")
    return f"(?:{'|'.join(ways)})"


def _without(low: int, high: int) -> list[tuple[int, int]]:
    """The range in pieces, without the quote, the backslash and the surrogates."""
    pieces, start = [], low
    for first, last in ((34, 34), (92, 92), (0xD800, 0xDFFF)):
        if start <= last and first <= high:
            pieces.append((start, first - 1))
            start = last + 1
    return [*pieces, (start, high)]


def _point(code: int) -> str:
    return rf"\x{{{code:x}}}"
