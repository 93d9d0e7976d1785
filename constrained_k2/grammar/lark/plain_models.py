"""The state model and the direct model of a plain schema, made of its nodes."""

from collections.abc import Mapping
from dataclasses import replace
from json import JSONEncoder
from typing import NamedTuple

from constrained_k2.grammar.lark.direct_model import ArrayRule, DirectModel, ObjectRule, ValueRule, any_rule
from constrained_k2.grammar.lark.plain_nodes import Items, LeafKey, Members, PlainNode, PlainNodes
from constrained_k2.grammar.lark.small import MAX_GROUPS, MAX_HARD, MAX_TEXT
from constrained_k2.grammar.lark.state_model import AMBIGUOUS, ArrayModel, NodeModel, ObjectModel, StateModel
from constrained_k2.schema.shapes import String

_GROUPS = 5  # in one another, in a text without brackets in its names and leaves
_FREE, _LISTED = NodeModel(free_strings=True), NodeModel(listed_strings=True)
_quoted = JSONEncoder(ensure_ascii=False).encode


class LeafModel(NamedTuple):
    """The models of a leaf: a string or number with bounds, a pattern or a format.

    Attributes:
        node: Its node in the state model.
        rule: Its rule in the direct model; None if it is opaque.
        size: At least the number of characters that it adds to a grammar's text, without its pattern.
        groups: At least the number of groups in one another in these.
    """

    node: NodeModel
    rule: ValueRule | None
    size: int
    groups: int


Leaves = Mapping[LeafKey, LeafModel]


class PlainModels(NamedTuple):
    """The models of a plain schema.

    Attributes:
        model: What the states of a text depend on.
        direct: What its masks depend on.
        has_open_keys: True if the grammar itself would let an object have a key twice.
    """

    model: StateModel
    direct: DirectModel
    has_open_keys: bool


def is_surely_small(nodes: PlainNodes, leaves: Leaves) -> bool:
    """Return True if the grammar of these nodes is small, whatever its text is."""
    groups, size, hard = _GROUPS, nodes.size, 0
    for leaf in leaves.values():
        groups, size = max(groups, leaf.groups), size + leaf.size
        hard += leaf.rule is None or bool(leaf.rule.string)
    return size <= MAX_TEXT and hard <= MAX_HARD and nodes.brackets + groups <= MAX_GROUPS


def plain_models(nodes: PlainNodes, leaves: Leaves) -> PlainModels:
    """Return the models of these nodes, with the models of their leaves."""
    states = tuple([_state(number, node, leaves) for number, node in enumerate(nodes.nodes)])
    rules = tuple([_rule(number, node, leaves) for number, node in enumerate(nodes.nodes)])
    has_open_keys = any(node.any_spelling or (node.members and node.members.extra is not None) for node in nodes.nodes)
    return PlainModels(StateModel(nodes.root, states), rules, has_open_keys)


def _state(number: int, node: PlainNode, leaves: Leaves) -> NodeModel:
    if node.any_spelling:
        return NodeModel(_objects(Members((), 0, (), number)), ArrayModel((), number, 1), free_strings=True)
    # A leaf may be a number beside any string: then its own node has no strings.
    strings = _FREE if node.has_strings else leaves[node.leaf].node if node.leaf else _LISTED
    if node.members is None and node.items is None:
        return strings
    return NodeModel(
        None if node.members is None else _objects(node.members),
        None if node.items is None else _arrays(node.items),
        strings.free_strings,
        strings.listed_strings,
        strings.strings,
    )


def _objects(members: Members) -> ObjectModel:
    values = {name: (key, members.values[key]) for key, name in enumerate(members.names)}
    extra = AMBIGUOUS if members.extra is None else members.extra
    return ObjectModel(values, extra, counts_extra=False, keys=(String(excluded=frozenset(members.names)),))


def _arrays(items: Items) -> ArrayModel:
    return ArrayModel((), items.item, items.shortest + 1 if items.longest is None else items.longest)


def _rule(number: int, node: PlainNode, leaves: Leaves) -> ValueRule | None:
    if node.any_spelling:
        return any_rule(number)
    if node.numbers:
        return None
    members = items = None
    if node.members is not None:
        names, required, values, extra = node.members
        keys = tuple([(_quoted(name).encode(), value) for name, value in zip(names, values, strict=True)])
        members = ObjectRule(keys, (1 << required) - 1, extra)
    if node.items is not None:
        items = ArrayRule(*node.items)
    if not node.leaf:
        return ValueRule(
            node.has_strings, node.listed, number=node.number, words=node.words, object=members, array=items
        )
    rule = leaves[node.leaf].rule
    return rule and replace(
        rule,
        has_strings=rule.has_strings or node.has_strings,
        listed=rule.listed or node.listed,
        number=rule.number or node.number,
        words=tuple(sorted({*rule.words, *node.words})),
        object=members,
        array=items,
    )
