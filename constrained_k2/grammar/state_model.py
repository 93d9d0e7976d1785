"""Models a grammar's parser states: which keys, item counts and strings decide the allowed tokens.

In most schemas the JSON type of a value decides its alternative. Then a parser state depends only on the seen keys of
objects, the number of items of arrays, and the text since the last structural character: ``{"a":1,`` and ``{"a":[2],``
lead to one state. If that is not enough (``anyOf`` over objects, ``uniqueItems`` of few values, ``contains``), the node
is ambiguous, and states inside it are not shared.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from constrained_k2.formats.kimi_k3 import escape
from constrained_k2.grammar.patterns.states import of_format
from constrained_k2.grammar.plan.nodes import (
    ANY_NODE,
    ANY_VALUE,
    Alternative,
    ArrayPlan,
    ObjectPlan,
    Plan,
    PlanNode,
    StringPlan,
    kind_of_alternative,
)
from constrained_k2.schema.shapes import ListedValue, Shape, String
from constrained_k2.schema.string_formats import patterns_of

_quoted = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder for each call with options
AMBIGUOUS = -1  # in place of a node's number, if the continuation depends on more than the model records


@dataclass(frozen=True, slots=True)
class ObjectModel:
    """The members of a node's objects."""

    values: Mapping[str, tuple[int, int]]  # declared key -> its own number (from 0) and the node of its value
    extra: int  # the node of the values under all other keys
    counts_extra: bool  # True if the continuation depends on the number of other keys
    keys: tuple[String, ...] = ()  # shapes that distinguish other keys; empty if they do not suffice


@dataclass(frozen=True, slots=True)
class ArrayModel:
    """The items of a node's arrays."""

    prefix: tuple[int, ...]  # the nodes of the first items
    rest: int  # the node of the other items
    counted: int  # from this number of items on, further items make no difference

    def item(self, index: int) -> int:
        """Return the node of one item."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class NodeModel:
    """One node: its objects and arrays (None if it has none, or they are ambiguous) and its strings."""

    object: ObjectModel | None = None
    array: ArrayModel | None = None
    free_strings: bool = False  # any string is allowed
    listed_strings: bool = False  # only listed strings are allowed
    strings: tuple[Shape, ...] = ()  # shapes of the allowed strings; empty if all, or only listed ones, are allowed


_ANY_STRING = [String()]
_FREE, _LISTED = NodeModel(free_strings=True), NodeModel(listed_strings=True)  # models of nodes of scalars
Kinds = Mapping[str, int]  # JSON type -> the node of the values of that type


@dataclass(frozen=True, slots=True)
class ArgumentsModel:
    """The members of XTML arguments."""

    values: Mapping[str, tuple[int, Kinds]]  # declared key -> its own number (from 0) and the nodes of its values
    extra: Kinds  # the nodes of the values under all other keys
    counts_extra: bool  # as in :class:`ObjectModel`


@dataclass(frozen=True)
class StateModel:
    """All nodes of a grammar, by number, and the number of the root."""

    root: int
    nodes: tuple[NodeModel, ...]
    arguments: ArgumentsModel | None = None  # model of the root, if it is written as XTML

    @cached_property
    def longest_name(self) -> int:
        """Bytes of the longest declared key as it is written."""
        names = {name for node in self.nodes if node.object is not None for name in node.object.values}
        sizes = [len(_quoted(name).encode(errors="replace")) for name in names]
        if self.arguments is not None:
            sizes += (len(escape(name).encode(errors="replace")) for name in self.arguments.values)
        return max(sizes, default=0)

    @property
    def key_count(self) -> int:
        """The number of declared keys of all nodes."""
        of_objects = sum(len(node.object.values) for node in self.nodes if node.object is not None)
        return of_objects + (0 if self.arguments is None else len(self.arguments.values))


def state_model(plan: Plan) -> StateModel | None:
    """Return the state model of a grammar; None for XTML arguments whose states it cannot distinguish."""
    states = StateModel(plan.root, (_ANY_NODE, *map(_node, plan.nodes[ANY_VALUE + 1 :])))
    if not plan.is_xtml:
        return states
    first, *others = plan.nodes[plan.root].alternatives
    if others or not isinstance(first, ObjectPlan) or first.told_by == "more":
        return None

    def kinds(number: int) -> Kinds:
        return {**dict(plan.nodes[number].parts)}

    values = {name: (key, kinds(node)) for key, (name, node) in enumerate(_declared(first).items())}
    extras = {extra.node for extra in first.extras}
    extra = kinds(extras.pop()) if len(extras) == 1 else {}
    return replace(states, arguments=ArgumentsModel(values, extra, first.slots > 0))


def _by_kind(alternatives: Iterable[Alternative]) -> tuple[list[Shape], list[Alternative], list[Alternative]]:
    """Return the strings, objects and arrays of a node."""
    strings, objects, arrays = list[Shape](), list[Alternative](), list[Alternative]()
    for one in alternatives:
        if isinstance(one, StringPlan):
            strings.append(one.shape)
            continue
        kind = kind_of_alternative(one)
        if kind == "object":
            objects.append(one)
        elif kind == "array":
            arrays.append(one)
        elif kind == "string" and isinstance(one, ListedValue):
            strings.append(one)
    return strings, objects, arrays


def _node(planned: PlanNode) -> NodeModel:
    strings, objects, arrays = _by_kind(planned.alternatives)
    if not objects and not arrays and (not strings or strings == _ANY_STRING):
        return _FREE if strings else _LISTED
    for shape in strings:
        for pattern in patterns_of(shape.formats) if isinstance(shape, String) and shape.formats else ():
            of_format(pattern)  # fills the cache while compiling: the first call takes 20 ms
    is_free, is_listed = _ANY_STRING[0] in strings, all(isinstance(shape, ListedValue) for shape in strings)
    return NodeModel(
        _object(objects[0]) if len(objects) == 1 else None,
        _array(arrays[0]) if len(arrays) == 1 else None,
        free_strings=is_free,
        listed_strings=is_listed,
        strings=() if is_free or is_listed else tuple(strings),
    )


def _declared(plan: ObjectPlan) -> dict[str, int]:
    """Return the declared keys, each with the node of its value."""
    return {member.key: member.node for member in (*plan.leading, *plan.members)}


def _object(plan: Alternative) -> ObjectModel | None:
    if not isinstance(plan, ObjectPlan) or plan.told_by == "more":
        return None
    values = {name: (key, node) for key, (name, node) in enumerate(_declared(plan).items())}
    extras = {extra.node for extra in plan.extras}
    return ObjectModel(values, extras.pop() if len(extras) == 1 else AMBIGUOUS, plan.slots > 0, plan.others)


def _array(plan: Alternative) -> ArrayModel | None:
    if not isinstance(plan, ArrayPlan):
        return None
    counted = max(len(plan.prefix), plan.fewest) + 1 if plan.most is None else plan.most
    return ArrayModel(plan.prefix, AMBIGUOUS if plan.rest is None else plan.rest, counted)


_ANY_NODE = _node(ANY_NODE)
