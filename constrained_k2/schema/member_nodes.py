"""The nodes of an object's members, and those that nothing satisfies: asked for at each meeting, so found once."""

from collections.abc import Callable

from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.notes import Notes
from constrained_k2.schema.shapes import ANY, Node, Object


class MemberNodes(Notes):
    """The nodes of the members of one schema's objects.

    Args:
        document: The schema.
        matches: Finds a pattern in a text; must be safe on hostile patterns.
    """

    def __init__(self, document: SchemaDocument, matches: Callable[[str, str], bool]) -> None:
        super().__init__(document)
        self.matches = matches
        self._maps: dict[int, tuple[object, dict[str, Node]]] = {}  # id of a map -> the map, its named members
        self._never: dict[Node, bool] = {}

    def is_never(self, node: Node) -> bool:
        """True if it is plain that nothing satisfies a node: one of its schemas is ``false``."""
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
