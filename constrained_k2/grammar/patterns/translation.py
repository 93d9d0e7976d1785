"""Translates ECMA-262 patterns on a string's value into regular expressions on its text in a grammar.

On this text, patterns can be intersected with negations, exclusions and keys:

    ^a|b$       a.*  and  .*b           ^(?!ab)[abc]+$     [abc]+ & ~(ab.*)
"""

from functools import lru_cache

from constrained_k2.grammar.patterns.assertions import matching
from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.expression import Expression, regex
from constrained_k2.grammar.patterns.tree import REPEATS, nested_count, parse, parts, values
from constrained_k2.grammar.patterns.ways import END, START
from constrained_k2.grammar.spelling import JSON, Spelling

_MANY_TURNS = 512


@lru_cache(256)
def found_anywhere(pattern: str, form: Spelling = JSON) -> str:
    """Return a Lark expression of the strings, quotes included, whose value contains a match of the pattern.

    Raises:
        Untranslatable: It has no such expression.
    """
    ways = _ways(pattern, form)
    if all(way.is_regex for way in ways):
        return regex("|".join(f"{form.quote}{way.text}{form.quote}" for way in ways))
    quote = f"/{form.quote}/ " if form.quote else ""
    return f"({quote}({' | '.join(way.in_lark for way in ways)}){quote and ' ' + quote.strip()})"


def spelled_ways(pattern: str, form: Spelling = JSON) -> list[str]:
    """Return alternative regexes of the text between the quotes whose value contains a match of the pattern.

    Raises:
        Untranslatable: It has none.
    """
    ways = _ways(pattern, form)
    if not all(way.is_regex for way in ways):
        raise Untranslatable("look-ahead")
    return [way.text for way in ways]


@lru_cache(1024)
def matching_texts(pattern: str, limit: int) -> frozenset[str] | None:
    """Return all texts that contain a match of a pattern; None if they are more than ``limit``, or not known."""
    try:
        items = parse(pattern)
    except Untranslatable:
        return None
    ways = parts(items[0]) if len(items) == 1 and items[0][0] not in REPEATS else [items]
    found = set[str]()
    for way in ways or [items]:
        if len(way) < 2 or way[0] != START or way[-1] != END:
            return None
        texts = values(way[1:-1], limit)
        if texts is None:
            return None
        found.update("".join(map(chr, text)) for text in texts)
    has_halves = any("\ud800" <= character <= "\udfff" for text in found for character in text)
    return None if has_halves or len(found) > limit else frozenset(found)


@lru_cache(256)
def may_cost_much(pattern: str) -> bool:
    """Return True for look-around, and for counted repetitions inside of each other that multiply to many states."""
    try:
        return not found_anywhere(pattern).startswith("/") or nested_count(parse(pattern)) > _MANY_TURNS
    except Untranslatable:
        return False


def _ways(pattern: str, form: Spelling) -> list[Expression]:
    try:
        return matching(parse(pattern), form)
    except RecursionError as error:
        raise Untranslatable("groups too deep") from error
