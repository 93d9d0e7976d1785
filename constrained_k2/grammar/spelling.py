"""Regexes of characters in one canonical spelling: of JSON strings, XTML text or XTML attributes.

A JSON string can be spelled in many ways, as any character may be escaped. If values are compared, each has only one
spelling: a character is written as itself unless the text requires an escape. So no excluded value passes in another
spelling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from constrained_k2.formats.kimi_k3 import escape

TOP = 0x10FFFF
HEX = "[0-9a-fA-F]"
CHARACTER = r'(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f]))'
"""One character of a JSON string in its one spelling."""

_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


@dataclass(frozen=True, slots=True, eq=False)
class Spelling:
    """One spelling of each value: the regexes of its characters, and what surrounds them."""

    terminal: str  # the name of the terminal of all values
    quote: str  # before and after a value
    character: str  # a regex of one character
    plain: tuple[tuple[int, int], ...]  # the code points that are written as themselves
    escapes: Mapping[int, str]  # any other code point -> a regex of its spelling

    @property
    def definition(self) -> str:
        """The line of a grammar that defines the terminal."""
        return f"{self.terminal}: /{self.quote}{self.character}*{self.quote}/\n"


@lru_cache(4096)
def spelling(character: str, form: Spelling) -> str:
    """Return a Lark regex of one character in its one spelling."""
    return form.escapes.get(ord(character)) or _escaped(character)


def _escaped(character: str) -> str:
    is_plain = (character.isascii() and character.isalnum()) or character in " _"
    return character if is_plain else rf"\x{{{ord(character):x}}}"


def _json_escape(code: int) -> str:
    if chr(code) in _SHORT:
        return r"\\" + _escaped(_SHORT[chr(code)])
    return rf"\\u{code:04x}"


JSON = Spelling(
    terminal="PLAIN",
    quote='"',
    character=CHARACTER,
    plain=((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, TOP)),
    escapes={code: _json_escape(code) for code in (*range(32), 34, 92)},
)
"""Inside JSON."""
RAW = Spelling(
    terminal="RAW",
    quote="",
    character=r"[\x{0}-\x{d7ff}\x{e000}-\x{10ffff}]",
    plain=((0, 0xD7FF), (0xE000, TOP)),
    escapes={},
)
"""As raw text: it ends at a special token, which no text contains."""
_ENTITIES = {ord(character): "".join(map(_escaped, escape(character))) for character in '"&'}
ATTRIBUTE = Spelling(
    terminal="ATTRIBUTE",
    quote='"',
    character=rf"(?:[\x{{0}}-!#-%'-\x{{d7ff}}\x{{e000}}-\x{{10ffff}}]|{'|'.join(_ENTITIES.values())})",
    plain=((0, 0x21), (0x23, 0x25), (0x27, 0xD7FF), (0xE000, TOP)),
    escapes=_ENTITIES,
)
"""As the value of an XTML attribute."""
