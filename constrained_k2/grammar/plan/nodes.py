"""The plan of a grammar as plain data: numbered nodes, each with the alternatives for one value.

The grammar's text and state model are made from the plan. Nodes refer to each other by number, so equal plans are equal
grammars, whatever schemas they come from.

{"type": "array", "items": {"type": "boolean"}}     nodes[1] = (ArrayPlan(rest=2),)     nodes[2] = (Boolean(),)
{"type": "integer", "multipleOf": 10001}            Wider(Number(integer=True), ("multipleOf",), "multiples of …")
"""

from typing import Literal, NamedTuple

from msgspec import Struct

from constrained_k2.schema.notes import NoteStatus
from constrained_k2.schema.shapes import Boolean, Kind, ListedValue, Null, Number, Shape, String

ANY_VALUE = 0
"""The number that the node of any JSON value has in every plan."""


BITS = 64
"""Max bits of an object or array: the width of an LLGuidance rule's parameter."""
NEGATING = ("not", "oneOf", "if", "dependencies", "dependentSchemas")
"""The keywords that negate subschemas."""
LISTING = ("enum", "const")
"""The keywords that list values."""


class KeywordNote(NamedTuple):
    """Keywords of a node that its plan does not enforce exactly."""

    keywords: tuple[str, ...]
    status: NoteStatus
    reason: str


class Wider(Struct, frozen=True, gc=False):
    """A shape has no exact grammar: ``shape``, which includes it, is planned instead, and the keywords are relaxed."""

    shape: Shape
    keywords: tuple[str, ...]
    reason: str


class StringPlan(Struct, frozen=True, gc=False):
    """Strings of one shape.

    Attributes:
        shape: The shape in the grammar, which may be narrowed or relaxed for cost.
        expression: The body of the terminal; empty for any string, and for lengths that take several terminals.
        is_joined: True if the strings become one terminal with others of their node.
        notes: The keywords that are not enforced exactly.
    """

    shape: String
    expression: str = ""
    is_joined: bool = False
    notes: tuple[KeywordNote, ...] = ()


class NumberPlan(Struct, frozen=True, gc=False):
    """Numbers of one shape.

    Attributes:
        shape: The shape, whose ``multiple`` the engine's builtin enforces.
        expression: The body of the terminal; empty for any number, and for multiples.
        notes: The keywords that are not enforced exactly.
    """

    shape: Number
    expression: str = ""
    notes: tuple[KeywordNote, ...] = ()


class ArrayPlan(Struct, frozen=True, gc=False):
    """Arrays in which the index of an item alone decides its node.

    Attributes:
        prefix: The nodes of the first items.
        rest: The node of the other items; None if there are none.
        fewest: The fewest items.
        most: The most items; None if there is no limit.
        alone: The first bytes that identify an item (``n``: null), if a matcher enforces ``uniqueItems``; else None.
    """

    prefix: tuple[int, ...] = ()
    rest: int | None = None
    fewest: int = 0
    most: int | None = None
    alone: bytes | None = None


class UnequalValues(Struct, frozen=True, gc=False):
    """Arrays with ``uniqueItems`` and few possible items: a bit for each value. ``most`` None: no limit."""

    values: tuple[ListedValue, ...]
    fewest: int
    most: int | None


class ItemState(Struct, frozen=True, gc=False):
    """A state of arrays with ``contains``: whether the array may end, and (next state, nodes of the item) pairs."""

    may_end: bool
    following: tuple[tuple[int, tuple[int, ...]], ...]


class CountedItems(Struct, frozen=True, gc=False):
    """Arrays with ``contains``, as states: the first is for an empty array, and no state leads to an earlier state."""

    states: tuple[ItemState, ...]


class Member(Struct, frozen=True, gc=False):
    """A member under a declared key.

    Attributes:
        key: The key.
        node: The node of its value.
        bit: The bit that it sets, and that must be clear before; None if the rules let the key repeat.
        wanted: Further bits that it sets, as a mask: a bit for each witness that the member serves as.
    """

    key: str
    node: int
    bit: int | None
    wanted: int = 0


class Extra(Struct, frozen=True, gc=False):
    """Members under undeclared keys.

    Attributes:
        keys: The body of the terminal that matches the keys.
        node: The node of the values.
        wanted: As in :class:`Member`.
        clear: Bits that must be clear.
        is_hard: True if the keys have patterns, or are restricted by ``propertyNames``.
        patterns: Groups of patterns: a key matches all patterns of at least one group.
        listed: Keys that ``propertyNames`` lists.
    """

    keys: str
    node: int
    wanted: int = 0
    clear: tuple[int, ...] = ()
    is_hard: bool = False
    patterns: tuple[tuple[str, ...], ...] = ()
    listed: tuple[str, ...] = ()


