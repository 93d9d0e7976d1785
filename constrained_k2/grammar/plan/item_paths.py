"""Maps paths in the arguments to grammar nodes, to find the arrays whose items must be unique.

In ``{"a":[`` the array belongs to the node of the key ``a``, if that node is equal in all alternatives of the object.
If not, the array is not found, and coverage reports that its items are not compared.
"""

from collections.abc import Sequence

from constrained_k2.grammar.plan.nodes import (
    ANY_VALUE,
    Alternative,
    ArrayPath,
    ArrayPlan,
    CountedItems,
    ObjectPlan,
    PlanNode,
    UnequalValues,
)
from constrained_k2.schema.shapes import ListedValue

NO_PATH = -1
"""Instead of a path's number: no array with ``uniqueItems`` is found there or below."""
NOT_TOLD_APART = "it cannot be told apart from an array of another schema that may be in its place"
"""The reason why an array's items are not compared."""


def item_paths(nodes: Sequence[PlanNode], root: int) -> tuple[tuple[ArrayPath, ...], list[int]]:
    """Return the path of each node (none if no items are compared), and the nodes of arrays that no path finds."""
    compared = [
        number
        for number, node in enumerate(nodes)
        if any(isinstance(one, ArrayPlan) and one.alone is not None for one in node.alternatives)
    ]
    if not compared:
        return (), []
    builder = _Builder(nodes)
    paths = tuple(builder.path(number) for number in range(len(nodes)))
    reached = builder.reached_from(root)
    missing = [
        one for one in compared if (one, False) in reached or ((one, True) in reached and paths[one].alone is None)
    ]
    return paths, missing


class _Builder:
    """Builds the paths. Keeps the nodes below each node, with True if the node's path leads there too."""

    def __init__(self, nodes: Sequence[PlanNode]) -> None:
        self._nodes = nodes
        self._below: list[list[tuple[int, bool]]] = [[] for _ in nodes]

    def path(self, number: int) -> ArrayPath:
        """Return the path of a node, and keep the nodes below it."""
        node = self._nodes[number]
        if node.parts:  # an argument's type is written before its value
            self._below[number] += [(part, True) for _, part in node.parts]
            parts = dict(node.parts)
            keys, extra = self._object(parts["object"]) if "object" in parts else ({}, NO_PATH)
            items = self._array(parts["array"]) if "array" in parts else ((), NO_PATH, None)
            return ArrayPath(keys, extra, *items)
        keys, extra = self._object(number)
        return ArrayPath(keys, extra, *self._array(number))

    def reached_from(self, root: int) -> set[tuple[int, bool]]:
        """Return (node, True) for each node that paths lead to, and (node, False) for each node reached otherwise."""
        seen: set[tuple[int, bool]] = set()
        waiting = [(root, True)]
        while waiting:
            node, is_found = waiting.pop()
            if (node, is_found) not in seen:
                seen.add((node, is_found))
                waiting += [(child, is_found and is_led) for child, is_led in self._below[node]]
        return seen

    def _object(self, number: int) -> tuple[dict[str, int], int]:
        """Return the path of each key of a node's objects, if equal in all alternatives, and the path of other keys."""
        objects: list[tuple[dict[str, set[int]], set[int]]] = []
        for one in self._nodes[number].alternatives:
            if isinstance(one, ObjectPlan):
                named: dict[str, set[int]] = {}
                for member in (*one.leading, *one.members):
                    named.setdefault(member.key, set()).add(member.node)
                objects.append((named, {other.node for other in one.extras}))
            elif isinstance(one, ListedValue) and one.value_kind == "object":
                objects.append(({}, {ANY_VALUE}))
        extra = {child for _, others in objects for child in others}
        keys, are_led = {}, True
        for name in dict.fromkeys(name for named, _ in objects for name in named):
            several = [named[name] for named, _ in objects if name in named]
            children = set().union(*several)
            is_mixed = len(several) < len(objects) and not extra <= children  # undeclared in some
            found = self._number(number, children, are_led=not is_mixed)
            keys[name] = NO_PATH if is_mixed else found
            are_led = are_led and not is_mixed
        return keys, self._number(number, extra, are_led=are_led)

    def _array(self, number: int) -> tuple[tuple[int, ...], int, bytes | None]:
        """Return the paths of the items of a node's arrays, and the first bytes that identify an item."""
        arrays = [one for one in self._nodes[number].alternatives if _has_items(one)]
        if len(arrays) == 1 and isinstance(one := arrays[0], ArrayPlan):
            prefix = tuple(self._number(number, {child}) for child in one.prefix)
            return prefix, self._number(number, set() if one.rest is None else {one.rest}), one.alone
        for one in arrays:
            if isinstance(one, ArrayPlan):
                children = [*one.prefix, *([] if one.rest is None else [one.rest])]
            elif isinstance(one, CountedItems):
                children = [child for state in one.states for _, nodes in state.following for child in nodes]
            else:
                children = []
            self._below[number] += [(child, False) for child in children]
        return (), NO_PATH, None

    def _number(self, number: int, children: set[int], *, are_led: bool = True) -> int:
        """Return the path of a node's children if they are one node, and keep them as nodes below ``number``."""
        is_one = len(children) == 1
        self._below[number] += [(child, is_one and are_led) for child in children]
        return next(iter(children)) if is_one else NO_PATH


def _has_items(one: Alternative) -> bool:
    is_listed = isinstance(one, ListedValue) and one.value_kind == "array"
    return is_listed or isinstance(one, ArrayPlan | CountedItems | UnequalValues)
