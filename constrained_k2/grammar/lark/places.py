"""The places in a schema at which a text may stand, as far as the arrays whose items a matcher compares need them.

A place is a set of nodes: the values there are instances of one of them at least. Which one is not decided, so an array
is found only if all alternatives at its place are the same array.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from constrained_k2.grammar.lark.unique_items import UniqueItems
from constrained_k2.schema.shapes import ANY, Array, Node, Value

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

NOWHERE = -1
"""The place of values that hold no such array."""
_MAX_PLACES = 4096
_Nodes = frozenset[Node]


@dataclass(frozen=True, slots=True)
class Place:
    """One place, with the numbers of those within its values."""

    keys: Mapping[str, int]
    extra: int  # under all other keys
    prefix: tuple[int, ...]
    rest: int  # of the items after these
    unique: UniqueItems | None  # the items of its arrays, if they are compared


@dataclass(frozen=True, slots=True)
class Places:
    """All places by number."""

    root: int
    places: tuple[Place, ...]


def places_of(writer: "LarkWriter", root: Node) -> Places | None:
    """Return the places of what a writer has written; None if no items are compared.

    Arrays that cannot be told from others are noted as relaxed.
    """
    if not writer.unique_items:
        return None
    builder = _Builder(writer)
    builder.build(root)
    return builder.result()


class _Builder:
    def __init__(self, writer: "LarkWriter") -> None:
        self._writer = writer
        self._numbers: dict[_Nodes, int] = {}
        self._waiting: list[_Nodes] = []
        self._places: list[Place] = []

    def build(self, root: Node) -> None:
        self._number(frozenset({root}))
        while self._waiting:
            if len(self._numbers) > _MAX_PLACES:
                reason = f"the schema has more than {_MAX_PLACES} places, too many to look for it"
                self._relax(self._writer.shapes, reason)
                self._places = []
                return
            self._places.append(self._place(self._waiting.pop(0)))

    def result(self) -> Places | None:
        """Leave out the places from which no array is reached."""
        live = {number for number, place in enumerate(self._places) if place.unique is not None}
        if not live:
            return None
        before: dict[int, set[int]] = {}
        for number, place in enumerate(self._places):
            for child in (*place.keys.values(), place.extra, *place.prefix, place.rest):
                before.setdefault(child, set()).add(number)
        waiting = list(live)
        while waiting:
            more = before.get(waiting.pop(), set()) - live
            live |= more
            waiting += more

        def kept(number: int) -> int:
            return number if number in live else NOWHERE

        places = (
            Place(
                {key: kept(child) for key, child in place.keys.items()},
                kept(place.extra), tuple(map(kept, place.prefix)), kept(place.rest), place.unique,
            )
            for place in self._places
        )  # fmt: skip
        return Places(kept(0), tuple(places))

    def _number(self, nodes: _Nodes) -> int:
        if not nodes:
            return NOWHERE
        if nodes not in self._numbers:
            self._numbers[nodes] = len(self._numbers)
            self._waiting.append(nodes)
        return self._numbers[nodes]

    def _place(self, nodes: _Nodes) -> Place:
        keys, extra = self._members(nodes)
        arrays = list(dict.fromkeys(shape for node in sorted(nodes, key=sorted) for shape in self._arrays(node)))
        kinds = {self._writer.unique_items.get(shape) for shape in arrays}
        unique = kinds.pop() if len(kinds) == 1 else None
        if kinds and unique is None:
            self._relax(nodes, "it cannot be told apart from an array of another schema that may be in its place")
        longest = max((len(shape.prefix) for shape in arrays), default=0)
        prefix = [self._items(arrays, index) for index in range(longest)]
        return Place(keys, extra, tuple(map(self._number, prefix)), self._number(self._items(arrays, longest)), unique)

    def _members(self, nodes: _Nodes) -> tuple[dict[str, int], int]:
        members = [each for node in nodes for each in self._writer.members.get(node, [])]
        members += [({}, frozenset({ANY}), False) for node in nodes if self._has_constant(node, dict)]
        extra = frozenset(self._parts(child for _, others, _ in members for child in others))
        found = {}
        for name in dict.fromkeys(name for values, _, _ in members for name in values):
            children = (([values[name]] if name in values else others) for values, others, _ in members)
            found[name] = self._number(frozenset(self._parts(child for each in children for child in each)))
        return found, self._number(extra)

    def _parts(self, nodes: Iterable[Node]) -> Iterable[Node]:
        """The nodes that are written for these: an argument's node is written as parts, one for each type."""
        for node in nodes:
            parts = self._writer.argument_parts.get(node)
            if parts is not None:
                found = (parts.get(kind, ANY) for kind in ("array", "object"))
                yield from (part for part in found if part != ANY)  # a value's type is written before it
            else:
                yield node

    def _arrays(self, node: Node) -> list[Array]:
        arrays = [shape for shape in self._writer.shapes.get(node, []) if isinstance(shape, Array)]
        return [*arrays, Array()] if self._has_constant(node, list) else arrays

    def _has_constant(self, node: Node, kind: type) -> bool:
        shapes = self._writer.shapes.get(node, [])
        return any(isinstance(shape, Value) and isinstance(shape.value, kind) for shape in shapes)

    def _items(self, arrays: list[Array], index: int) -> _Nodes:
        """The nodes of an item of any of these arrays: where ``contains`` applies, an item may satisfy more."""
        found: set[Node] = set()
        for shape in arrays:
            node = shape.prefix[index] if index < len(shape.prefix) else shape.rest
            more = {(pointer, holds) for wish, _, _ in shape.contains for pointer, _ in wish for holds in (True, False)}
            found |= (
                {other for other in self._writer.shapes if node <= other and other - node <= more} if more else {node}
            )
        return frozenset(found)

    def _relax(self, nodes: Iterable[Node], reason: str) -> None:
        writer = self._writer
        for node in nodes:
            if any(shape in writer.unique_items for shape in writer.shapes.get(node, [])):
                writer.node = node
                writer.note(("uniqueItems",), "relaxed", reason)