class ObjectPlan(Struct, frozen=True, gc=False):
    """Objects of one shape, with a bit for each key, which is set when the key has been written.

    Attributes:
        leading: Required members without a bit: they come first, in this order.
        members: The members under the other declared keys, the required ones first.
        extras: The members under undeclared keys.
        required: The number of required keys with a bit; these have the first bits.
        tracked: The number of keys with a bit.
        slots: The number of bits after the keys' bits, for undeclared keys that count.
        counted: The number of slots that count for ``fewest``.
        room: The most members that are not required; None if there is no limit.
        fewest: The fewest members after the leading ones, if more than the required keys; else 0.
        wanted: The number of witnesses; these have the last bits.
        told_by: The facts that distinguish parser states: the bits, the keys and their number, or more than these.
        others: The shapes that distinguish undeclared keys; empty if more than patterns distinguishes them.
        order: The declared keys in the order of the schema.
    """

    leading: tuple[Member, ...] = ()
    members: tuple[Member, ...] = ()
    extras: tuple[Extra, ...] = ()
    required: int = 0
    tracked: int = 0
    slots: int = 0
    counted: int = 0
    room: int | None = None
    fewest: int = 0
    wanted: int = 0
    told_by: Literal["bits", "keys", "more"] = "bits"
    others: tuple[String, ...] = ()
    order: tuple[str, ...] = ()

    @property
    def has_open_keys(self) -> bool:
        """True if the rules would let a key repeat."""
        return bool(self.extras) or any(member.bit is None for member in self.members)

    @property
    def alternative_count(self) -> int:
        """The number of alternatives for the object's members."""
        of_extra = self.slots + (self.room is None)
        return len(self.leading) + len(self.members) + of_extra * len(self.extras)


Leaf = Null | Boolean | ListedValue | StringPlan | NumberPlan
Container = ArrayPlan | UnequalValues | CountedItems | ObjectPlan
Alternative = Leaf | Container
CONTAINERS = (ArrayPlan, UnequalValues, CountedItems, ObjectPlan)
_KINDS: dict[type, Kind] = {
    Null: "null", Boolean: "boolean", StringPlan: "string", NumberPlan: "number", ObjectPlan: "object",
    ArrayPlan: "array", UnequalValues: "array", CountedItems: "array",
}  # fmt: skip


def kind_of_alternative(one: Alternative) -> Kind:
    """The JSON type of an alternative."""
    return one.value_kind if isinstance(one, ListedValue) else _KINDS[type(one)]


class PlanNode(Struct, frozen=True, gc=False):
    """The values of one node.

    Attributes:
        alternatives: The values, as a union.
        strings: The body of the terminal that its joined strings share; empty without such strings.
        joins_texts: True if its listed strings are in that terminal, too.
        is_raw: True if its strings are written without quotes and escapes.
        parts: Only for an XTML argument, which itself has no alternatives: the node of its values for each JSON type.
    """

    alternatives: tuple[Alternative, ...] = ()
    strings: str = ""
    joins_texts: bool = False
    is_raw: bool = False
    parts: tuple[tuple[Kind, int], ...] = ()


ANY_NODE = PlanNode(
    (
        Null(),
        Boolean(),
        NumberPlan(Number()),
        StringPlan(String()),
        ArrayPlan(rest=ANY_VALUE),
        ObjectPlan(extras=(Extra("STRING", ANY_VALUE),), told_by="keys", others=(String(),)),
    )
)
"""The node of any JSON value."""


class ArrayPath(Struct, frozen=True, gc=False):
    """A path in the arguments: the numbers of the paths below it, and whether a matcher compares the items there.

    Attributes:
        keys: Declared key -> path of its value.
        extra: The path of the values under other keys.
        prefix: The paths of the first items.
        rest: The path of the other items.
        alone: As in :class:`ArrayPlan`.
    """

    keys: dict[str, int] = {}
    extra: int = -1
    prefix: tuple[int, ...] = ()
    rest: int = -1
    alone: bytes | None = None


class Plan(Struct, frozen=True, gc=False):
    """The grammar of one schema.

    Attributes:
        nodes: The nodes, by number.
        root: The number of the root's node.
        is_xtml: True if the root's objects are written as XTML arguments.
        signs_apart: True if the sign of each number is a terminal of its own. LLGuidance (1.7.6) has no negative
            multiples. Its lexer follows the longest terminal alone, so one multiple needs this for all numbers.
        has_open_keys: True if the grammar itself would let a key of an object repeat.
        has_long_texts: True if a string may force a long text.
        member_count: The number of alternatives of members, in all objects.
        item_paths: The paths to arrays whose items are compared, by the number of their node; empty if there are none.
    """

    nodes: tuple[PlanNode, ...]
    root: int
    is_xtml: bool = False
    signs_apart: bool = False
    has_open_keys: bool = False
    has_long_texts: bool = False
    member_count: int = 0
    item_paths: tuple[ArrayPath, ...] = ()
