r"""Strings as expressions on their JSON spelling, in the dialect that xgrammar's JSON Schema converter reads.

xgrammar (0.2.8) reads a ``pattern`` in one of two ways. An ASCII pattern becomes an automaton that leaves out every
escape of JSON and misreads some patterns (``a-?`` does not match ``a``, overlong UTF-8 passes). A pattern with any
other character in it becomes rules on the raw text between the quotes: that way everything can be said exactly,
escapes included, so every expression here starts with a character that occurs zero times.
"""

import json
import re
from collections.abc import Iterable

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.grammar.patterns import Untranslatable, character_but, spelled_ways
from constrained_k2.grammar.terminals import CHARACTER, spelling

_RAW_TEXT = "(?:\xe9){0}"
_PLAIN = "[ !#-\\[\\]-\ud7ff\ue000-\U0010ffff]"
_ESCAPE = r'\\(?:["\\bfnrt]|u00(?:0[0-7bBeEfF]|1[0-9a-fA-F]))'
_CHARACTER = f"(?:{_PLAIN}|{_ESCAPE})"
_CHARACTERS = (
    f"{_PLAIN}*(?:{_ESCAPE}{_PLAIN}*)*"  # any number, in runs: of a token in a run the mask is made beforehand
)
_HEX = "[0-9a-fA-F]"
_PAIR = rf"[dD](?:[0-7]{_HEX}{{2}}|[89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
_ANY_ESCAPE = rf'\\(?:["\\\/bfnrt]|u(?:[0-9a-cA-CefEF]{_HEX}{{3}}|{_PAIR}))'
ANY_STRING = f"{_RAW_TEXT}{_PLAIN}*(?:{_ANY_ESCAPE}{_PLAIN}*)*"
"""Any string in any spelling. xgrammar's own strings let the bytes of lone surrogates through, which are no UTF-8."""

_POINT = re.compile(r"\\x\{([0-9a-f]+)\}")
_SYNTAX = frozenset("^$\\.*+?()[]{}|/-")


def found(pattern: str) -> str:
    """The strings in which a pattern is found.

    Raises:
        Untranslatable: It has no counterpart on JSON's spelling.
    """
    return _whole(_ways(pattern))


def sized(shortest: int, longest: int | None) -> str:
    """The strings of these lengths, in characters."""
    if longest is None:
        return _whole([f"{CHARACTER}{{{shortest - 1}}}{_led_by(_PLAIN)}" if shortest else f"{CHARACTER}*"])
    return _whole([f"{CHARACTER}{{{shortest},{longest}}}"])


def none_of(words: Iterable[str]) -> str:
    """The strings that are none of these."""
    return _whole([_other(sorted(set(words)))])


def other_keys(names: list[str]) -> str:
    """Strings that are none of these keys: only such as begin with another character, and the empty one.

    All the others would take a state for each character of each key, and each such state costs xgrammar milliseconds
    and tens of kilobytes on a vocabulary of 160,000 tokens.
    """
    first = _character_but(sorted({name[:1] for name in names} - {""}))
    plain = first.removeprefix("(?:").removesuffix(f"|{_ESCAPE})")
    ways = [_led_by(plain) if plain.endswith("]") else f"{first}{CHARACTER}*"]
    return _whole(ways if "" in names else [*ways, ""])


def one_of(words: Iterable[str]) -> str:
    """These strings."""
    return _whole(["".join(map(spelling, word)) for word in sorted(words)])


class PatternSearch:
    """Whether patterns are found in texts, by Python's ``re`` on the very expressions that are written.

    Slow on hostile patterns, so only for a process that can be killed.
    """

    def __init__(self) -> None:
        self._compiled: dict[str, re.Pattern[str]] = {}

    def is_found(self, pattern: str, text: str) -> bool:
        """See there.

        Raises:
            UnsupportedSchema: The pattern has no counterpart on JSON's spelling.
        """
        if pattern not in self._compiled:
            try:
                ways = "|".join(_ways(pattern))
            except Untranslatable as error:
                raise UnsupportedSchema(
                    f"whether a value has the pattern {pattern[:80]!r} cannot be told: {error}",
                    "",
                    "Rewrite it without look-around and back-references",
                    "pattern",
                ) from error
            self._compiled[pattern] = re.compile(_POINT.sub(lambda point: rf"\U{int(point[1], 16):08x}", ways))
        return self._compiled[pattern].fullmatch(json.dumps(text, ensure_ascii=False)[1:-1]) is not None


def _ways(pattern: str) -> list[str]:
    if "{," in pattern:
        raise Untranslatable("'{,' means itself in ECMA-262 and a repetition in Python, whose reader this is")
    return spelled_ways(pattern)


def _whole(ways: list[str]) -> str:
    """The expression in xgrammar's dialect, where code points stand for themselves; it matches whole strings."""
    body = "|".join(ways).replace(f"{CHARACTER}*", _CHARACTERS).replace(CHARACTER, _CHARACTER)
    return f"{_RAW_TEXT}(?:{_POINT.sub(_itself, body)})"


def _itself(point: re.Match[str]) -> str:
    character = chr(int(point[1], 16))
    return f"\\{character}" if character in _SYNTAX else character


def _led_by(plain: str) -> str:
    """One character of the class or an escape, then any number: as two branches, so that either begins a run."""
    return f"(?:{plain}{CHARACTER}*|{_ESCAPE}{CHARACTER}*)"


def _character_but(excluded: list[str]) -> str:
    """One character that is none of these; the escapes as one branch where they all may be written."""
    if any(character < " " or character in '"\\' for character in excluded):
        return character_but("".join(excluded))
    ranges, start = [], 0x20
    for code in sorted({*map(ord, excluded), 0x22, 0x5C, 0x110000}):
        for low, high in ((start, min(code - 1, 0xD7FF)), (max(start, 0xE000), code - 1)):
            if low <= high:
                ranges.append(rf"\x{{{low:x}}}-\x{{{high:x}}}")
        start = code + 1
    return f"(?:[{''.join(ranges)}]|{_ESCAPE})"


def _other(words: list[str]) -> str:
    """One way: whatever leaves the tree of the words, or ends inside it where no word ends."""
    branches = {character: [word[1:] for word in words if word.startswith(character)] for word in words
                for character in word[:1]}  # fmt: skip
    ways = [f"{_character_but(sorted(branches))}{CHARACTER}*" if branches else f"{CHARACTER}{CHARACTER}*"]
    ways += [f"{spelling(character)}{_other(rest)}" for character, rest in sorted(branches.items())]
    if "" not in words:
        ways.append("")
    return f"(?:{'|'.join(ways)})"
