"""Classes for implementing keywords: Keyword (a table row), Reader (of schemas), Expander, Case."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from fractions import Fraction
from typing import Any, Protocol

from constrained_k2.errors import ConstrainedK2Error, SchemaTooCostly
from constrained_k2.schema.document import IllFormed, SchemaDocument, escape
from constrained_k2.schema.doubles import number_of
from constrained_k2.schema.ecma import syntax_problem
from constrained_k2.schema.notes import Notes, NoteStatus
from constrained_k2.schema.pattern import PatternParts, in_ecma, parts_of
from constrained_k2.schema.shapes import ANY, Node, Object, Shape, Shapes, is_number

_MAX_SIZE = 10**9  # above any context length; keeps counts small enough for the grammar writers


class Expander(Protocol):
    """The part of the :class:`~constrained_k2.schema.normalize.Normalizer` that keywords and instances use."""

    # ruff: noqa: D102 - the Normalizer documents these, and readers are named after the type that they return
    document: SchemaDocument
    notes: Notes
    relaxes_negations: bool
    exact_witnesses: bool
    left_out: frozenset[str]

    @property
    def matches(self) -> Callable[[str, str], bool]: ...
    def shapes(self, node: Node) -> Shapes: ...
    def both(self, some: Shapes, others: Shapes) -> Shapes: ...
    def either(self, *unions: Iterable[Shape]) -> Shapes: ...
    def any_node(self, nodes: tuple[Node, ...]) -> Node: ...
    def shapes_node(self, shapes: Shapes) -> Node: ...
    def pattern_problem(self, pattern: str) -> str: ...
    def is_instance(self, node: Node, value: Any) -> bool: ...
    def is_never(self, node: Node) -> bool: ...
    def value_node(self, shape: Object, key: str) -> Node: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the keywords of one schema. A missing keyword is None or empty; a wrong type raises IllFormed."""

    normalizer: Expander
    schema: dict[str, Any]
    pointer: str

    def wrong(self, keyword: str, problem: str) -> IllFormed:
        """The error for a keyword with an invalid value."""
        return self.normalizer.document.ill_formed(problem, f"{self.pointer}/{escape(keyword)}", keyword)

    def note(self, keyword: str, status: NoteStatus, reason: str) -> None:
        """Note that a keyword is not enforced exactly."""
        self.normalizer.notes.add(f"{self.pointer}/{keyword}", status, reason)

    def relax_for(self, error: ConstrainedK2Error, keyword: str, beside: str = "") -> None:
        """Note that a keyword is relaxed because of an error; ``beside`` is text before the error's problem."""
        for_cost = isinstance(error, SchemaTooCostly)
        self.normalizer.notes.add(f"{self.pointer}/{keyword}", "relaxed", beside + error.problem, for_cost=for_cost)

    def relax(self, keyword: str, problem: str) -> None:
        """Note that a keyword is left out, because its value has no meaning."""
        self.normalizer.notes.add(f"{self.pointer}/{keyword}", "relaxed", problem)

    def note_negation(self, keyword: str, reason: str = "the negation of this keyword has no exact grammar") -> None:
        """Note that a negated keyword is narrowed; raises NotExpressible if negations are to be relaxed instead."""
        if self.normalizer.relaxes_negations:
            raise NotExpressible(reason)
        self.note(keyword, "narrowed", f"negated: {reason}")

    def without(self, keyword: str) -> "Reader":
        """A reader of the schema without one keyword."""
        return replace(self, schema={name: value for name, value in self.schema.items() if name != keyword})

    def at(self, *path: str | int, holds: bool = True) -> Node:
        """The node of one subschema, by its path in this schema."""
        return frozenset({("/".join((self.pointer, *(escape(str(token)) for token in path))), holds)})

    def branches(self, keyword: str, *, holds: bool = True) -> list[Node]:
        """The nodes of a keyword's array of at least one schema."""
        value = self.schema.get(keyword, [])
        if not isinstance(value, list) or not value:
            raise self.wrong(keyword, "is not an array of at least one schema")
        return [self.at(keyword, number, holds=holds) for number in range(len(value))]

    def all_of(self, nodes: Iterable[Node]) -> Shapes:
        return self.normalizer.shapes(frozenset().union(*nodes))

    def any_of(self, nodes: Iterable[Node]) -> Shapes:
        return self.normalizer.either(*map(self.normalizer.shapes, nodes))

    def number(self, keyword: str) -> Fraction | None:
        value = self.schema.get(keyword)
        if value is None:
            return None
        if not is_number(value):
            raise self.wrong(keyword, "is not a number")
        return number_of(value)

    def bound(self, keyword: str) -> tuple[Fraction, bool] | None:
        """A bound, and True if it is exclusive."""
        value = self.number(keyword)
        return None if value is None else (value, keyword.startswith("exclusive"))

    def size(self, keyword: str) -> int | None:
        value = self.number(keyword)
        if value is not None and (value.denominator != 1 or value < 0):
            raise self.wrong(keyword, "is not a non-negative integer")
        return None if value is None else min(int(value), _MAX_SIZE)

    def text(self, keyword: str) -> str | None:
        value = self.schema.get(keyword)
        if value is not None and not isinstance(value, str):
            raise self.wrong(keyword, "is not a string")
        return value

    def names(self, keyword: str) -> list[str]:
        value = self.schema.get(keyword, [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.wrong(keyword, "is not an array of strings")
        return value

    def object(self, keyword: str) -> dict[str, Any]:
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            raise self.wrong(keyword, "is not an object")
        return value

    def items(self) -> tuple[tuple[Node, ...], str]:
        """The nodes of the first items, and the keyword of the rest: in old drafts ``items`` may be an array."""
        is_old = isinstance(self.schema.get("items"), list)
        first, rest = ("items", "additionalItems") if is_old else ("prefixItems", "items")
        listed = self.schema.get(first, [])
        if not isinstance(listed, list):
            raise self.wrong(first, "is not an array")
        return tuple(self.at(first, position) for position in range(len(listed))), rest

    def or_any(self, keyword: str) -> Node:
        """The node of a keyword's schema; without the keyword, anything."""
        return self.at(keyword) if keyword in self.schema else ANY

    def dependencies(self, keyword: str) -> Iterator[tuple[str, Any]]:
        """Each key of a dependency keyword, with the names or the schema that it requires."""
        for key, value in self.object(keyword).items():
            if keyword == "dependentRequired" and not isinstance(value, list):
                raise self.wrong(keyword, "has a value that is not an array")
            if isinstance(value, list) and not all(isinstance(name, str) for name in value):
                raise self.wrong(keyword, "has an array that is not of strings")
            yield key, value

    def in_ecma(self, pattern: str, keyword: str) -> str:
        """A pattern rewritten as ECMA-262; noted if it was written in another dialect."""
        known = in_ecma(pattern)
        if known != pattern:
            self.note(keyword, "read_as", f"{pattern[:80]!r} is read as {known[:80]!r}")
        return known

    def pattern_problem(self, pattern: str, keyword: str) -> str:
        """Why the engine cannot match a pattern, or empty if it can. Raises IllFormed for an invalid pattern."""
        if problem := syntax_problem(pattern):
            raise self.wrong(keyword, f"{pattern[:80]!r} is not a regular expression: {problem}")
        parts = parts_of(pattern) if keyword == "pattern" else PatternParts((pattern,))
        return next(filter(None, map(self.normalizer.pattern_problem, (*parts.found, *parts.absent))), "")


class NotExpressible(ConstrainedK2Error):
    """This use of a keyword has no exact grammar; never leaves this package."""


class Children(Flag):
    """Which parts of a keyword's value are subschemas: the value, its items, its members, or its reference's target."""

    NONE = 0
    SCHEMA = auto()
    ARRAY = auto()
    MAP = auto()
    REFERENCE = auto()


@dataclass(frozen=True, slots=True)
class Case:
    """The properties and items that count as evaluated, for ``unevaluated*``, if some subschemas hold."""

    node: Node = ANY  # the subschemas that are assumed to hold, or not to hold
    names: frozenset[str] = frozenset()  # keys of evaluated properties
    patterns: frozenset[str] = frozenset()  # patterns of keys of evaluated properties
    prefix: int = 0  # how many items are evaluated, from the first
    contained: Node = ANY  # subschemas of "contains"; items that satisfy one are evaluated
    all_properties: bool = False
    all_items: bool = False

    def __or__(self, other: "Case") -> "Case":
        return Case(
            self.node | other.node,
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.prefix, other.prefix),
            self.contained | other.contained,
            self.all_properties or other.all_properties,
            self.all_items or other.all_items,
        )


CasesOf = Callable[[str], list[Case]]
"""Pointer of a subschema that holds -> its cases."""


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword of JSON Schema, or a group of keywords that are read together.

    The functions get a reader of a schema that has at least one of the names. ``holds`` and ``negate`` may raise
    :class:`NotExpressible` or ``SchemaTooCostly``, which coverage reports for the first name. ``evaluates`` yields a
    list of cases for each choice between branches; a keyword without branches yields one list of one case.
    """

    names: dict[str, Children]  # keyword -> which parts of its value are subschemas
    bounds: Callable[[Reader], Iterable[Shape]] | None = None  # an instance must satisfy each shape of its JSON type
    holds: Callable[[Reader], Shapes] | None = None  # a union that contains all instances
    negate: Callable[[Reader], Iterable[Shape]] | None = None  # shapes that fail the keyword; None: no exact grammar
    evaluates: Callable[[Reader, CasesOf], Iterable[list[Case]]] | None = None  # for unevaluated*
    in_place: bool = False  # True if the subschemas apply to the same instance as the keyword
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)  # title, with the keywords to show -> schema

    def name_in(self, schema: dict[str, Any]) -> str:
        """The first of the row's keywords in a schema that has one."""
        return next(name for name in self.names if name in schema)


def size_keywords(
    noun: str, shape: Callable[..., Shape], fewest: str, most: str, examples: dict[str, dict[str, Any]]
) -> tuple[Keyword, Keyword]:
    """The rows of two size keywords of one class of shapes: ``minItems`` and ``maxItems`` for the noun ``Items``."""
    low, high = f"min{noun}", f"max{noun}"
    return (
        Keyword(
            {low: Children.NONE},
            bounds=lambda read: [shape(**{fewest: read.size(low) or 0})],
            negate=lambda read: [shape(**{most: size - 1})] if (size := read.size(low)) else [],
            examples=examples,
        ),
        Keyword(
            {high: Children.NONE},
            bounds=lambda read: [shape(**{most: read.size(high)})],
            negate=lambda read: [] if (size := read.size(high)) is None else [shape(**{fewest: size + 1})],
        ),
    )
