r"""Parses ECMA-262 patterns, and rewrites them for Python's ``re`` with the same meaning.

    (?<a>x)\k<a>[^]    (?P<g1>x)(?P=g1)[\s\S]          a++    refused: the second + has nothing to repeat

A pattern that is valid under the flag ``u`` has its meaning under that flag, as JSON Schema recommends. Older syntax,
valid only without the flag, is accepted if its meaning is clear: ``\-``, ``a{``, ``[\d-z]``. An undefined escape of a
letter or digit is an error, though without the flag it would match that character: its author means another dialect.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_TOP = 0x10FFFF
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CODE = re.compile(
    rf"x[0-9a-fA-F]{{2}}|{_HIGH}{_LOW}|u[0-9a-fA-F]{{4}}|u\{{[0-9a-fA-F]{{1,6}}\}}|c[A-Za-z]|0[0-7]{{0,2}}"
)
_PROPERTY = re.compile(r"[pP]\{(\w+(?:=\w+)?)\}", re.ASCII)
_NUMBER = re.compile(r"[0-9]+")
_REFERENCE = re.compile(r"k<([^>]*)>")
_NAMED = re.compile(r"\(\?<([^=!][^>]*)>")
_MODIFIERS = re.compile(r"\(\?(?=[ims-]+:)([ims]*)(?:-([ims]*))?:")
_GROUPS = ("(?:", "(?=", "(?!", "(?<=", "(?<!")
_COUNTS = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_NO_COUNTS = re.compile(r"\{,[0-9]*\}")
_SETS = frozenset("dDsSwW")
_CONTROLS = frozenset("fnrtv")
_CLASS_SYNTAX = frozenset("\\]^-[&~|")


class NotAPattern(Exception):
    """A text is not a valid ECMA-262 pattern."""


class NotInPython(Exception):
    """A pattern has a part that Python's ``re`` cannot express."""


def _no_property(name: str) -> str:
    raise NotInPython(f"the property {name}")


def in_python(pattern: str, written: Callable[[str], str] = _no_property) -> str:
    r"""Rewrite a pattern for Python's ``re``.

    Args:
        pattern: The pattern.
        written: Spells a property (``\p{…}``, ``\P{…}``); raises :class:`NotInPython` if it cannot spell the property.

    Raises:
        NotAPattern: The pattern is not well formed.
        NotInPython: Python's ``re`` cannot express it.
    """
    return _Scanner(pattern, written).whole()


@lru_cache(256)
def syntax_problem(pattern: str) -> str:
    """The reason why a text is not a valid pattern; empty if it is valid."""
    try:
        in_python(pattern, lambda _: "a")
    except NotAPattern as error:
        return str(error)
    except NotInPython:
        return ""
    return ""


