"""Reads the keywords of one schema, and says where one is of the wrong type."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from constrained_k2.schema.coverage import Status
from constrained_k2.schema.document import escape
from constrained_k2.schema.pattern import PatternParts, is_regex, parts_of
from constrained_k2.schema.shapes import ANY, KeyMap, Node

if TYPE_CHECKING:
    from constrained_k2.schema.normalize import Normalizer


def at(pointer: str, *path: str | int, holds: bool = True) -> Node:
    """The node of one subschema below a pointer."""
    return frozenset({("/".join((pointer, *(escape(str(token)) for token in path))), holds)})


_LARGEST_SIZE = 10**9  # no context holds that many characters or items


class Reader:
    """Reads keyword values, and says where one is of the wrong type."""

    def __init__(self, normalizer: "Normalizer", schema: dict[str, Any], pointer: str) -> None:
        self._normalizer = normalizer
        self._document = normalizer.document
        self.schema = schema
        self.pointer = pointer

    def wrong(self, keyword: str, problem: str) -> Exception:
        """The error for a keyword whose value is of the wrong type."""
        return self._document.unsupported(problem, f"{self.pointer}/{escape(keyword)}", keyword)

    def note(self, keyword: str, status: Status, reason: str) -> None:
        """Note that a keyword is not kept exactly."""
        self._normalizer.note(f"{self.pointer}/{keyword}", status, reason)

    def number(self, keyword: str) -> Fraction | None:
        """A keyword's number; None where it is not there."""
        value = self.schema.get(keyword)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(keyword, "is not a number")
        return Fraction(str(value))

    def bound(self, keyword: str) -> tuple[Fraction, bool] | None:
        """A bound and whether it is open, also in draft 4's spelling (``exclusiveMinimum: true``)."""
        is_open = keyword.startswith("exclusive")
        if is_open and isinstance(self.schema.get(keyword), bool):
            return None
        value = self.number(keyword)
        if value is None:
            return None
        beside = f"exclusive{keyword[0].upper()}{keyword[1:]}"
        return value, is_open or self.schema.get(beside) is True

    def size(self, keyword: str) -> int | None:
        """A keyword's non-negative integer; None where it is not there."""
        value = self.number(keyword)
        if value is None:
            return None
        if value.denominator != 1 or value < 0:
            raise self.wrong(keyword, "is not a non-negative integer")
        return min(int(value), _LARGEST_SIZE)

    def text(self, keyword: str) -> str | None:
        """A keyword's string; None where it is not there."""
        value = self.schema.get(keyword)
        if value is not None and not isinstance(value, str):
            raise self.wrong(keyword, "is not a string")
        return value

    def names(self, keyword: str) -> list[str]:
        """A keyword's array of strings."""
        value = self.schema.get(keyword, [])
        if isinstance(value, bool) and keyword == "required":
            return []  # draft 3 wrote it inside the property; it means nothing since draft 4
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.wrong(keyword, "is not an array of strings")
        return value

    def object(self, keyword: str) -> dict[str, Any]:
        """A keyword's object; empty where it is not there."""
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            raise self.wrong(keyword, "is not an object")
        return value

    def list(self, keyword: str) -> list[Any]:
        """A keyword's array of at least one schema."""
        value = self.schema.get(keyword, [])
        if not isinstance(value, list) or not value:
            raise self.wrong(keyword, "is not an array of at least one schema")
        return value

    def items(self) -> tuple[tuple[Node, ...], Node]:
        """The nodes of the first items and of the rest, in the new spelling and the old."""
        schema, pointer = self.schema, self.pointer
        first, rest = (
            ("prefixItems", "items") if not isinstance(schema.get("items"), list) else ("items", "additionalItems")
        )
        listed = schema.get(first, [])
        if not isinstance(listed, list):
            raise self.wrong(first, "is not an array")
        prefix = tuple(at(pointer, first, position) for position in range(len(listed)))
        return prefix, at(pointer, rest) if rest in schema else ANY

    def key_map(self) -> KeyMap:
        """What the three value keywords say together."""
        named = tuple((name, at(self.pointer, "properties", name)) for name in self.object("properties"))
        extra = at(self.pointer, "additionalProperties") if "additionalProperties" in self.schema else ANY
        patterns = []
        for pattern in self.object("patternProperties"):
            if problem := self.pattern_problem(pattern, "patternProperties"):
                for keyword in {"patternProperties", "additionalProperties"} & self.schema.keys():
                    self.note(keyword, "relaxed", problem)
                extra = ANY  # which keys are of the pattern cannot be told
            else:
                patterns.append((pattern, at(self.pointer, "patternProperties", pattern)))
        return KeyMap(named, tuple(patterns), extra)

    def pattern_problem(self, pattern: str, keyword: str) -> str:
        """Why a pattern cannot be matched; empty if it can be.

        Raises:
            UnsupportedSchema: It is no regular expression.
        """
        parts = parts_of(pattern) if keyword == "pattern" else PatternParts((pattern,))
        problems = [self._normalizer.pattern_problem(part) for part in (*parts.found, *parts.absent)]
        if any(problems) and not is_regex(pattern):
            raise self.wrong(keyword, f"holds {pattern[:80]!r}, which is no regular expression")
        return next(filter(None, problems), "")
