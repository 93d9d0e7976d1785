"""What of a schema's nodes can be reached and has a value, and which keys its objects may have."""

from collections.abc import Callable, Iterable
from itertools import product

from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import ANY, Array, Boolean, Node, Null, Number, Object, Shape, String, Value

MOST_PATTERNS = 4
"""The patternProperties of one object of which several may be found in one key."""


class Reach:
    """Finds the productive nodes: those that some finite value satisfies.

    Args:
        normalizer: The schema's.
        leaf_can_be: Whether a string's or number's shape has a value.
        has_open_key: Whether an object may have a key that it does not name, in which exactly these patterns are.
    """

    def __init__(
        self,
        normalizer: Normalizer,
        leaf_can_be: Callable[[String | Number], bool],
        has_open_key: Callable[[Object, tuple[str, ...]], bool],
    ) -> None:
        self.normalizer = normalizer
        self._leaf_can_be = leaf_can_be
        self._has_open_key = has_open_key
        self._productive: set[Node] = set()

    def is_productive(self, node: Node) -> bool:
        """Whether anything satisfies a node (that is reachable from the root)."""
        return node == ANY or node in self._productive

    def _find(self, root: Node) -> None:
        """Find the reachable nodes that some finite value satisfies, by iteration to the least fixed point."""
        reachable: dict[Node, None] = {root: None}
        waiting = [root]
        while waiting:
            for shape in self.normalizer.shapes(waiting.pop()):
                for child in self._children(shape):
                    if child not in reachable and child != ANY:
                        reachable[child] = None
                        waiting.append(child)
        changed = True
        while changed:
            changed = False
            for node in reachable:
                if node not in self._productive and any(map(self.can_be, self.normalizer.shapes(node))):
                    self._productive.add(node)
                    changed = True

    def empty_at(self, node: Node) -> str:
        """Where an unproductive node's schema stands: the innermost one that is required and has no value itself."""
        seen: set[Node] = set()
        while node not in seen:
            seen.add(node)
            for shape in self.normalizer.shapes(node):
                inner = (
                    [self.normalizer.value_node(shape, name) for name in shape.required]
                    if isinstance(shape, Object)
                    else []
                )
                empty = sorted(filter(None, (part for part in inner if not self.is_productive(part))), key=sorted)
                if empty:
                    node = empty[0]
                    break
        places = [pointer for pointer, _ in sorted(node) if pointer.startswith("#")]
        return places[0] if places else "#"

    def _children(self, shape: Shape) -> Iterable[Node]:
        if isinstance(shape, Array):
            yield from shape.prefix
            yield shape.rest
            yield from (wish | node for wish, _, _ in shape.contains for node in (*shape.prefix, shape.rest))
        elif isinstance(shape, Object):
            for name in self.named_keys(shape):
                yield self.normalizer.value_node(shape, name)
            yield from (node for _, node in self.extra_nodes(shape))

    def can_be(self, shape: Shape) -> bool:
        """Whether a shape has a value, as far as is known by now."""
        if isinstance(shape, Array):
            needed = [*shape.prefix[: shape.shortest], *([shape.rest] if shape.shortest > len(shape.prefix) else [])]
            if not all(self._has_room(shape, wish, fewest) for wish, fewest, _ in shape.contains):
                return False
            if shape.unique and shape.shortest > 1 and 0 <= self._count(shape.rest) < shape.shortest:
                return False
            return all(map(self.is_productive, needed))
        if isinstance(shape, Object):
            keys = [name for name in shape.required if not self.normalizer.admits(shape.names, name)]
            if keys or not all(self.is_productive(self.normalizer.value_node(shape, name)) for name in shape.required):
                return False
            return shape.fewest <= len(list(self.possible_keys(shape))) or any(
                self.is_productive(node) and self._has_open_key(shape, found) for found, node in self.extra_nodes(shape)
            )
        if isinstance(shape, String | Number):
            return self._leaf_can_be(shape)
        return True

    def _has_room(self, shape: Array, wish: Node, fewest: int) -> bool:
        """Whether that many items can satisfy a ``contains``."""
        places = 0
        for node in shape.prefix[: shape.longest]:
            if not self.is_productive(node):
                return places >= fewest
            places += self.is_productive(node | wish)
        if self.is_productive(shape.rest | wish):
            places += fewest if shape.longest is None else max(shape.longest - len(shape.prefix), 0)
        return places >= fewest

    def named_keys(self, shape: Object) -> list[str]:
        """The keys that a shape speaks of by name, the required ones first; in the same order in every process."""
        names = shape.required.union(*([name for name, _ in rules.named] for rules in shape.maps))
        return sorted(names, key=lambda name: (name not in shape.required, name))

    def possible_keys(self, shape: Object) -> Iterable[str]:
        """The named keys that may occur."""
        for name in self.named_keys(shape):
            if self.is_productive(self.normalizer.value_node(shape, name)) and self.normalizer.admits(
                shape.names, name
            ):
                yield name

    def extra_nodes(self, shape: Object) -> Iterable[tuple[tuple[str, ...], Node]]:
        """What values other keys may have: for each set of patterns that may be found in a key together."""
        for found in _combinations(self.patterns(shape)):
            node: Node = frozenset()
            for rules in shape.maps:
                parts = [value for pattern, value in rules.patterns if pattern in found]
                node = node.union(*parts) if parts else node | rules.extra
            yield found, node

    def is_known(self, node: Node) -> bool:
        """Whether something satisfies a node that need not have been reached before."""
        if node != ANY and node not in self._productive:
            self._find(node)
        return self.is_productive(node)

    def _count(self, node: Node) -> int:
        """How many values a node has; -1 where there is no end of them."""
        count = 0
        for shape in self.normalizer.shapes(node):
            if not isinstance(shape, Value | Null | Boolean):
                return -1
            count += len(shape.values) if isinstance(shape, Boolean) else 1
        return count

    @staticmethod
    def patterns(shape: Object) -> list[str]:
        """The patterns of an object's keys."""
        return sorted({pattern for rules in shape.maps for pattern, _ in rules.patterns})


def _combinations(patterns: list[str]) -> Iterable[tuple[str, ...]]:
    """The sets of patterns that may be found in one key; of many patterns, one at a time."""
    if len(patterns) > MOST_PATTERNS:
        return [(), *((pattern,) for pattern in patterns)]
    ways = product((False, True), repeat=len(patterns))
    return [tuple(pattern for pattern, is_found in zip(patterns, way, strict=True) if is_found) for way in ways]
