"""Translates ECMA-262 patterns into regexes of the JSON or XTML text of the strings they match.

Grammars intersect these regexes with negated patterns and excluded values, which are spelled in the same way. On a side
without an anchor, a regex gets ``.*``:

    ^a|b$       a.*  and  .*b
"""

from functools import lru_cache

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.tree import REPEATS, nested_count, parse, parts, plain, values
from constrained_k2.grammar.patterns.unfolding import END, START, Unfolding, without_anchors
from constrained_k2.grammar.spelling import JSON, Spelling

_MANY_TURNS = 512
_MAX_TEXT = 200_000  # max characters of the regexes of one pattern, if it has several
_NO_TEXT = "(/a/ & /b/)"


def regex(text: str) -> str:
    """Return a regex in Lark's syntax. An empty one becomes an empty string, because ``//`` begins a comment."""
    return f"/{text}/" if text else '""'


@lru_cache(256)
def found_anywhere(pattern: str, form: Spelling = JSON) -> str:
    """Return a Lark expression of the strings, quotes included, whose value contains a match of the pattern.

    Raises:
        Untranslatable: The pattern has no such expression.
    """
    alternatives = spelled_alternatives(pattern, form)
    return regex("|".join(f"{form.quote}{each}{form.quote}" for each in alternatives)) if alternatives else _NO_TEXT


def spelled_alternatives(pattern: str, form: Spelling = JSON) -> list[str]:
    """Return alternative regexes, of the text between the quotes, for strings that contain a match of the pattern.

    The list is empty if no string can contain a match, as for ``a^``.

    Raises:
        Untranslatable: The pattern has no such regexes, or they are too long.
    """
    any_text, found = f"{form.character}*", dict[str, None]()
    try:
        items = parse(pattern)
        for each in Unfolding(items).alternatives(items):
            if (inner := without_anchors(each)) is not None:
                starts, kept, ends = inner
                found[f"{'' if starts else any_text}{plain(kept, form)}{'' if ends else any_text}"] = None
    except RecursionError as error:
        raise Untranslatable("groups too deep") from error
    if len(found) > 1 and sum(map(len, found)) > _MAX_TEXT:
        raise Untranslatable("its anchors and back-references make it too long")
    return [*found]


@lru_cache(1024)
def matching_texts(pattern: str, limit: int) -> frozenset[str] | None:
    """Return all texts that contain a match of a pattern; None if there are more than ``limit``, or if unknown."""
    try:
        items = parse(pattern)
    except Untranslatable:
        return None
    alternatives = parts(items[0]) if len(items) == 1 and items[0][0] not in REPEATS else [items]
    found = set[str]()
    for each in alternatives or [items]:
        if len(each) < 2 or each[0] != START or each[-1] != END:
            return None
        texts = values(each[1:-1], limit)
        if texts is None:
            return None
        found.update("".join(map(chr, text)) for text in texts)
    has_halves = any("\ud800" <= character <= "\udfff" for text in found for character in text)
    return None if has_halves or len(found) > limit else frozenset(found)


@lru_cache(256)
def may_cost_much(pattern: str) -> bool:
    """Return True if nested counted repetitions multiply to many states."""
    try:
        return nested_count(parse(pattern)) > _MANY_TURNS
    except Untranslatable:
        return False
