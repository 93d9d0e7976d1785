"""Expands a schema, level by level, into shapes (sets of values of one type); resolves $ref, allOf.

{"anyOf": [{"type": "integer"}, {"const": "x"}], "minimum": 3}     Number(integer=True, low=3), ListedValue('"x"')
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema, kind_of_json
from constrained_k2.schema.absorption import absorbed
from constrained_k2.schema.dialects import NULLABLE, OR_NULL, read
from constrained_k2.schema.document import IllFormed, SchemaDocument
from constrained_k2.schema.instances import is_instance
from constrained_k2.schema.keywords import keyword_places, lenient, plain_shapes, rows_of, typed_shapes
from constrained_k2.schema.keywords.keyword import NotExpressible, Reader
from constrained_k2.schema.keywords.scalars import allowed_values
from constrained_k2.schema.notes import Notes
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    NEVER,
    Kind,
    ListedValue,
    Node,
    Null,
    Object,
    SchemaLiteral,
    Shape,
    Shapes,
    kind_of_shape,
    meet,
)
from constrained_k2.schema.wanted_members import chosen, settled
from constrained_k2.threads.interruptible import check_deadline

T = TypeVar("T")
_MAX_SHAPES = 256  # max shapes in one union
_MAX_NODES = 4096  # max nodes of one schema
_WANTING = 30  # a pair in which an object has witnesses costs as much as this many other pairs, and is often in vain
_LOOKED_UP = 64  # key lookups in maps that cost as much as intersecting one pair
_PRUNING_DEPTH = 3


class _ReenteredError(Exception):
    """Pruning reached a subschema that is still being expanded."""


class Normalizer:
    """Expands the nodes of one schema.

    Args:
        document: The schema.
        matches: Returns True if a text contains a match of a pattern; must be safe on hostile patterns.
        relaxes_negations: True to relax negations that have no exact grammar; else they are narrowed.
        exact_witnesses: True to negate key maps exactly, by witnesses, which may cost too much; else they are narrowed
            or relaxed.
        left_out: Keywords to relax because their alternatives cost too much. If there are any, ``oneOf`` is read as
            ``anyOf``.
    """

    def __init__(
        self,
        document: SchemaDocument,
        matches: Callable[[str, str], bool],
        *,
        relaxes_negations: bool = False,
        exact_witnesses: bool = True,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        self.document = document
        self.matches = matches
        self.notes = Notes(document)
        self.relaxes_negations = relaxes_negations
        self.exact_witnesses, self.left_out = exact_witnesses, left_out
        self._narrowed: set[Node | SchemaLiteral] = set()  # nodes and subschemas whose shapes lack instances
        self._nodes: dict[Node, Shapes] = {NEVER: ()}
        self._parts: dict[Node, Shapes] = {}  # parts of nodes, by JSON type or as unique items: at most seven per node
        self._synthetic: dict[str, tuple[Node, ...]] = {}
        self._literals: dict[SchemaLiteral, Shapes] = {}
        self._maps: dict[int, tuple[object, dict[str, Node]]] = {}  # id of a map -> the map, its named members
        self._never: dict[Node, bool] = {}
        self._open: list[SchemaLiteral] = []
        # met_wanting: True if an object with witnesses was intersected
        self._pruning, self.met_wanting = 0, False

    def shapes(self, node: Node) -> Shapes:
        """The shapes of a node, as a union; empty if nothing satisfies the node."""
        found = self._nodes.get(node)
        if found is None:
            found = self._parts.get(node)
        if found is None:
            check_deadline()
            if len(self._nodes) >= _MAX_NODES:
                raise self.notes.too_costly(
                    f"the schema unfolds into more than {_MAX_NODES} parts", "nodes", _MAX_NODES
                )
            before, found = self.notes.narrowings, EVERYTHING
            for literal in sorted(node):
                found = self.both(found, self._expand(literal))
            wanting = any(isinstance(shape, Object) and shape.wanted for shape in found)
            found = self._nodes[node] = self._pruned(partial(self._with_chosen, found), found) if wanting else found
            if self.notes.narrowings > before:
                self._narrowed.add(node)
        elif node in self._narrowed:
            self.notes.narrowings += 1
        return found

    def both(self, some: Shapes, others: Shapes) -> Shapes:
        """The intersection of two unions."""
        if some == EVERYTHING:
            return others
        if others == EVERYTHING:
            return some
        met: dict[Shape, None] = {}
        limit = max(_MAX_SHAPES, len(some), len(others))  # a long enum does not multiply
        by_kind: dict[Kind, list[Shape]] = {}
        for other in others:
            by_kind.setdefault(kind_of_shape(other), []).append(other)
        for one in some:
            for other in by_kind.get(kind_of_shape(one), ()):
                if (shape := self.meet(one, other)) is not None:
                    met[shape] = None
            if len(met) > limit:
                met = dict.fromkeys(absorbed(tuple(met)))
            if len(met) > limit:
                raise self.notes.too_costly(f"alternatives multiply to more than {limit}", "alternatives", limit)
        return absorbed(tuple(met))

    def either(self, *unions: Iterable[Shape]) -> Shapes:
        """The union of unions."""
        return tuple(dict.fromkeys(shape for union in unions for shape in union))

    def is_instance(self, node: Node, value: Any) -> bool:
        """True if a value satisfies a node."""
        return node == ANY or any(is_instance(self, shape, value) for shape in self.shapes(node))

    def pattern_problem(self, pattern: str) -> str:
        """The reason why the engine cannot match a pattern; empty if it can."""
        try:
            self.matches(pattern, "")
        except (UnsupportedSchema, SchemaTooCostly) as error:
            return error.problem
        return ""

    def any_node(self, nodes: tuple[Node, ...]) -> Node:
        """A synthetic node for the union of ``nodes``; each node must consist of one subschema."""
        name = f"any of {len(self._synthetic)}"
        self._synthetic[name] = nodes
        return frozenset({(name, True)})

    def shapes_node(self, shapes: Shapes) -> Node:
        """A synthetic node for a union of shapes."""
        name = f"shapes {len(self._synthetic)}"
        self._synthetic[name] = ()
        self._literals[name, True] = shapes
        return frozenset({(name, True)})

    def by_kind(self, node: Node) -> dict[Kind, tuple[Node, Shapes]]:
        """JSON type -> (a synthetic node for the instances of ``node`` of that type, the shapes of that type)."""
        found: dict[Kind, list[Shape]] = {}
        for shape in self.shapes(node):
            found.setdefault(kind_of_shape(shape), []).append(shape)
        parts: dict[Kind, tuple[Node, Shapes]] = {}
        for kind, shapes in found.items():
            part = self.part_of(node, f"type {kind}", tuple(shapes))
            parts[kind] = part, self._parts[part]
        return parts

    def part_of(self, node: Node, name: str, shapes: Shapes) -> Node:
        """A synthetic node for the instances of ``node`` that ``shapes`` describe."""
        self._synthetic[name] = ()
        part = node | {(name, True)}
        self._parts.setdefault(part, shapes)
        return part

    def occurrences(self, node: Node, keywords: tuple[str, ...]) -> list[str]:
        """Pointers of ``keywords`` in the subschemas of a node that apply in place; coverage reports notes there."""
        return keyword_places(self.document, self._synthetic, [pointer for pointer, _ in sorted(node)], keywords)

    def meet(self, one: Shape, other: Shape) -> Shape | None:
        """The intersection of two shapes; None if it is known to be empty."""
        is_wanting = bool(getattr(one, "wanted", ()) or getattr(other, "wanted", ()))
        self.met_wanting = self.met_wanting or is_wanting
        self.notes.spend(is_wanting * _WANTING or 1)
        if isinstance(one, ListedValue):
            return one if is_instance(self, other, one.value) else None
        if isinstance(other, ListedValue):
            return other if is_instance(self, one, other.value) else None
        shape = meet(one, other)
        if not isinstance(shape, Object) or not (shape.required or shape.wanted):
            return shape
        self.notes.spend(len(shape.required) * len(shape.maps) // _LOOKED_UP)
        # Early test: if a required key can have no value, as in branches with different constants, nothing is left.
        value_node = self.value_node
        assert isinstance(one, Object)  # because their intersection is one
        assert isinstance(other, Object)
        values = [value_node(one, key) | value_node(other, key) for key in sorted(shape.required)]
        if any(map(self.is_never, values)):
            return None
        if self._pruned(lambda: not all(map(self.shapes, values)), unknown=False):
            return None
        known: Shape | None = shape
        return self._pruned(partial(settled, self, shape), known) if shape.wanted else shape

    def is_never(self, node: Node) -> bool:
        """True if a node is unsatisfiable because one of its subschemas is ``false``; nothing else is examined."""
        found = self._never.get(node)
        if found is None:
            found = self._never[node] = any(
                pointer == "never" or self.document.find(pointer) is (not holds) for pointer, holds in node
            )
        return found

    def value_node(self, shape: Object, key: str) -> Node:
        """The node of a key's value: the conjunction of what all maps require."""
        node = shape.found.get(key)
        if node is None:
            node = self._value_node(shape, key)
            if shape.maps:  # the shape without maps is shared by all schemas, and keeps nothing of them
                shape.found[key] = node
        return node

    def _value_node(self, shape: Object, key: str) -> Node:
        node = ANY
        for rules in shape.maps:
            found = self._maps.get(id(rules))  # by identity: a map of thousands of keys takes long to hash
            if found is None:
                found = self._maps[id(rules)] = (rules, dict(rules.named))
            part = found[1].get(key, rules.extra)
            if rules.patterns:
                matched = [value for pattern, value in rules.patterns if self.matches(pattern, key)]
                part = found[1].get(key, ANY).union(*matched) if matched else part
            node = node | part if node and part else node or part
        return node

    def _with_chosen(self, shapes: Shapes) -> Shapes:
        """The union with keys chosen for the witnesses of its objects, unless that makes too many alternatives."""
        alternatives = [
            chosen(self, one, self.meet) if isinstance(one, Object) and one.wanted else [one] for one in shapes
        ]
        return self.either(*alternatives) if sum(map(len, alternatives)) <= _MAX_SHAPES else shapes

    def _pruned(self, prune: Callable[[], T], unknown: T) -> T:
        """The result of pruning; ``unknown`` if it goes too deep, or reaches a subschema that is being expanded."""
        if self._pruning >= _PRUNING_DEPTH:
            return unknown
        self._pruning += 1
        try:
            return prune()
        except _ReenteredError:
            return unknown
        finally:
            self._pruning -= 1

    def _expand(self, literal: SchemaLiteral) -> Shapes:
        found = self._literals.get(literal)
        if found is not None:
            self.notes.narrowings += literal in self._narrowed
            return found
        pointer, holds = literal
        if pointer == "never":
            return ()
        if literal in self._open:
            if self._pruning:
                raise _ReenteredError
            raise self.document.ill_formed("the schema refers to itself without end", pointer, "$ref")
        before = self.notes.narrowings
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
        if self.notes.narrowings > before:
            self._narrowed.add(literal)
        return found

    def _expand_schema(self, pointer: str, *, holds: bool) -> Shapes:
        schema = self.document.find(pointer)
        if self.document.draft == "legacy" and isinstance(schema, dict) and "$ref" in schema:
            schema = {name: schema[name] for name in ("$ref", *NULLABLE) if name in schema}  # it ignores other siblings
        schema, null, notes = read(schema)
        for name, reason in notes:
            self.notes.add(f"{pointer}/{name}" if name else pointer, "read_as", reason)
        if isinstance(schema, bool):
            return EVERYTHING if schema == holds else ()
        if not isinstance(schema, dict):
            self.notes.add(pointer, "relaxed", f"a schema is an object or a boolean, not {kind_of_json(schema)}")
            return EVERYTHING
        found = self._holds(schema, pointer) if holds else self._fails(schema, pointer)
        if not null:
            return found
        others = tuple(shape for shape in found if kind_of_shape(shape) != "null")
        if (len(others) < len(found)) == holds:
            return found
        self.notes.add(f"{pointer}/{null}", "read_as", OR_NULL)
        return self.either(others, (Null(),)) if holds else others

    def _holds(self, schema: dict[str, Any], pointer: str) -> Shapes:
        plain = plain_shapes(schema)
        if plain is not None:
            return plain
        read = Reader(self, schema, pointer)
        found = self.both(allowed_values(read), typed_shapes(read))
        for row in rows_of(schema):
            if row.holds is not None and (name := row.name_in(schema)) in self.left_out:
                read.note(name, "relaxed", "the schema's alternatives cost too much")
            elif row.holds is not None:
                try:
                    shapes = lenient(row.holds, read, row)
                    found = found if shapes is None else self.both(found, shapes)
                except (NotExpressible, SchemaTooCostly) as error:
                    read.relax_for(error, row.name_in(schema))
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
                    read.relax_for(error, name, "negated: ")
                    return EVERYTHING
                read.note_negation(name, error.problem)
        return tuple(failing)
