"""Finds which schema nodes are satisfiable by a finite value, and which keys their objects may have."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, compress, product, takewhile
from typing import Any, Literal

from constrained_k2.grammar.patterns.translation import matching_texts
from constrained_k2.schema.instances import is_key_of
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import (
    ANY,
    Array,
    Boolean,
    ListedValue,
    Node,
    Null,
    Number,
    Object,
    Shape,
    Shapes,
    String,
    Witness,
    constants,
)
from constrained_k2.schema.undeclared_keys import UndeclaredKeys, requires_undeclared, with_declared_keys

_CONTAINERS = (Array, Object)
_MAX_TOGETHER = 2  # max witnesses that one member serves as at once, not counting those that its key alone decides
MAX_COMBINED_PATTERNS = 4  # max key patterns of an object for trying all their combinations: a key may match several
MAX_LISTED_KEYS = 64  # max declared and pattern-listed keys together, for the listed keys to count as declared
_Demand = tuple[Witness, Witness]
"""A witness, and the conditions that remain once the key of a member is known."""


@dataclass(frozen=True, slots=True)
class MemberAlternative:
    """One alternative for an object member: its value, its key and the witnesses that it serves as."""

    node: Node  # node of its value
    names: Node  # node of its key, if that is undeclared
    satisfied: frozenset[Witness] = frozenset()  # the witnesses that the member serves as


@dataclass
class Productivity:
    """Finds the productive nodes of a schema."""

    normalizer: Normalizer
    leaf_has_value: Callable[[String | Number], bool]
    # Returns True if an object may have a key that matches exactly the given patterns, besides the given named keys.
    has_extra_key: Callable[[Object, tuple[str, ...], list[str]], bool]
    undeclared_keys: UndeclaredKeys = "allow"
    _productive: set[Node] = field(default_factory=set)
    _narrowed: dict[Node, Shapes] = field(default_factory=dict)  # shapes without undeclared keys, if they differ
    _named_keys: dict[int, tuple[Object, list[str]]] = field(default_factory=dict)  # id of a shape -> it, its keys

    def shapes(self, node: Node) -> Shapes:
        """The shapes of a node in the grammar: without undeclared keys, if these are forbidden."""
        return self._narrowed.get(node) or self.normalizer.shapes(node)

    def is_narrowed(self, node: Node) -> bool:
        """True if the grammar leaves out a node's undeclared keys."""
        return node in self._narrowed

    def is_productive(self, node: Node) -> bool:
        """True if some value satisfies a node, which must be reachable from a node that :meth:`analyze` was given."""
        return node == ANY or node in self._productive

    def analyze(self, node: Node) -> bool:
        """Find the productive nodes among all nodes reachable from ``node``; return True if ``node`` is productive."""
        if self.is_productive(node):
            return True
        reachable = {node: None}
        waiting = [node]
        while waiting:
            for shape in self.normalizer.shapes(waiting.pop()):
                for child in self._children(shape):
                    if child not in reachable and child != ANY:
                        reachable[child] = None
                        waiting.append(child)
        unsettled = [other for other in reachable if other not in self._productive]  # not found by an earlier call
        self._add_productive({other: self.normalizer.shapes(other) for other in reachable})
        if self.undeclared_keys == "forbid":
            self._narrow([other for other in unsettled if other in self._productive])
        for other in unsettled:
            for shape in self.shapes(other):
                if isinstance(shape, Object) and shape.wanted:
                    self._note_left_out(shape)
        return node in self._productive

    def _add_productive(self, nodes: Mapping[Node, Iterable[Shape]]) -> None:
        """Add the productive nodes among ``nodes``, which maps each node to its shapes."""
        known, waiting = -1, [item for item in nodes.items() if item[0] not in self._productive]
        waiting.reverse()  # nodes that others refer to come first, so that most schemas take one pass
        while len(waiting) != known:  # iterate to the least fixed point
            known, left = len(waiting), []
            for node, shapes in waiting:
                if any(map(self.has_value, shapes)):
                    self._productive.add(node)
                else:
                    left.append((node, shapes))
            waiting = left

    def _narrow(self, nodes: list[Node]) -> None:
        """Forbid undeclared keys in new productive nodes; a node that would become unproductive stays as it is."""
        shapes = {node: self.normalizer.shapes(node) for node in nodes}
        closed = {node: tuple(map(with_declared_keys, shapes[node])) for node in nodes}
        if closed == shapes:
            return
        containers = {
            node: alternatives
            for node, alternatives in closed.items()
            if any(isinstance(each, _CONTAINERS) for each in alternatives)
        }
        productive, self._productive = self._productive, self._productive.difference(containers)
        self._add_productive(containers)
        productive_closed, self._productive = self._productive, productive
        for node in nodes:
            if node in productive_closed and closed[node] != shapes[node]:
                alternatives = zip(shapes[node], closed[node], strict=True)
                written = tuple(
                    each for some, less in alternatives if (each := self._unless_empty(some, less)) is not None
                )
                if written != shapes[node]:
                    self._narrowed[node] = written

    def _unless_empty(self, shape: Shape, closed: Shape) -> Shape | None:
        """The closed shape; if it has no value, the open shape, or None if that requires an undeclared key."""
        if self.has_value(closed):
            return closed
        return None if requires_undeclared(shape) else shape

    def empty_location(self, node: Node) -> str:
        """Return the pointer to the cause of an unproductive node: the innermost required part without a value."""
        seen: set[Node] = set()
        while node not in seen:
            seen.add(node)
            for shape in self.normalizer.shapes(node):
                if not isinstance(shape, Object):
                    continue
                inner = (self.normalizer.value_node(shape, name) for name in shape.required)
                empty = sorted((part for part in inner if part and not self.is_productive(part)), key=sorted)
                if empty:
                    node = empty[0]
                    break
        return next((pointer for pointer, _ in sorted(node) if pointer.startswith("#")), "#")

    def _children(self, shape: Shape) -> Iterable[Node]:
        if isinstance(shape, Array):
            yield from shape.prefix
            yield shape.rest
            yield from (
                matching | node for matching, _, _ in shape.contains_clauses for node in (*shape.prefix, shape.rest)
            )
        elif isinstance(shape, Object):
            for name in self.named_keys(shape):
                yield from (each.node for each in self.named_alternatives(shape, name))
            for found, node in self.extra_nodes(shape):
                yield from (each.node for each in self.extra_alternatives(shape, found, node))

    def has_value(self, shape: Shape) -> bool:
        """Return True if some value satisfies a shape, given the productive nodes found so far."""
        if isinstance(shape, Array):
            needed = (*shape.prefix, shape.rest)[: shape.shortest]
            if not all(self._has_room(shape, *clause) for clause in shape.contains_clauses):
                return False
            values = self.values(shape.rest) if shape.unique and shape.shortest > 1 else None
            if values is not None and len(shape.prefix) + len(values) < shape.shortest:
                return False
            return all(map(self.is_productive, needed))
        if isinstance(shape, Object):
            possible = self.possible_keys(shape)
            if not shape.required.issubset(possible) or self._wanted(shape, possible) != "written":
                return False
            return shape.fewest <= len(possible) or any(
                self.is_productive(node) and self._has_extra_key(shape, found)
                for found, node in self.extra_nodes(shape)
            )
        if isinstance(shape, String | Number):
            return self.leaf_has_value(shape)
        return True

    def _wanted(self, shape: Object, possible: list[str]) -> Literal["written", "left out", "impossible"]:
        """Return whether each witness is possible, and whether a grammar can require it.

        A witness with a condition on its value can be required if undeclared keys remain for it. A witness without
        such a condition is written sooner or later, as keys do not repeat.
        """
        if not shape.wanted:
            return "written"
        certain, choices = set[Witness](), set[Witness]()
        for found, node in self.extra_nodes(shape):
            for each in self.extra_alternatives(shape, found, node):
                if self.is_productive(each.node) and self._has_extra_key(replace(shape, names=each.names), found):
                    certain |= each.satisfied
        for name in possible:
            for each in self.named_alternatives(shape, name):
                choices |= each.satisfied if self.is_productive(each.node) else set()
        if not shape.wanted <= certain | choices and len(patterns_of_keys(shape)) <= MAX_COMBINED_PATTERNS:
            return "impossible"
        by_value = [one for one in shape.wanted if one.value != ANY]
        writable = shape.wanted <= certain | choices and len(by_value) <= 1 and certain.issuperset(by_value)
        return "written" if writable and shape.most is None else "left out"

    def _has_extra_key(self, shape: Object, found: tuple[str, ...]) -> bool:
        return self.has_extra_key(shape, found, self.named_keys(shape))

    def _note_left_out(self, shape: Object) -> None:
        """Note what a grammar leaves out of objects with witnesses; called once for each node."""
        possible = self.possible_keys(shape)
        if shape.required.issubset(possible) and self._wanted(shape, possible) == "left out":
            for one in shape.wanted:
                reason = "negated: members that may be meant cannot be counted"
                self.normalizer.notes.add(one.pointer, "narrowed", reason)
        several = [self._satisfied(shape, name) for name in self.named_keys(shape)]
        several += [_satisfied_under(shape, found) for found, _ in self.extra_nodes(shape)]
        for demands in several:
            others = [one for one, demand in demands if not _is_free(demand)]
            if len(others) > _MAX_TOGETHER:
                reason = f"negated: no member is written that is to fail more than {_MAX_TOGETHER} such keywords"
                self.normalizer.notes.add(others[0].pointer, "narrowed", reason)

    def named_alternatives(self, shape: Object, name: str) -> list[MemberAlternative]:
        """Return the alternatives for a member under a named key, by the witnesses that it serves as."""
        return _alternatives(shape, self.normalizer.value_node(shape, name), self._satisfied(shape, name))

    def extra_alternatives(self, shape: Object, found: tuple[str, ...], node: Node) -> list[MemberAlternative]:
        """Return the alternatives for a member whose undeclared key matches the patterns ``found`` and no others."""
        return _alternatives(shape, node, _satisfied_under(shape, found))

    def _satisfied(self, shape: Object, name: str) -> list[_Demand]:
        """Return the witnesses that a member under a named key may serve as, each with its remaining conditions."""
        fitting = [one for one in shape.wanted if is_key_of(self.normalizer, one, name)] if shape.wanted else []
        return [(one, replace(one, names=ANY)) for one in sorted(fitting, key=lambda one: one.order)]

    def _has_room(self, shape: Array, matching: Node, fewest: int, most: int | None) -> bool:
        """Return True if ``fewest`` items of an array can satisfy a ``contains`` clause."""
        if most is not None and most < fewest:
            return False
        room = 0
        for node in shape.prefix[: shape.longest]:
            if not self.is_productive(node):
                return room >= fewest
            room += self.is_productive(node | matching)
        if self.is_productive(shape.rest | matching):
            room += fewest if shape.longest is None else max(shape.longest - len(shape.prefix), 0)
        return room >= fewest

    def items(self, shape: Array) -> tuple[tuple[Node, ...], int | None]:
        """Return the prefix items that may occur, and the largest number of items (None: unlimited)."""
        prefix = shape.prefix[: shape.longest]
        possible = tuple(takewhile(self.is_productive, prefix))
        is_open = len(possible) == len(prefix) and self.is_productive(shape.rest)
        return possible, shape.longest if is_open else len(possible)

    def named_keys(self, shape: Object) -> list[str]:
        """Return the keys that a shape names, required keys first, in an order that is the same in every process."""
        if (found := self._named_keys.get(id(shape))) is None:  # by identity: thousands of keys take long to hash
            names = shape.required.union(*([name for name, _ in rules.named] for rules in shape.maps))
            names = names.union(self._listed_keys(shape), *(one.excluded for one in shape.wanted))
            found = self._named_keys[id(shape)] = shape, [*sorted(shape.required), *sorted(names - shape.required)]
        return found[1]

    def _listed_keys(self, shape: Object) -> list[str]:
        """Return the keys that a pattern or ``propertyNames`` lists, if they are few."""
        patterns = patterns_of_keys(shape)
        names = () if shape.names == ANY else self.normalizer.shapes(shape.names)
        if shape.wanted or not (patterns or names):
            return []
        found = {name.value for name in names if isinstance(name, ListedValue) and name.value_kind == "string"}
        if len(strings := [name for name in names if isinstance(name, String)]) == 1:
            patterns += strings[0].patterns
        for pattern in patterns:
            found |= matching_texts(pattern, MAX_LISTED_KEYS) or frozenset()
        declared = sum(len(rules.named) for rules in shape.maps) + len(shape.required)
        return sorted(found) if len(found) + declared <= MAX_LISTED_KEYS else []

    def possible_keys(self, shape: Object) -> list[str]:
        """Return the named keys that may occur."""
        value_node = self.normalizer.value_node
        productive = [name for name in self.named_keys(shape) if self.is_productive(value_node(shape, name))]
        if shape.names == ANY:
            return productive
        return [name for name in productive if self.normalizer.is_instance(shape.names, name)]

    def extra_nodes(self, shape: Object) -> Iterable[tuple[tuple[str, ...], Node]]:
        """Yield the value nodes of undeclared keys, one for each set of patterns that a key may match together."""
        patterns = patterns_of_keys(shape)
        sets: Iterable[tuple[str, ...]] = [(), *((pattern,) for pattern in patterns)]
        if len(patterns) <= MAX_COMBINED_PATTERNS:
            sets = (tuple(compress(patterns, each)) for each in product((False, True), repeat=len(patterns)))
        for found in sets:
            node: Node = frozenset()
            for rules in shape.maps:
                parts = [value for pattern, value in rules.patterns if pattern in found]
                node = node.union(*parts) if parts else node | rules.extra
            yield found, node

    def values(self, node: Node) -> list[Any] | None:
        """Return all values of a node; None if there are infinitely many, or many numbers or matches of a pattern."""
        values: list[Any] = []
        for shape in self.normalizer.shapes(node):
            found = constants(shape) if isinstance(shape, ListedValue | Null | Boolean) else _few_values(shape)
            if found is None:
                return None
            values += found
        return values


