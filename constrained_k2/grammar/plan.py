"""What a grammar's state depends on besides the text since the last joint: written down while the grammar is written.

In most schemas the type of a value settles which alternative it belongs to. Then all that is remembered of an object is
which keys it has, of an array how many items, and of a string, once it is closed, nothing. Where that does not hold
(``anyOf`` over objects, ``uniqueItems``, ``contains``, ...) a node's plan says so, and states below it are not shared.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from constrained_k2.schema.shapes import ANY, EVERYTHING, Array, Node, Object, Shape, String, Value

OPAQUE = -1
"""In place of a node's number: what follows depends on more than a plan says."""


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """Of an object.

    Attributes:
        values: Of each declared key, a number of its own (from 0) and the node of its value.
        extra: The node of the values under all other keys.
        counts_extra: Whether it matters how many other keys there are.
    """

    values: Mapping[str, tuple[int, int]]
    extra: int
    counts_extra: bool


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """Of an array.

    Attributes:
        prefix: The nodes of the first items.
        rest: The node of the others.
        counted: The number of items from which on more make no difference.
    """

    prefix: tuple[int, ...]
    rest: int
    counted: int

    def item(self, place: int) -> int:
        """The node of the item at a place."""
        return self.prefix[place] if place < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Of a node.

    Attributes:
        object: Of its objects; None if they are opaque, or there are none.
        array: The same of its arrays.
        free_strings: Whether any string may be written.
        listed_strings: Whether no string may but listed ones.
    """

    object: ObjectPlan | None = None
    array: ArrayPlan | None = None
    free_strings: bool = False
    listed_strings: bool = False


@dataclass(frozen=True, slots=True)
class GrammarPlan:
    """Of a whole grammar.

    Attributes:
        root: The root's number.
        nodes: The plans, by number.
    """

    root: int
    nodes: tuple[NodePlan, ...]

    @property
    def longest_name(self) -> int:
        """The bytes of the longest declared key as it is written; hex digits may be of either case, all alike long."""
        names = (name for node in self.nodes if node.object is not None for name in node.object.values)
        return max((len(json.dumps(name, ensure_ascii=False).encode(errors="replace")) for name in names), default=0)


@dataclass(frozen=True, slots=True)
class _Members:
    values: Mapping[str, Node]
    extra: frozenset[Node]
    counts_extra: bool


class PlanWriter:
    """Gathers the plans while a grammar is written, shape by shape as they came to be written."""

    def __init__(self) -> None:
        self._shapes: dict[Node, list[Shape]] = {ANY: list(EVERYTHING)}
        self._members: dict[Node, list[_Members]] = {ANY: [_Members({}, frozenset({ANY}), counts_extra=False)]}

    def add(self, node: Node, shape: Shape) -> None:
        """Add a shape of a node."""
        self._shapes.setdefault(node, []).append(shape)

    def add_members(self, node: Node, values: Mapping[str, Node], extra: Iterable[Node], *, counts_extra: bool) -> None:
        """Add what members an object of a node may have.

        Args:
            node: The node.
            values: Of each declared key, the value's node.
            extra: Of the other keys, the values' nodes.
            counts_extra: Whether it matters how many other keys there are.
        """
        self._members.setdefault(node, []).append(_Members(values, frozenset(extra), counts_extra))

    def plan(self, root: Node) -> GrammarPlan:
        """The plans of all nodes that were written."""
        numbers = {node: number for number, node in enumerate(self._shapes)}
        return GrammarPlan(numbers[root], tuple(self._node(node, numbers) for node in numbers))

    def _node(self, node: Node, numbers: Mapping[Node, int]) -> NodePlan:
        shapes = self._shapes[node]
        strings = [shape for shape in shapes if _is(shape, String, str)]
        return NodePlan(
            self._object([shape for shape in shapes if _is(shape, Object, dict)], self._members.get(node, []), numbers),
            _array([shape for shape in shapes if _is(shape, Array, list)], numbers),
            free_strings=String() in strings,
            listed_strings=all(isinstance(shape, Value) for shape in strings),
        )

    @staticmethod
    def _object(shapes: list[Shape], members: list[_Members], numbers: Mapping[Node, int]) -> ObjectPlan | None:
        if len(shapes) != 1 or len(members) != 1:
            return None
        declared = members[0].values.items()
        values = {name: (number, numbers.get(node, OPAQUE)) for number, (name, node) in enumerate(declared)}
        extra = [numbers.get(node, OPAQUE) for node in members[0].extra]
        return ObjectPlan(values, extra[0] if len(extra) == 1 else OPAQUE, members[0].counts_extra)


def _is(shape: Shape, kind: type[Shape], of_values: type) -> bool:
    return isinstance(shape, kind) or (isinstance(shape, Value) and isinstance(shape.value, of_values))


def _array(shapes: list[Shape], numbers: Mapping[Node, int]) -> ArrayPlan | None:
    if len(shapes) != 1 or not isinstance(shape := shapes[0], Array) or shape.unique or shape.contains:
        return None
    counted = max(len(shape.prefix), shape.shortest) + 1 if shape.longest is None else shape.longest
    prefix = tuple(numbers.get(node, OPAQUE) for node in shape.prefix)
    return ArrayPlan(prefix, numbers.get(shape.rest, OPAQUE), counted)
