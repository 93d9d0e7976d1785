"""Expands a schema's nodes, one level at a time, into unions of shapes without allOf, anyOf, not, if and $ref."""

from collections.abc import Callable, Iterable
from typing import Any

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema, kind_of_json
from constrained_k2.schema.compile_pool import check_deadline
from constrained_k2.schema.document import IllFormed, SchemaDocument, local_target
from constrained_k2.schema.instances import is_instance
from constrained_k2.schema.keywords import in_place, lenient, rows_of, typed_shapes
from constrained_k2.schema.keywords.keyword import NoteStatus, NotExpressible, Reader
from constrained_k2.schema.keywords.scalars import allowed_values, type_named
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    NEVER,
    Kind,
    Node,
    Object,
    SchemaLiteral,
    Shape,
    Shapes,
    Value,
    meet,
)

_MAX_SHAPES = 256  # in one union
_MAX_NODES = 4096  # of one schema
_MAX_MEETINGS = 30_000  # pairs of shapes that may be intersected for one schema; bounds the time
_PRUNING_DEPTH = 3


class _ReenteredError(Exception):
    """Pruning reached a literal that is still being expanded."""


class Normalizer:
    """Expands the nodes of one schema.

    Args:
        document: The schema.
        matches: Finds a pattern in a text; must be safe on hostile patterns.
        relaxes_negations: What has no exact negation never fails then; else its negation lacks instances.
    """

    def __init__(
        self, document: SchemaDocument, matches: Callable[[str, str], bool], *, relaxes_negations: bool = False
    ) -> None:
        self.document = document
        self.relaxes_negations = relaxes_negations
        self.matches = matches
        self.notes: dict[str, tuple[NoteStatus, str]] = {}  # pointer of a keyword -> status and reason
        self.is_well_formed = True  # False if some part has no meaning, or one by another name
        self.narrowings = 0  # how often something was narrowed, or shapes were used that lack instances by that
        self._narrowed: set[Node | SchemaLiteral] = set()  # whose shapes lack instances
        self._nodes: dict[Node, Shapes] = {NEVER: ()}
        self._parts: dict[Node, Shapes] = {}  # of a node, by JSON type: at most six for each
        self._synthetic: dict[str, tuple[Node, ...]] = {}
        self._maps: dict[int, tuple[object, dict[str, Node]]] = {}  # id of a map -> the map, its named members
        self._literals: dict[SchemaLiteral, Shapes] = {}
        self._open: list[SchemaLiteral] = []
        self._pruning = 0
        self._meetings = 0

    def shapes(self, node: Node) -> Shapes:
        """The union of a node's instances; empty if nothing satisfies it."""
        found = self._nodes.get(node)
        if found is None:
            found = self._parts.get(node)
        if found is None:
            check_deadline()
            if len(self._nodes) >= _MAX_NODES:
                raise self._too_costly(f"the schema unfolds into more than {_MAX_NODES} parts", "nodes", _MAX_NODES)
            before, found = self.narrowings, EVERYTHING
            for literal in sorted(node):
                found = self.both(found, self._expand(literal))
            self._nodes[node] = found
            if self.narrowings > before:
                self._narrowed.add(node)
        elif node in self._narrowed:
            self.narrowings += 1
        return found

    def both(self, some: Shapes, others: Shapes) -> Shapes:
        """The intersection of two unions."""
        if some == EVERYTHING:
            return others
        if others == EVERYTHING:
            return some
        met: dict[Shape, None] = {}
        limit = max(_MAX_SHAPES, len(some), len(others))  # a long enum does not multiply
        for one in some:
            for other in others:
                if _kind(one) == _kind(other) and (shape := self._meet(one, other)) is not None:
                    met[shape] = None
            if len(met) > limit:
                raise self._too_costly(f"alternatives multiply to more than {limit}", "alternatives", limit)
        return tuple(met)

    def either(self, *unions: Iterable[Shape]) -> Shapes:
        """The union of unions."""
        return tuple(dict.fromkeys(shape for union in unions for shape in union))

    def is_instance(self, node: Node, value: Any) -> bool:
        """True if a value satisfies a node."""
        return node == ANY or any(is_instance(self, shape, value) for shape in self.shapes(node))

    def pattern_problem(self, pattern: str) -> str:
        """Why the engine cannot match a pattern; empty if it can."""
        try:
            self.matches(pattern, "")
        except (UnsupportedSchema, SchemaTooCostly) as error:
            return error.problem
        return ""

    def note(self, pointer: str, status: NoteStatus, reason: str) -> None:
        """Record that a keyword is not enforced exactly; of several statuses, the last in the alphabet counts."""
        if pointer not in self.notes or self.notes[pointer][0] <= status:
            self.notes[pointer] = (status, reason)
        self.is_well_formed = self.is_well_formed and status != "read_as"
        self.narrowings += status == "narrowed"

    def relax(self, pointer: str, problem: str) -> None:
        """Record that a part of the schema has no meaning, and is left out."""
        self.note(pointer, "relaxed", problem)
        self.is_well_formed = False

    def any_node(self, nodes: tuple[Node, ...]) -> Node:
        """A node outside of the schema: the instances of any of these nodes, of one literal each."""
        name = f"any of {len(self._synthetic)}"
        self._synthetic[name] = nodes
        return frozenset({(name, True)})

    def shapes_node(self, shapes: Shapes) -> Node:
        """A node outside of the schema: the instances of these shapes."""
        name = f"shapes {len(self._synthetic)}"
        self._synthetic[name] = ()
        self._literals[name, True] = shapes
        return frozenset({(name, True)})

    def by_kind(self, node: Node) -> dict[Kind, tuple[Node, Shapes]]:
        """JSON type -> a node outside of the schema, the instances of a node that have this type, and its shapes."""
        found: dict[Kind, list[Shape]] = {}
        for shape in self.shapes(node):
            found.setdefault(_kind(shape), []).append(shape)
        parts: dict[Kind, tuple[Node, Shapes]] = {}
        for kind, shapes in found.items():
            name = f"type {kind}"
            self._synthetic[name] = ()
            part = node | {(name, True)}
            parts[kind] = part, self._parts.setdefault(part, tuple(shapes))
        return parts

    def occurrences(self, node: Node, keywords: tuple[str, ...]) -> list[str]:
        """Pointers to these keywords in the subschemas of a node, in place: where coverage reports a note."""
        found: dict[str, None] = {}
        waiting, seen = [pointer for pointer, _ in sorted(node)], set[str]()
        while waiting:
            pointer = waiting.pop()
            if pointer in seen or pointer == "never":
                continue
            seen.add(pointer)
            if pointer in self._synthetic:
                waiting += [part for inner in self._synthetic[pointer] for part, _ in sorted(inner)]
                continue
            schema = local_target(self.document.root, pointer)
            if isinstance(schema, dict):
                found |= dict.fromkeys(f"{pointer}/{keyword}" for keyword in keywords if keyword in schema)
                waiting += in_place(self.document, schema, pointer)
        return list(found) or sorted(pointer for pointer in seen if pointer.startswith("#"))[:1] or ["#"]

    def _meet(self, one: Shape, other: Shape) -> Shape | None:
        self._meetings += 1
        if self._meetings > _MAX_MEETINGS:
            raise self._too_costly("its alternatives meet too often", "meetings", _MAX_MEETINGS)
        if isinstance(one, Value):
            return one if is_instance(self, other, one.value) else None
        if isinstance(other, Value):
            return other if is_instance(self, one, other.value) else None
        shape = meet(one, other)
        return None if isinstance(shape, Object) and self._is_hopeless(shape) else shape

    def _is_hopeless(self, shape: Object) -> bool:
        """True if a required key has no possible value; tells branches with different constants apart early."""
        if self._pruning >= _PRUNING_DEPTH:
            return False
        self._pruning += 1
        try:
            return any(not self.shapes(self.value_node(shape, key)) for key in sorted(shape.required))
        except _ReenteredError:  # the key's schema contains this one: not known yet
            return False
        finally:
            self._pruning -= 1

    def value_node(self, shape: Object, key: str) -> Node:
        """The node of a key's value: the conjunction of what all maps require."""
        node: set[SchemaLiteral] = set()
        for rules in shape.maps:
            found = self._maps.get(id(rules))  # by identity: a map of thousands of keys takes long to hash
            if found is None:
                found = self._maps[id(rules)] = (rules, dict(rules.named))
            named = found[1].get(key)
            matched = [value for pattern, value in rules.patterns if self.matches(pattern, key)]
            if named is None and not matched:
                named = rules.extra
            node.update(named or (), *matched)
        return frozenset(node)

    def _expand(self, literal: SchemaLiteral) -> Shapes:
        found = self._literals.get(literal)
        if found is not None:
            self.narrowings += literal in self._narrowed
            return found
        pointer, holds = literal
        if pointer == "never":
            return ()
        if literal in self._open:
            if self._pruning:
                raise _ReenteredError
            raise self.document.ill_formed("the schema refers to itself without end", pointer, "$ref")
        before = self.narrowings
        self._open.append(literal)
        try:
            if pointer in self._synthetic:
                nodes = self._synthetic[pointer]
                if holds:
                    return self.either(*map(self.shapes, nodes))
                return self.shapes(frozenset((inner, not positive) for node in nodes for inner, positive in node))
            found = self._expand_schema(pointer, holds=holds)
        finally:
            self._open.pop()
        self._literals[literal] = found
        if self.narrowings > before:
            self._narrowed.add(literal)
        return found

    def _expand_schema(self, pointer: str, *, holds: bool) -> Shapes:
        schema = local_target(self.document.root, pointer)
        if isinstance(schema, str) and type_named(schema):
            self.note(pointer, "read_as", f"the text {schema!r} is read as the type {type_named(schema)!r}")
            schema = {"type": schema}
        if isinstance(schema, bool):
            return EVERYTHING if schema == holds else ()
        if not isinstance(schema, dict):
            self.relax(pointer, f"a schema is an object or a boolean, not {kind_of_json(schema)}")
            return EVERYTHING
        if self.document.draft == "legacy" and "$ref" in schema:  # old drafts ignore its siblings
            schema = {"$ref": schema["$ref"]}
        return self._holds(schema, pointer) if holds else self._fails(schema, pointer)

    def _holds(self, schema: dict[str, Any], pointer: str) -> Shapes:
        read = Reader(self, schema, pointer)
        found = self.both(allowed_values(read), typed_shapes(read))
        for row in rows_of(schema):
            if row.holds is not None:
                try:
                    shapes = lenient(row.holds, read, row)
                    found = found if shapes is None else self.both(found, shapes)
                except (NotExpressible, SchemaTooCostly) as error:
                    read.note(row.name_in(schema), "relaxed", error.problem)
        return found

    def _fails(self, schema: dict[str, Any], pointer: str) -> Shapes:
        """The shapes of the instances for which at least one keyword fails."""
        read, failing = Reader(self, schema, pointer), dict[Shape, None]()
        for row in rows_of(schema):
            name = row.name_in(schema)
            try:
                if row.negate is None:
                    read.note_negation(name)
                else:
                    failing |= dict.fromkeys(row.negate(read))
            except IllFormed as error:
                read.relax(name, error.problem)
                return EVERYTHING
            except (NotExpressible, SchemaTooCostly) as error:
                if self.relaxes_negations:
                    read.note(name, "relaxed", f"negated: {error.problem}")
                    return EVERYTHING
                read.note_negation(name, error.problem)
        return tuple(failing)

    def _too_costly(self, problem: str, budget: str, limit: int) -> SchemaTooCostly:
        remedy = "Simplify its anyOf, oneOf, allOf and not"
        return SchemaTooCostly(problem, self.document.location, remedy, budget=budget, limit=limit, actual=limit + 1)


def _kind(shape: Shape) -> Kind:
    """The JSON type of a shape's instances."""
    return shape.value_kind if isinstance(shape, Value) else shape.kind
