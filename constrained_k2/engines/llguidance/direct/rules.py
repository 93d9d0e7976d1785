"""Describes the grammar nodes whose masks can be computed without LLGuidance's parser.

A node has a rule if its values are strings (any string, enum values, or one terminal), numbers (without bounds, or one
terminal), literals, arrays with one node for all items, and objects whose state is one bit for each declared key. Any
other node is opaque, such as {"type": "string", "minLength": 2}.
"""

from dataclasses import dataclass
from json import JSONEncoder
from typing import Literal

from constrained_k2.grammar.plan.nodes import ANY_VALUE, ArrayPlan, NumberPlan, ObjectPlan, Plan, PlanNode, StringPlan
from constrained_k2.schema.shapes import Boolean, ListedValue, Null, Number, String

_quoted = JSONEncoder(ensure_ascii=False).encode
NumberKind = Literal["", "integer", "number"]
_WORDS = {None: b"null", True: b"true", False: b"false"}
_ANY_STRING, _ANY_NUMBER, _ANY_INTEGER = String(), Number(), Number(integer=True)


@dataclass(frozen=True, slots=True)
class ObjectRule:
    """The members of a node's objects, in any order, each declared key once."""

    keys: tuple[tuple[bytes, int], ...]  # by bit: the key as JSON, with quotes, and the node of its value
    required: int  # bits of the keys that an object must have
    extra: int | None  # the node of the values of undeclared keys; None for a closed object
    any_spelling: bool = False  # True if undeclared keys may be escaped in any way


@dataclass(frozen=True, slots=True)
class ArrayRule:
    """The items of a node's arrays."""

    item: int  # the node of every item
    shortest: int
    longest: int | None


@dataclass(frozen=True, slots=True)
class ValueRule:
    """The values that a node allows: the union of all fields."""

    has_strings: bool = False  # any string
    listed: tuple[bytes, ...] = ()  # the only allowed strings (enum values), as JSON
    string: str = ""  # the expression of the terminal that strings match, if there is one
    number: NumberKind = ""
    range: str = ""  # the expression of the terminal that numbers match, if there is one
    words: tuple[bytes, ...] = ()
    object: ObjectRule | None = None
    array: ArrayRule | None = None


_ANY_RULE = ValueRule(
    has_strings=True,
    number="number",
    words=tuple(sorted(_WORDS.values())),
    object=ObjectRule((), 0, ANY_VALUE, any_spelling=True),
    array=ArrayRule(ANY_VALUE, 0, None),
)
DirectModel = tuple[ValueRule | None, ...]
"""The rules of a grammar's nodes, by their numbers in its state model; None for an opaque node."""


def direct_model(plan: Plan) -> DirectModel:
    """Return the rules of all nodes."""
    return (_ANY_RULE, *map(_rule_or_none, plan.nodes[ANY_VALUE + 1 :]))


def _rule_or_none(node: PlanNode) -> ValueRule | None:
    try:
        return _rule(node)
    except _OpaqueError:
        return None


class _OpaqueError(Exception):
    pass


def _rule(node: PlanNode) -> ValueRule:  # noqa: PLR0912 - a case for each type
    has_strings, string, range_ = False, "", ""
    kinds: set[NumberKind] = set()
    listed, words = set[bytes](), set[bytes]()
    members: ObjectRule | None = None
    items: ArrayRule | None = None
    for one in node.alternatives:
        if isinstance(one, ListedValue):
            _add_value(one, listed, words)
        elif isinstance(one, StringPlan) and one.shape == _ANY_STRING:
            has_strings = True
        elif isinstance(one, StringPlan) and has_patterns(one):
            before, string = string, node.strings if one.is_joined else one.expression
            if before not in {"", string}:
                raise _OpaqueError
        elif isinstance(one, NumberPlan) and one.shape in (_ANY_NUMBER, _ANY_INTEGER):
            kinds.add("integer" if one.shape.integer else "number")
        elif isinstance(one, NumberPlan) and not range_ and one.expression and not one.shape.once:
            range_ = one.expression  # numbers in one spelling differ by all their digits: LLGuidance is faster
        elif isinstance(one, Null):
            words.add(_WORDS[None])
        elif isinstance(one, Boolean):
            words |= {_WORDS[value] for value in one.values}
        elif isinstance(one, ObjectPlan) and members is None and one.told_by == "bits":
            members = _members(one)
        elif isinstance(one, ArrayPlan) and items is None and not one.prefix and one.rest is not None:
            items = ArrayRule(one.rest, one.fewest, one.most)
        else:
            raise _OpaqueError
    if (
        node.joins_texts or (string and (has_strings or listed)) or (range_ and kinds)
    ):  # LLGuidance's lexer follows both terminals at once
        raise _OpaqueError
    kind: NumberKind = "number" if "number" in kinds else "integer" if kinds else ""
    some = () if has_strings else tuple(sorted(listed))
    return ValueRule(has_strings, some, string, kind, range_, tuple(sorted(words)), members, items)


def has_patterns(plan: StringPlan) -> bool:
    """Return True for strings that are one terminal and limited by more than their length."""
    return bool(plan.expression) and plan.shape != String(plan.shape.shortest, plan.shape.longest)


def _add_value(one: ListedValue, listed: set[bytes], words: set[bytes]) -> None:
    value = one.value
    if isinstance(value, str):
        listed.add(_written(value))
    elif value is None or isinstance(value, bool):
        words.add(_WORDS[value])
    else:
        raise _OpaqueError


def _members(plan: ObjectPlan) -> ObjectRule:
    keys = tuple((_written(member.key), member.node) for member in plan.members)
    extra = plan.extras[0].node if plan.extras else None
    return ObjectRule(keys, (1 << plan.required) - 1, extra)


def _written(text: str) -> bytes:
    try:
        return _quoted(text).encode()
    except UnicodeEncodeError:
        raise _OpaqueError from None
