"""ECMA-262 patterns as far as no engine is needed: what is one, and look-ahead at its beginning taken apart."""

import re
import re._parser as parser  # type: ignore[import-not-found] # the standard library's own, without stubs
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PatternParts:
    """A pattern as patterns that must be found in a text and patterns that must not.

    Attributes:
        found: All of these are found.
        absent: None of these is.
    """

    found: tuple[str, ...]
    absent: tuple[str, ...] = ()


def parts_of(pattern: str) -> PatternParts:
    """Take look-ahead at the beginning apart: ``^(?=A)(?!B)C`` is ``^A`` and ``^C`` found, and ``^B`` not."""
    found: list[str] = []
    absent: list[str] = []
    rest = pattern
    while rest.startswith(("^(?=", "^(?!")):
        end = _group_end(rest, 1)
        if not end or _has_alternatives(rest):
            return PatternParts((pattern,))
        inside = rest[4 : end - 1]
        (found if rest[3] == "=" else absent).append(f"^(?:{inside})" if _has_alternatives(inside) else f"^{inside}")
        rest = f"^{rest[end:]}"
    if rest != "^" or not (found or absent):
        found.append(rest)
    return PatternParts(tuple(found), tuple(absent))


def is_regex(pattern: str) -> bool:
    """Whether a pattern is well formed, as far as Python's parser knows ECMA-262's syntax."""
    known = re.sub(r"\\[pP]\{[\w=]+\}", "a", pattern)
    known = re.sub(r"\(\?<(?=[A-Za-z_])", "(?P<", known)
    known = re.sub(r"\\u\{[0-9a-fA-F]+\}|\\c[A-Za-z]", "a", known)
    known = re.sub(r"\\k<\w+>", "a", known)
    try:
        parser.parse(known)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _steps(pattern: str, start: int) -> Iterator[tuple[int, str]]:
    """The characters that structure a pattern: neither escaped nor in a class."""
    position, in_class = start, False
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 2
            continue
        if in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        else:
            yield position, character
        position += 1


def _group_end(pattern: str, start: int) -> int:
    """The position behind the group that opens at ``start``; 0 if it does not close."""
    depth = 0
    for position, character in _steps(pattern, start):
        depth += (character == "(") - (character == ")")
        if not depth:
            return position + 1
    return 0


def _has_alternatives(pattern: str) -> bool:
    """Whether a pattern has alternatives at its top."""
    depth = 0
    for _, character in _steps(pattern, 0):
        depth += (character == "(") - (character == ")")
        if character == "|" and not depth:
            return True
    return False
