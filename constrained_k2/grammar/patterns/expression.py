"""Expressions of a terminal: a regex where one is enough, else Lark, which has intersection and complement.

[ab]+               is a regex;      /[ab]+/ & ~/aa/      is Lark
"""

from collections.abc import Iterable
from typing import NamedTuple


def regex(text: str) -> str:
    """Return a regex in Lark's syntax. An empty one becomes an empty string, because ``//`` begins a comment."""
    return f"/{text}/" if text else '""'


class Expression(NamedTuple):
    """A set of texts: as a regex that may stand in a sequence, or as Lark that may stand anywhere."""

    text: str
    is_regex: bool = True

    @property
    def in_lark(self) -> str:
        """The expression in Lark."""
        return regex(self.text) if self.is_regex else self.text

    def __add__(self, other: "Expression") -> "Expression":  # type: ignore[override] # of a pair, which has no use here
        """Texts of the one, then of the other."""
        if self.is_regex and other.is_regex:
            return Expression(self.text + other.text)
        both = [part.in_lark for part in (self, other) if part != EMPTY]
        return Expression(both[0] if len(both) == 1 else f"({' '.join(both)})", is_regex=False)


EMPTY = Expression("")
"""The empty text."""
NEVER = Expression("(/a/ & /b/)", is_regex=False)
"""No text."""


def either(ways: Iterable[Expression]) -> Expression:
    """Return the texts of all ways."""
    distinct = list(dict.fromkeys(ways))
    if len(distinct) == 1:
        return distinct[0]
    if all(way.is_regex for way in distinct):
        return Expression(f"(?:{'|'.join(way.text for way in distinct)})")
    return Expression(f"({' | '.join(way.in_lark for way in distinct)})", is_regex=False)


def all_of(one: Expression, *others: Expression, none: Iterable[Expression] = ()) -> Expression:
    """Return the texts of the first expression that are of all others, and of none of the last ones."""
    parts = list(dict.fromkeys([*(part.in_lark for part in (one, *others)), *(f"~{part.in_lark}" for part in none)]))
    return one if len(parts) == 1 else Expression(f"({' & '.join(parts)})", is_regex=False)
