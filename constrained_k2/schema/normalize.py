"""A schema's nodes expanded, a level at a time, into unions of shapes: allOf, anyOf, oneOf, not, if, $ref are gone."""

from collections.abc import Callable, Iterable
from typing import Any

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.admit import admits
from constrained_k2.schema.coverage import Status, in_place
from constrained_k2.schema.deep_stack import check_is_awaited
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.keywords import Undecided, combined, typed_shapes
from constrained_k2.schema.opposites import opposite
from constrained_k2.schema.shapes import (
    EVERYTHING,
    NEVER,
    KeyMap,
    Node,
    Object,
    SchemaLiteral,
    Shape,
    Value,
    meet,
    value_of,
)

MAX_SHAPES = 256
"""Alternatives that one node may have."""
MAX_NODES = 4096
"""Nodes that one schema may have."""
MAX_MEETINGS = 6_000
"""Pairs of alternatives that may be intersected in one schema: what bounds the time."""
_PRUNING_DEPTH = 3

Shapes = tuple[Shape, ...]


class _ReenteredError(Exception):
    """While looking ahead, a literal was met that is still being expanded."""


class Normalizer:
    """Expands the nodes of one schema.

    Args:
        document: The schema.
        matches: Whether a pattern is found in a text; must be safe on hostile patterns.

    Attributes:
        notes: Pointer of a keyword -> (``relaxed`` or ``narrowed``, why), for those that are not kept exactly.
    """

    def __init__(self, document: SchemaDocument, matches: Callable[[str, str], bool]) -> None:
        self.document = document
        self.matches = matches
        self.notes: dict[str, tuple[Status, str]] = {}
        self._nodes: dict[Node, Shapes] = {NEVER: ()}
        self._any_of: dict[str, tuple[Node, ...]] = {}
        self._maps: dict[int, tuple[KeyMap, dict[str, Node]]] = {}
        self._literals: dict[SchemaLiteral, Shapes] = {}
        self._open: list[SchemaLiteral] = []
        self._pruning = 0
        self._meetings = 0

    def shapes(self, node: Node) -> Shapes:
        """What a node leaves: a union, empty if nothing satisfies it.

        Raises:
            UnsupportedSchema: A subschema is not one.
            SchemaTooCostly: Over a budget.
        """
        found = self._nodes.get(node)
        if found is None:
            check_is_awaited()
            if len(self._nodes) >= MAX_NODES:
                raise self._too_costly(f"the schema unfolds into more than {MAX_NODES} parts", "nodes", MAX_NODES)
            found = EVERYTHING
            for literal in sorted(node):
                found = self.both(found, self._expand(literal))
            self._nodes[node] = found
        return found

    def both(self, some: Shapes, others: Shapes) -> Shapes:
        """What is in both unions."""
        if some == EVERYTHING:
            return others
        if others == EVERYTHING:
            return some
        met: dict[Shape, None] = {}
        for one in some:
            for other in others:
                shape = self._meet(one, other)
                if shape is not None:
                    met[shape] = None
            if len(met) > MAX_SHAPES:
                raise self._too_costly(f"alternatives multiply to more than {MAX_SHAPES}", "alternatives", MAX_SHAPES)
        return tuple(met)

    def either(self, *unions: Iterable[Shape]) -> Shapes:
        """What is in any of the unions."""
        return tuple(dict.fromkeys(shape for union in unions for shape in union))

    def admits(self, node: Node, value: Any) -> bool:
        """Whether a value satisfies a node."""
        return any(admits(self, shape, value) for shape in self.shapes(node))

    def pattern_problem(self, pattern: str) -> str:
        """Why the engine does not match a pattern; empty if it does."""
        try:
            self.matches(pattern, "")
        except (UnsupportedSchema, SchemaTooCostly) as error:
            return error.problem
        return ""

    def note(self, pointer: str, status: Status, reason: str) -> None:
        """Say that a keyword is not kept exactly; ``relaxed`` outweighs ``narrowed``."""
        if pointer not in self.notes or self.notes[pointer][0] != "relaxed":
            self.notes[pointer] = (status, reason)

    @property
    def is_narrowed(self) -> bool:
        """Whether some shape by now leaves out instances that its schema accepts."""
        return any(status == "narrowed" for status, _ in self.notes.values())

    def any_of(self, nodes: tuple[Node, ...]) -> Node:
        """A node that holds where one of these (of one literal each) does; it has no place in the schema."""
        name = f"any of {len(self._any_of)}"
        self._any_of[name] = nodes
        return frozenset({(name, True)})

    def any_shapes(self, shapes: Shapes) -> Node:
        """A node of these shapes; it has no place in the schema."""
        name = f"shapes {len(self._any_of)}"
        self._any_of[name] = ()
        self._literals[name, True] = shapes
        return frozenset({(name, True)})

    def occurrences(self, node: Node, keywords: tuple[str, ...]) -> list[str]:
        """Where these keywords stand in the subschemas that a node is made of, in place: what a note is about."""
        found: dict[str, None] = {}
        waiting, seen = [pointer for pointer, _ in sorted(node)], set[str]()
        while waiting:
            pointer = waiting.pop()
            if pointer in seen or pointer == "never":
                continue
            seen.add(pointer)
            if pointer in self._any_of:
                waiting += [part for inner in self._any_of[pointer] for part, _ in sorted(inner)]
                continue
            schema = self.document.at(pointer)
            if isinstance(schema, dict):
                found |= dict.fromkeys(f"{pointer}/{keyword}" for keyword in keywords if keyword in schema)
                waiting += in_place(self.document, schema, pointer)
        places = sorted(pointer for pointer in seen if pointer.startswith("#"))
        return list(found) or places[:1] or ["#"]

    def _meet(self, one: Shape, other: Shape) -> Shape | None:
        self._meetings += 1
        if self._meetings > MAX_MEETINGS:
            raise self._too_costly("its alternatives meet too often", "meetings", MAX_MEETINGS)
        if isinstance(one, Value):
            return one if admits(self, other, one.value) else None
        if isinstance(other, Value):
            return other if admits(self, one, other.value) else None
        shape = meet(one, other) if one.kind == other.kind else None
        if isinstance(shape, Object) and self._is_hopeless(shape):
            return None
        return shape

    def _is_hopeless(self, shape: Object) -> bool:
        """Whether a required key has no value: how branches with different constants are told apart early."""
        if self._pruning >= _PRUNING_DEPTH:
            return False
        self._pruning += 1
        try:
            return any(not self.shapes(self.value_node(shape, key)) for key in shape.required)
        except _ReenteredError:  # the key leads back to where we are: not known yet
            return False
        finally:
            self._pruning -= 1

    def _named(self, rules: KeyMap) -> dict[str, Node]:
        """The named keys of a map, by name; found by identity, since a map of thousands takes long to hash."""
        found = self._maps.get(id(rules))
        if found is None:
            found = self._maps[id(rules)] = (rules, dict(rules.named))
        return found[1]

    def value_node(self, shape: Object, key: str) -> Node:
        """The node of a key's value: what all maps say of it together."""
        node: Node = frozenset()
        for rules in shape.maps:
            named = self._named(rules).get(key)
            parts = [] if named is None else [named]
            parts += [value for pattern, value in rules.patterns if self.matches(pattern, key)]
            node = node.union(*parts) if parts else node | rules.extra
        return node

    def _expand(self, literal: SchemaLiteral) -> Shapes:
        found = self._literals.get(literal)
        if found is not None:
            return found
        pointer, holds = literal
        if pointer == "never":
            return ()
        if literal in self._open:
            if self._pruning:
                raise _ReenteredError
            raise self.document.unsupported("the schema refers to itself without end", pointer, "$ref")
        self._open.append(literal)
        try:
            if pointer in self._any_of:
                return self._any(self._any_of[pointer], holds=holds)
            schema = self.document.at(pointer)
            if isinstance(schema, bool):
                found = EVERYTHING if schema == holds else ()
            elif not isinstance(schema, dict):
                raise self.document.unsupported("a schema is an object or a boolean", pointer)
            else:
                found = self._holds(schema, pointer) if holds else self._fails(schema, pointer)
        finally:
            self._open.pop()
        self._literals[literal] = found
        return found

    def _any(self, nodes: tuple[Node, ...], *, holds: bool) -> Shapes:
        if holds:
            return self.either(*map(self.shapes, nodes))
        return self.shapes(frozenset((pointer, not is_held) for node in nodes for pointer, is_held in node))

    def _holds(self, schema: dict[str, Any], pointer: str) -> Shapes:
        """The shapes of the instances that a schema accepts."""
        if self.document.draft == "legacy" and "$ref" in schema:
            return self.shapes(frozenset({(self.document.resolve(schema["$ref"], pointer), True)}))
        found = typed_shapes(self, schema, pointer)
        if "const" in schema or "enum" in schema:
            values = self._values(schema, pointer)
            found = self.both(tuple(value_of(value) for value in values), found)
        for keyword, union in combined(self, schema, pointer):
            try:
                found = self.both(found, union())
            except Undecided as reason:
                self.note(f"{pointer}/{keyword}", "relaxed", str(reason))
            except SchemaTooCostly as reason:
                self.note(f"{pointer}/{keyword}", "relaxed", reason.problem)
        return found

    def _fails(self, schema: dict[str, Any], pointer: str) -> Shapes:
        """The shapes of the instances that a schema rejects: those that fail at least one of its keywords."""
        if self.document.draft == "legacy" and "$ref" in schema:
            return self.shapes(frozenset({(self.document.resolve(schema["$ref"], pointer), False)}))
        unions: list[Shapes] = []
        for keyword, union in opposite(self, schema, pointer):
            try:
                unions.append(union())
            except Undecided as reason:
                self.note(f"{pointer}/{keyword}", "narrowed", f"under a negation: {reason}")
            except SchemaTooCostly as reason:
                self.note(f"{pointer}/{keyword}", "narrowed", f"under a negation: {reason.problem}")
        return self.either(*unions)

    def _values(self, schema: dict[str, Any], pointer: str) -> list[Any]:
        if "enum" in schema and not isinstance(schema["enum"], list):
            raise self.document.unsupported("is not an array", f"{pointer}/enum", "enum")
        values = list(schema["enum"]) if "enum" in schema else [schema["const"]]
        if "enum" in schema and "const" in schema:
            values = [value for value in values if value_of(value) == value_of(schema["const"])]
        return values

    def _too_costly(self, problem: str, budget: str, limit: int) -> SchemaTooCostly:
        return SchemaTooCostly(
            problem,
            self.document.place,
            "Simplify its anyOf, oneOf, allOf and not",
            budget=budget,
            limit=limit,
            actual=limit + 1,
        )
