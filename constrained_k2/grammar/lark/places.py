"""Maps paths in the arguments to grammar nodes, to find the arrays with ``uniqueItems``.

In ``{"a":[`` the array is at the node of the key ``a``, if all alternatives of the
object have the same one there; if they differ, the array is not found, and coverage names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from constrained_k2.schema.shapes import ANY, Array, Node, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

NOWHERE = -1
"""The place of values that hold no such array."""
_ARGUMENT = frozenset({("argument", True)})  # is in the node of an argument in XTML, which may be another's node too
_REASON = "it cannot be told apart from an array of another schema that may be in its place"


@dataclass(frozen=True, slots=True)
class Place:
    """One place, with the numbers of those within its values."""

    keys: Mapping[str, int] = field(default_factory=dict)
    extra: int = NOWHERE  # under all other keys
    prefix: tuple[int, ...] = ()
    rest: int = NOWHERE  # of the items after these
    alone: bytes | None = None  # if a matcher compares the items, the first bytes that are of one item alone


@dataclass(frozen=True, slots=True)
class Places:
    """All places by number."""

    root: int
    places: tuple[Place, ...]


def places_of(writer: "LarkWriter") -> Places | None:
    """Return the places of what a writer has written; None if no items are compared.

    Arrays that are not found, or not on every way to them, are noted as relaxed.
    """
    model = writer.model
    if not any(written.compared for written in model.nodes.values()):
        return None
    builder = _Builder(writer)
    builder.note_not_found(model.root)
    return Places(builder.numbers[model.root], tuple(builder.places))


class _Builder:
    """The places, and for each node the nodes that it leads to, with True if its place does so too."""

    def __init__(self, writer: "LarkWriter") -> None:
        self._writer, self._model = writer, writer.model
        nodes, parts_of = self._model.nodes, self._model.parts
        self.numbers = self._model.numbers
        arguments = len(self.numbers)
        self.numbers |= {node | _ARGUMENT: arguments + number for number, node in enumerate(parts_of)}
        pointers = {node: sum(pointer.startswith("#") for pointer, _ in node) for node in nodes}
        self._together = [node for node, count in pointers.items() if count > 1]  # of several subschemas at once
        self._ways: dict[Node, list[tuple[Node, bool]]] = {node: [] for node in self.numbers}
        self.places = [replace(self._array(node), **self._object(node)) for node in nodes]
        for node, parts in parts_of.items():  # their types are written before their values
            found = {kind: self.places[self.numbers[part]] for kind, part in parts.items() if part in self.numbers}
            one, other = found.get("array", Place()), found.get("object", Place())
            self.places.append(replace(one, keys=other.keys, extra=other.extra))
            self._ways[node | _ARGUMENT] = [(part, True) for part in parts.values()]

    def note_not_found(self, root: Node) -> None:
        """Note the compared arrays that some way leads to, and no place."""
        seen: set[tuple[Node, bool]] = set()
        waiting = [(root, True)]
        while waiting:
            node, is_found = waiting.pop()
            if (node, is_found) in seen or node not in self.numbers:
                continue
            seen.add((node, is_found))
            waiting += [(child, is_found and is_led) for child, is_led in self._ways[node]]
            written = self._model.nodes.get(node)
            if written and written.compared and (not is_found or self.places[self.numbers[node]].alone is None):
                self._writer.node = node
                self._writer.note(("uniqueItems",), "relaxed", _REASON)

    def _object(self, node: Node) -> dict[str, Any]:
        """Return the keys of a node's objects that lead to one place in all alternatives, and the place of others."""
        written = self._model.nodes[node]
        members = [(values, others) for values, others, _ in written.objects]
        if any(isinstance(shape, Value) and isinstance(shape.value, dict) for shape in written.shapes):
            members.append(({}, frozenset({ANY})))
        named: dict[str, list[Node]] = {}
        for values, _ in members:
            for name, child in values.items():
                named.setdefault(name, []).append(child)
        extra = {child for _, others in members for child in others}
        keys, are_led = {}, True
        for name, children in named.items():
            is_mixed = len(children) < len(members) and not extra <= set(children)  # in some, it is another key
            found = self._number(node, set(children), are_led=not is_mixed)
            keys[name] = NOWHERE if is_mixed else found
            are_led = are_led and not is_mixed
        return {"keys": keys, "extra": self._number(node, extra, are_led=are_led)}

    def _array(self, node: Node) -> Place:
        """Return the place with the items of a node's arrays."""
        written = self._model.nodes[node]
        shapes = written.shapes
        arrays = [shape for shape in shapes if isinstance(shape, Array)]
        is_one = len(arrays) == 1 and not arrays[0].contains
        if not is_one or any(isinstance(shape, Value) and isinstance(shape.value, list) for shape in shapes):
            self._ways[node] += [(child, False) for shape in arrays for child in (*shape.prefix, shape.rest)]
            if any(shape.contains for shape in arrays):  # an item may have to satisfy several nodes
                self._ways[node] += [(other, False) for other in self._together]
                self._together = []  # once is enough
            return Place()
        item, alone = written.compared or (arrays[0].rest, None)
        return Place(
            prefix=tuple(self._number(node, {child}) for child in arrays[0].prefix),
            rest=self._number(node, {item}),
            alone=alone,
        )

    def _number(self, node: Node, children: set[Node], *, are_led: bool = True) -> int:
        """Return the place that these children of a node share, and note the ways to them."""
        if node == self._model.arguments:
            children = {child | _ARGUMENT for child in children}
        is_one = len(children) == 1
        self._ways[node] += [(child, is_one and are_led) for child in children]
        return self.numbers.get(next(iter(children)), NOWHERE) if is_one else NOWHERE