def patterns_of_keys(shape: Object) -> list[str]:
    """Return the key patterns of an object."""
    wanted = (pattern for one in shape.wanted for pattern in one.found | one.absent)
    return sorted({pattern for rules in shape.maps for pattern, _ in rules.patterns}.union(wanted))


def _satisfied_under(shape: Object, found: tuple[str, ...]) -> list[_Demand]:
    """As :meth:`Productivity._satisfied`, for a member under an undeclared key that matches exactly ``found``."""
    fitting = [one for one in shape.wanted if one.found.issubset(found) and one.absent.isdisjoint(found)]
    return [(one, one) for one in sorted(fitting, key=lambda one: one.order)]


def _is_free(demand: Witness) -> bool:
    """True if no condition remains."""
    return demand.value == ANY and demand.names == ANY


def _alternatives(shape: Object, node: Node, demands: list[_Demand]) -> list[MemberAlternative]:
    """Return the alternatives for a member, by the witnesses that it serves as."""
    if not demands:
        return [MemberAlternative(node, shape.names)]
    free = frozenset(one for one, demand in demands if _is_free(demand))
    others = [(one, demand) for one, demand in demands if one not in free]
    sizes = range(min(len(others), _MAX_TOGETHER) + 1)
    return [
        MemberAlternative(
            node.union(*(demand.value for _, demand in together)),
            shape.names.union(*(demand.names for _, demand in together)),
            free.union(one for one, _ in together),
        )
        for together in chain.from_iterable(combinations(others, size) for size in sizes)
    ]


def _few_values(shape: Shape) -> list[Any] | None:
    """Return the values of a short range of integers, or of a pattern with few matches; None for other shapes."""
    if isinstance(shape, Number) and shape == Number(integer=True, low=shape.low, high=shape.high):
        if shape.low is not None and shape.high is not None and shape.high - shape.low < MAX_LISTED_KEYS:
            return list(range(math.ceil(shape.low), math.floor(shape.high) + 1))
    elif isinstance(shape, String) and len(shape.patterns) == 1 and shape == String(patterns=shape.patterns):
        (pattern,) = shape.patterns
        texts = matching_texts(pattern, MAX_LISTED_KEYS)
        return None if texts is None else sorted(texts)
    return None
