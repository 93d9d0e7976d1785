"""Rewrites Python's and Go's regex syntax, and /^…$/, as ECMA-262; splits off or drops lookarounds."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_OTHER_DIALECT = re.compile(r"\\[AZz]|\(\?P[<=]\w+[>)]|\A\^?\(\?[is]+\)")
_IN_SLASHES = re.compile(r"/(\^.*\$)/([gisu]*)", re.DOTALL)  # a literal of JavaScript: as a pattern it matches nothing
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_REPEATS = frozenset("*+?{")
_BACK_REFERENCE = re.compile(r"\\[1-9]|\\k<")
_ITEM = re.compile(r"\\.?|\[(?:\\.|[^]\\])*[]\\]?|[()|]", re.DOTALL)  # an escape, a class, a parenthesis or a bar


class PatternParts(NamedTuple):
    """A pattern, split into patterns that must all match somewhere in a text and ``absent`` ones that must not."""

    found: tuple[str, ...]
    absent: tuple[str, ...] = ()


def parts_of(pattern: str) -> PatternParts:
    """Split leading lookahead: ``^(?=A)(?!B)C`` requires ``^A`` and ``^C`` to be found, and ``^B`` to be absent."""
    found: list[str] = []
    absent: list[str] = []
    if _BACK_REFERENCE.search(pattern):
        return PatternParts((pattern,))  # each part would number its groups from 1
    rest = pattern
    while rest.startswith(("^(?=", "^(?!")):
        end = _group_end(rest, 1)
        if not end or rest[end : end + 1] in _REPEATS or _has_alternatives(rest):
            return PatternParts((pattern,))
        inside = rest[4 : end - 1]
        (found if rest[3] == "=" else absent).append(f"^(?:{inside})" if _has_alternatives(inside) else f"^{inside}")
        rest = f"^{rest[end:]}"
    if rest != "^" or not (found or absent):
        found.append(rest)
    return PatternParts(tuple(found), tuple(absent))


def without_looks(pattern: str) -> str:
    r"""A pattern without its lookarounds, which matches at least as much; unchanged if they cannot be removed.

    ``^(?:\d{3}|(?=[\d.]{5}$)\d+\.\d{2})$`` becomes ``^(?:\d{3}|\d+\.\d{2})$``.
    """
    if _BACK_REFERENCE.search(pattern):
        return pattern
    text, at = "", 0
    while at < len(pattern):
        if pattern.startswith(_LOOKS, at):
            end = _group_end(pattern, at)
            if not end or pattern[end : end + 1] in _REPEATS:
                return pattern
        else:
            item = _ITEM.match(pattern, at)
            end = at + 1 if item is None else item.end()
            text += pattern[at:end]
        at = end
    return text


def in_ecma(pattern: str) -> str:
    """Rewrite regex syntax of Python or Go that differs from ECMA-262.

    That is: anchors, named groups and references to them, flags for the whole pattern, and JavaScript's ``/^…$/``.
    """
    if literal := _IN_SLASHES.fullmatch(pattern):
        flags = "".join(flag for flag in "is" if flag in literal[2])
        return f"(?{flags}:{literal[1]})" if flags else literal[1]
    if not _OTHER_DIALECT.search(pattern):
        return pattern
    translated = re.sub(r"\[\^?]?(?:\\.|[^]\\])*\]|\\.|\(\?P[<=]\w+[>)]", _translated, pattern, flags=re.DOTALL)
    return re.sub(r"\A(\^?)\(\?([is]+)\)(.*)", r"(?\2:\1\3)", translated, flags=re.DOTALL)


def _translated(item: re.Match[str]) -> str:
    if item[0].startswith("(?P<"):
        return f"(?<{item[0][4:]}"
    if item[0].startswith("(?P="):
        return rf"\k<{item[0][4:-1]}>"
    return {"\\A": "^", "\\Z": "$", "\\z": "$"}.get(item[0], item[0])


def _steps(pattern: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Each parenthesis and bar outside of classes: (position after it, the character, depth after it)."""
    depth = 0
    for item in _ITEM.finditer(pattern, start):
        depth += (item[0] == "(") - (item[0] == ")")
        if item[0] in {"(", ")", "|"}:
            yield item.end(), item[0], depth


def _group_end(pattern: str, start: int) -> int:
    """The position after the group that opens at ``start``; 0 if it does not close."""
    return next((end for end, _, depth in _steps(pattern, start) if not depth), 0)


def _has_alternatives(pattern: str) -> bool:
    """True if a pattern has alternatives outside of all groups."""
    return any(item == "|" and not depth for _, item, depth in _steps(pattern))
