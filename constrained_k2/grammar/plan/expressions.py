"""Writes the bodies of Lark terminals for strings: any string within a length range, or one of a list.

one_of(["n", "s"])     /"n"|"s"/
"""

from collections.abc import Iterable

from constrained_k2.grammar.patterns.translation import regex
from constrained_k2.grammar.spelling import HEX, JSON, Spelling, spelling

_PAIR = rf"[dD][0-7]{HEX}{{2}}|[dD][89abAB]{HEX}{{2}}\\u[dD][c-fC-F]{HEX}{{2}}"  # lone surrogates have no spelling
ANY_CHARACTER = rf'(?:[^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u(?:[0-9a-cA-CefEF]{HEX}{{3}}|{_PAIR}))'
"""One character of a JSON string, in any spelling."""


def sized_string(shortest: int, longest: int | None) -> str:
    """Return a Lark regex that matches all strings with a length in this range, in characters, in any spelling."""
    return f'/"{ANY_CHARACTER}{{{shortest},{"" if longest is None else longest}}}"/'


def one_of(values: Iterable[str], form: Spelling = JSON) -> str:
    """Return a Lark regex that matches the strings ``values``, quotes included, each in its one spelling."""
    spelled = ("".join(spelling(character, form) for character in value) for value in values)
    return regex("|".join(f"{form.quote}{text}{form.quote}" for text in spelled))
