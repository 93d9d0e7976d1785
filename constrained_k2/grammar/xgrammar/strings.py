r"""Writes constraints on strings as regexes on JSON text, in xgrammar's regex dialect.

xgrammar's schema converter (0.2.8) reads a ``pattern`` in one of two ways. An ASCII pattern becomes an automaton that
allows no JSON escapes and misreads some patterns (``a-?`` does not match ``a``, overlong UTF-8 passes). A pattern with
any other character becomes rules on the raw text between the quotes, which can express everything exactly, escapes
included. So every regex here starts with a non-ASCII character that occurs zero times.
"""

import json
import re
from collections.abc import Iterable
from functools import cache

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.grammar.patterns.characters import Untranslatable, character_but, complement, raw_class
from constrained_k2.grammar.patterns.translation import spelled_alternatives
from constrained_k2.grammar.spelling import CHARACTER, HEX, JSON, spelling

_RAW_TEXT = "(?:\xe9){0}"
_PLAIN = "[ !#-\\[\\]-\ud7ff\ue000-\U0010ffff]"
_ESCAPE = r'\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))'
_CHARACTER = f"(?:{_PLAIN}|{_ESCAPE})"
_CHARACTERS = f"{_PLAIN}*(?:{_ESCAPE}{_PLAIN}*)*"  # in runs: xgrammar precomputes the masks of tokens within a run
_PAIR = rf"[dD](?:[0-7]{HEX}{{2}}|[89abAB]{HEX}{{2}}\\u[dD][c-fC-F]{HEX}{{2}})"
_ANY_ESCAPE = rf'\\(?:["\\\/bfnrt]|u(?:[0-9a-cA-CefEF]{HEX}{{3}}|{_PAIR}))'
# Any string in any spelling. xgrammar's builtin strings accept the bytes of lone surrogates, which are not UTF-8.
ANY_STRING = f"{_RAW_TEXT}{_PLAIN}*(?:{_ANY_ESCAPE}{_PLAIN}*)*"

_POINT = re.compile(r"\\x\{([0-9a-f]+)\}")
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")


def found(pattern: str) -> str:
    """Return a regex of the strings that contain a match of a pattern."""
    return _whole(_alternatives(pattern))


def sized(shortest: int, longest: int | None) -> str:
    """Return a regex of the strings with ``shortest`` to ``longest`` characters."""
    if longest is not None:
        return _whole([f"{CHARACTER}{{{shortest},{longest}}}"])
    return _whole([f"{CHARACTER}{{{shortest - 1}}}{_at_least_one(_PLAIN)}" if shortest else f"{CHARACTER}*"])


def none_of(words: Iterable[str]) -> str:
    """Return a regex of all strings except ``words``."""
    return _whole([_other(sorted(set(words)))])


def other_keys(names: list[str]) -> str:
    """Return a regex of strings whose first character begins none of the keys ``names``; also of the empty string.

    All other strings would take a state for each character of each key. Each such state costs xgrammar milliseconds and
    tens of kilobytes on a vocabulary of 160,000 tokens. The empty string is left out if it is one of the keys.
    """
    first = _character_but(sorted({name[:1] for name in names} - {""}))
    plain = first.removeprefix("(?:").removesuffix(f"|{_ESCAPE})")
    alternatives = [_at_least_one(plain) if plain.endswith("]") else f"{first}{CHARACTER}*"]
    return _whole(alternatives if "" in names else [*alternatives, ""])


def one_of(words: Iterable[str]) -> str:
    """Return a regex of the strings in ``words``."""
    return _whole(["".join(spelling(character, JSON) for character in word) for word in sorted(words)])


def is_found(pattern: str, text: str) -> bool:
    """Return True if a text contains a match, by Python's ``re`` on the regexes that the grammar contains.

    Slow on hostile patterns: use it only in a process that can be killed.
    """
    return _compiled(pattern).fullmatch(json.dumps(text, ensure_ascii=False)[1:-1]) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        alternatives = "|".join(_alternatives(pattern))
    except Untranslatable as error:
        problem = f"the pattern {pattern[:80]!r} cannot be checked: {error}"
        remedy = "Rewrite it without lookaround and back-references"
        raise UnsupportedSchema(problem, "", remedy, "pattern") from error
    return re.compile(_POINT.sub(lambda point: rf"\U{int(point[1], 16):08x}", alternatives))


def _alternatives(pattern: str) -> list[str]:
    alternatives = spelled_alternatives(pattern)
    if not alternatives:
        raise Untranslatable("it matches no text")
    return alternatives


def _whole(alternatives: list[str]) -> str:
    """Return the expression in xgrammar's dialect, which has literal code points and matches whole strings."""
    body = "|".join(alternatives).replace(f"{CHARACTER}*", _CHARACTERS).replace(CHARACTER, _CHARACTER)
    return f"{_RAW_TEXT}(?:{_POINT.sub(_literal, body)})"


def _literal(point: re.Match[str]) -> str:
    character = chr(int(point[1], 16))
    return f"\\{character}" if character in _SYNTAX else character


def _at_least_one(plain: str) -> str:
    """Return a regex of a character in ``plain`` or an escape, then any text: as two branches, so each begins a run."""
    return f"(?:{plain}{CHARACTER}*|{_ESCAPE}{CHARACTER}*)"


def _character_but(excluded: list[str]) -> str:
    """Return a regex of one character except ``excluded``; escapes are one branch if none of them is excluded."""
    if any(character < " " or character in '"\\' for character in excluded):
        return character_but("".join(excluded))
    ranges = complement([(ord(character), ord(character)) for character in excluded])
    return f"(?:{raw_class(ranges)}|{_ESCAPE})"


def _other(words: list[str]) -> str:
    """Return a regex of the strings that leave the trie of the words, or end inside it at a node that ends no word."""
    branches = {character: [word[1:] for word in words if word.startswith(character)] for word in words
                for character in word[:1]}  # fmt: skip
    alternatives = [f"{_character_but(sorted(branches))}{CHARACTER}*" if branches else f"{CHARACTER}{CHARACTER}*"]
    alternatives += [f"{spelling(character, JSON)}{_other(rest)}" for character, rest in sorted(branches.items())]
    return f"(?:{'|'.join(alternatives if '' in words else [*alternatives, ''])})"
