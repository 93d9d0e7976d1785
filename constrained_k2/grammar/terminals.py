"""JSON's tokens as terminals of LLGuidance's Lark dialect.

A string's value can be spelled in many ways, since any character may be escaped. Where only a value's type, length or
pattern matters, any spelling may be written. Where values are told apart (keys, exclusions) a character is written as
itself unless JSON needs it escaped: then one value has one spelling, and nothing passes by in another.
"""

import json
from collections.abc import Iterable

MAX_BLANKS = 64
"""Longest run of blanks between two JSON tokens: enough for indentation, and the end of a model that loops on it."""

_HEX = "[0-9a-fA-F]"
_UNICODE_ESCAPE = (
    rf"\\u(?:[0-9a-cA-CefEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
)
_RAW = r'[^"\\\x00-\x1f]'
_ANY_CHARACTER = rf'(?:{_RAW}|\\["\\\/bfnrt]|{_UNICODE_ESCAPE})'  # lone surrogates have no spelling
CHARACTER = rf'(?:{_RAW}|\\["\\bfnrt]|\\u00(?:0[0-7bBeEfF]|1{_HEX}))'
"""One character of a string in its one spelling."""

# Up to 40 digits on either side of the point, and no number that overflows a double: a model that loops on a digit
# comes to an end.
_FRACTION = r"(?:\.[0-9]{1,40})?"
_EXPONENT = "[eE][+-]?(?:[0-9]{1,2}|[12][0-9]{2})"
_NUMBER = f"-?(?:(?:0|[1-9][0-9]{{0,39}}){_FRACTION}|(?:0|[1-9][0-9]{{0,7}}){_FRACTION}{_EXPONENT})"
PREAMBLE = f"""\
ws: WS?
WS: /[ \\n\\r\\t]{{1,{MAX_BLANKS}}}/
STRING: /"{_ANY_CHARACTER}*"/
PLAIN: /"{CHARACTER}*"/
NUMBER: /{_NUMBER}/
any: STRING | NUMBER | "true" | "false" | "null" | any_array | any_object
any_array: "[" ws (any ws ("," ws any ws)*)? "]"
any_object: "{{" ws (any_member ("," ws any_member)*)? "}}"
any_member: STRING ws ":" ws any ws
"""

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def literal(text: str) -> str:
    """A Lark string that matches exactly this text."""
    return json.dumps(text, ensure_ascii=False)


def key(name: str) -> str:
    """A Lark string that matches a key or a string value in its one spelling (all but the case of hex digits)."""
    return literal(json.dumps(name, ensure_ascii=False))


def one_of(values: Iterable[str]) -> str:
    """A Lark regex that matches these strings, quotes included, each in its one spelling."""
    return "/" + "|".join(f'"{"".join(map(spelling, value))}"' for value in values) + "/"


def spelling(character: str) -> str:
    """A regex of one character in its one spelling inside a JSON string."""
    if character in _SHORT:
        return r"\\" + in_regex(_SHORT[character])
    if character < " ":
        return r"\\u" + "".join(
            f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{ord(character):04x}"
        )
    return in_regex(character)


def in_regex(character: str) -> str:
    """The character as itself in a Lark regex between slashes."""
    if (character.isascii() and character.isalnum()) or character in " _":
        return character
    return rf"\x{{{ord(character):x}}}"


def only_if(conditions: list[str]) -> str:
    """The end of an alternative that needs all these conditions of its rule's parameter; empty for none."""
    if not conditions:
        return ""
    joined = conditions[-1]
    for condition in reversed(conditions[:-1]):
        joined = f"and({condition}, {joined})"
    return f" %if {joined}"