class _Scanner:
    def __init__(self, pattern: str, written: Callable[[str], str]) -> None:
        self._pattern = pattern
        self._written = written
        self._at = 0
        self._made: list[str] = []
        self._can_repeat = False
        self._open: list[tuple[int, bool]] = []  # open groups: (number, 0 if not capturing; True if it may repeat)
        self._closed: set[int] = set()
        self._names: dict[str, int] = {}
        self._groups = 0
        self._references: list[tuple[str, int | str, bool]] = []  # (text, number or name, True if the group is closed)
        self._unsaid = ""  # the first part that Python cannot express

    def whole(self) -> str:
        while self._at < len(self._pattern):
            self._step(self._pattern[self._at])
        if self._open:
            raise NotAPattern("a group is not closed")
        for text, group, is_behind in self._references:
            number = self._names.get(group, 0) if isinstance(group, str) else group
            if not 0 < number <= self._groups:
                raise NotAPattern(f"{text} refers to no group")
            if not is_behind:
                self._unsaid = self._unsaid or f"{text} before the end of its group"
        if self._unsaid:
            raise NotInPython(self._unsaid)
        return "".join(self._made)

    def _step(self, character: str) -> None:
        if character == "\\":
            self._at += 1
            self._escape()
        elif character == "[":
            self._at += 1
            self._add(self._class())
        elif character == "(":
            self._group()
        elif character == ")":
            self._close()
        elif character in "*+?{":
            self._repeat(character)
        else:
            self._at += 1
            self._add(character if character in ".^$|" else re.escape(character), repeats=character not in "^$|")

    def _add(self, text: str, *, repeats: bool = True) -> None:
        self._made.append(text)
        self._can_repeat = repeats

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        found = expression.match(self._pattern, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _escape(self) -> None:
        following = self._pattern[self._at : self._at + 1]
        if following in {"b", "B"}:
            self._at += 1
            self._add(f"\\{following}", repeats=False)
        elif following and following in "123456789":
            found = _NUMBER.match(self._pattern, self._at)
            assert found is not None
            self._at = found.end()
            self._refer(f"\\{found[0]}", int(found[0]) if len(found[0]) <= _MANY_DIGITS else 0)
        elif found := self._take(_REFERENCE):
            self._refer(f"\\{found[0]}", found[1])
        else:
            self._add(self._character_escape())

    def _refer(self, text: str, group: int | str) -> None:
        number = self._names.get(group, 0) if isinstance(group, str) else group
        self._references.append((text, group, number in self._closed))
        self._add(f"(?P=g{number})")

    def _character_escape(self) -> str:
        """An escape for one character or a set of characters, also inside a class."""
        following = self._pattern[self._at : self._at + 1]
        if not following:
            raise NotAPattern("it ends in a backslash")
        if found := self._take(_CODE):
            return _character(found[0])
        if found := self._take(_PROPERTY):
            try:
                return self._written(f"\\{found[0]}")
            except NotInPython as error:
                self._unsaid = self._unsaid or str(error)
                return "a"
        self._at += 1
        if following in _SETS or following in _CONTROLS:
            return f"\\{following}"
        if following.isascii() and following.isalnum():
            raise NotAPattern(f"ECMA-262 has no escape \\{following}")
        return re.escape(following)

    def _class(self) -> str:
        is_negated = self._pattern.startswith("^", self._at)
        self._at += is_negated
        made: list[str] = []
        while not self._pattern.startswith("]", self._at):
            low, first = self._member()
            if not self._pattern.startswith("-", self._at) or self._pattern.startswith("-]", self._at):
                made.append(first)
                continue
            self._at += 1
            high, last = self._member()
            if low is None or high is None:  # "[\\d-z]"
                made += [first, "\\-", last]
            elif low > high:
                raise NotAPattern(f"the range {chr(low)}-{chr(high)} is in the wrong order")
            else:
                made.append(f"{first}-{last}")
        self._at += 1
        if made:
            return f"[{'^' * is_negated}{''.join(made)}]"
        if not is_negated:
            self._unsaid = self._unsaid or "the empty class []"
        return r"[\s\S]"

    def _member(self) -> tuple[int | None, str]:
        """A member of a class: (its code point, or None for a set of characters; its spelling)."""
        if self._at >= len(self._pattern):
            raise NotAPattern("a class is not closed")
        character = self._pattern[self._at]
        self._at += 1
        if character != "\\":
            return ord(character), f"\\{character}" if character in _CLASS_SYNTAX else character
        following, start = self._pattern[self._at : self._at + 1], self._at
        if following == "b":
            self._at += 1
            return 8, r"\x08"
        if following == "-":
            self._at += 1
            return ord("-"), r"\-"
        made = self._character_escape()
        if following in _SETS or _PROPERTY.match(self._pattern, start):
            return None, made
        plain = made[1:] if len(made) == _ESCAPED and made[1] not in _CONTROLS else made
        return _CONTROL_CODES.get(made) or (ord(plain) if len(plain) == 1 else int(made[_ESCAPED:], 16)), made

    def _group(self) -> None:
        number, may_repeat = 0, True
        if not self._pattern.startswith("(?", self._at):
            self._groups += 1
            number = self._groups
            self._at += 1
            self._add(f"(?P<g{number}>", repeats=False)
        elif opening := next((one for one in _GROUPS if self._pattern.startswith(one, self._at)), ""):
            self._at += len(opening)
            may_repeat = not opening.startswith("(?<")
            self._add(opening, repeats=False)
        elif found := self._take(_NAMED):
            self._groups += 1
            number = self._groups
            name = found[1]
            if not name.replace("$", "_").isidentifier():
                raise NotAPattern(f"a group cannot have the name {name[:40]!r}")
            if name in self._names:
                raise NotAPattern(f"two groups have the name {name[:40]!r}")
            self._names[name] = number
            self._add(f"(?P<g{number}>", repeats=False)
        elif found := self._take(_MODIFIERS):
            said = found[1] + (found[2] or "")
            if not said or len(set(said)) < len(said):
                raise NotAPattern(f"{found[0]} says one modifier twice, or none")
            if "m" in found[0]:
                self._unsaid = self._unsaid or "the modifier m"
            self._add(f"(?{found[1]}{f'-{found[2]}' if found[2] else ''}:", repeats=False)
        else:
            raise NotAPattern(f"{self._pattern[self._at : self._at + 4]!r} begins no group of ECMA-262")
        self._open.append((number, may_repeat))

    def _close(self) -> None:
        if not self._open:
            raise NotAPattern("a parenthesis closes no group")
        number, may_repeat = self._open.pop()
        self._closed.add(number)
        self._at += 1
        self._add(")", repeats=may_repeat)

    def _repeat(self, character: str) -> None:
        counts = self._take(_COUNTS) if character == "{" else None
        if character == "{" and counts is None:
            if found := self._take(_NO_COUNTS):
                raise NotAPattern(f"{found[0]} has no lower count: write {{0{found[0][1:]}")
            self._at += 1
            self._add("\\{")
            return
        if counts is None:
            self._at += 1
        text = character if counts is None else counts[0]
        if not self._can_repeat:
            raise NotAPattern(f"there is nothing that {text[:20]!r} could repeat")
        if counts is not None and max(len(counts[1]), len(counts[3] or "")) > _MANY_DIGITS:
            self._unsaid = self._unsaid or f"a count of more than {_MANY_DIGITS} digits"
        elif counts is not None and counts[3] and int(counts[3]) < int(counts[1]):
            raise NotAPattern(f"the counts of {text[:20]!r} are in the wrong order")
        if self._pattern.startswith("?", self._at):  # lazy: which of several matches is found makes no difference
            self._at += 1
        self._add(text, repeats=False)


_ESCAPED: Final = 2  # a backslash and a character
_MANY_DIGITS: Final = 9
_CONTROL_CODES = {r"\f": 12, r"\n": 10, r"\r": 13, r"\t": 9, r"\v": 11}


def _character(escape: str) -> str:
    """Spell the character of an escape by its code; ``escape`` comes without its backslash."""
    if escape[0] == "c":
        code = ord(escape[1]) % 32
    elif escape[0] == "0":
        code = int(escape, 8)
    elif "\\" in escape:
        code = (int(escape[1:5], 16) - 0xD800) * 0x400 + int(escape[7:], 16) - 0xDC00 + 0x10000
    else:
        code = int(escape[1:].strip("{}"), 16)
    if code > _TOP:
        raise NotAPattern(f"\\{escape} is beyond the last character of Unicode")
    return f"\\x{code:02x}" if code < 256 else f"\\U{code:08x}"
