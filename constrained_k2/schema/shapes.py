"""Shapes: sets of values of one JSON type, as data that can be intersected.

{"type": "integer", "minimum": 3}     Number(integer=True, low=3)

A schema node is a set of subschemas that apply together, each given by its JSON pointer, plain or negated. Shapes refer
to the nodes of their items and members. Nodes are expanded one level at a time, so recursive schemas are finite.
"""

import json
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, TypeGuard

Kind = Literal["null", "boolean", "number", "string", "array", "object"]
SchemaLiteral = tuple[str, bool]
"""A subschema's pointer, and True if it must hold, False if it must fail."""
Node = frozenset[SchemaLiteral]

ANY: Node = frozenset()
NEVER: Node = frozenset({("never", True)})


@dataclass(frozen=True, slots=True)
class Null:
    """``null``."""

    kind: Kind = "null"


@dataclass(frozen=True, slots=True)
class Boolean:
    """``true``, ``false``, or both."""

    values: frozenset[bool] = frozenset({True, False})
    kind: Kind = "boolean"


@dataclass(frozen=True, slots=True)
class Number:
    """A range of numbers, of integers, or of non-integers (``fraction``); ``multiple`` 0 means any.

    ``once``: each number has one spelling, so that a matcher can compare the items of an array as texts.
    """

    integer: bool = False
    fraction: bool = False
    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiple: Fraction = Fraction(0)
    once: bool = False
    kind: Kind = "number"


@dataclass(frozen=True, slots=True)
class String:
    """Strings: length in characters, patterns that must match or (``absent``) must not, formats, excluded values."""

    shortest: int = 0
    longest: int | None = None
    patterns: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    kind: Kind = "string"


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays: a node for each prefix item, one for all other items; (node, fewest, most) per ``contains`` clause."""

    prefix: tuple[Node, ...] = ()
    rest: Node = ANY
    shortest: int = 0
    longest: int | None = None
    contains: frozenset[tuple[Node, int, int | None]] = frozenset()
    unique: bool = False
    kind: Kind = "array"

    @property
    def contains_clauses(self) -> list[tuple[Node, int, int | None]]:
        """The ``contains`` clauses, in the same order in every process: notes depend on what is expanded first."""
        return sorted(
            self.contains, key=lambda clause: (sorted(clause[0]), clause[1], -1 if clause[2] is None else clause[2])
        )


@dataclass(frozen=True, slots=True)
class KeyMap:
    """The value nodes that one subschema assigns: by key, by key pattern, and for all other keys (``extra``)."""

    named: tuple[tuple[str, Node], ...] = ()
    patterns: tuple[tuple[str, Node], ...] = ()
    extra: Node = ANY


@dataclass(frozen=True, slots=True)
class Declared:
    """The keys that an object's subschemas declare."""

    names: frozenset[str] = frozenset()  # keys in properties, required and the dependent keywords
    has_properties: bool = False
    rules_others: bool = False  # a keyword says which keys are allowed besides the keys in properties

    def __or__(self, other: "Declared") -> "Declared":
        return Declared(
            self.names | other.names,
            self.has_properties or other.has_properties,
            self.rules_others or other.rules_others,
        )


@dataclass(frozen=True, slots=True)
class Witness:
    """A member that a negation (of ``additionalProperties``, say) demands, described by its key and its value."""

    value: Node = ANY
    excluded: frozenset[str] = frozenset()  # keys that the witness does not have
    found: frozenset[str] = frozenset()  # patterns that the key must match
    absent: frozenset[str] = frozenset()  # patterns that the key must not match
    names: Node = ANY  # node of the key
    pointer: str = field(default="", compare=False)  # JSON pointer of the negated keyword

    @property
    def order(self) -> list[list[Any]]:
        """A sort key that is the same in every process."""
        return [sorted(part) for part in (self.value, self.names, self.excluded, self.found, self.absent)]


@dataclass(frozen=True, slots=True)
class Object:
    """Objects: every key map applies to every member."""

    maps: frozenset[KeyMap] = frozenset()
    required: frozenset[str] = frozenset()
    fewest: int = 0
    most: int | None = None
    names: Node = ANY
    wanted: frozenset[Witness] = frozenset()
    declared: Declared = Declared()
    kind: Kind = "object"
    found: dict[str, Node] = field(default_factory=dict, init=False, repr=False, compare=False)  # cache of value_node

    def in_order(self) -> list[str]:
        """The keys that the maps name: maps in the order of their pointers, and each map's keys in its order."""
        maps = sorted(self.maps, key=lambda rules: [sorted(value) for _, value in rules.named])
        return list(dict.fromkeys(name for rules in maps for name, _ in rules.named))


@dataclass(frozen=True, slots=True)
class ListedValue:
    """One value, as JSON with sorted keys."""

    text: str
    kind: Literal["value"] = "value"

    @property
    def value(self) -> Any:
        """The decoded value."""
        return json.loads(self.text)

    @property
    def value_kind(self) -> Kind:
        """The JSON type of the value, known without decoding it."""
        return _KIND_BY_START.get(self.text[0], "number")


_KIND_BY_START: dict[str, Kind] = {
    "n": "null", "t": "boolean", "f": "boolean", '"': "string", "[": "array", "{": "object"
}  # fmt: skip
_in_order = json.JSONEncoder(sort_keys=True).encode  # json.dumps makes an encoder for each call with options

Shape = Null | Boolean | Number | String | Array | Object | ListedValue
Shapes = tuple[Shape, ...]
"""A union of shapes; empty if no value is left."""
EVERYTHING: Shapes = (Null(), Boolean(), Number(), String(), Array(), Object())


def value_of(value: Any) -> ListedValue:
    """The shape of one value; equal values (``1`` and ``1.0``, keys in another order) have equal shapes."""
    return ListedValue(_in_order(_canonical(value)))


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value


_KINDS: dict[type, Kind] = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"
}  # fmt: skip


def kind_of(value: Any) -> Kind:
    """The JSON type of a value."""
    return _KINDS[type(value)]


def kind_of_shape(shape: Shape) -> Kind:
    """The JSON type of a shape's instances."""
    return shape.value_kind if isinstance(shape, ListedValue) else shape.kind


def constants(shape: ListedValue | Null | Boolean) -> list[Any]:
    """Return the values of a shape that has finitely many."""
    if isinstance(shape, ListedValue):
        return [shape.value]
    return [None] if isinstance(shape, Null) else sorted(shape.values)


def is_number(value: Any) -> TypeGuard[int | float]:
    """True for a finite number, also for an integer beyond the range of doubles."""
    return type(value) is int or (type(value) is float and math.isfinite(value))


def negated(node: Node) -> Node:
    """The negation of a node that consists of one subschema."""
    ((pointer, holds),) = node
    return frozenset({(pointer, not holds)})


def without_key(key: str) -> Object:
    """Objects that lack a key."""
    return Object(maps=frozenset({KeyMap(((key, NEVER),))}))


def with_value(key: str, node: Node) -> Object:
    """Objects with a key whose value satisfies a node."""
    return Object(maps=frozenset({KeyMap(((key, node),))}), required=frozenset({key}))


def meet(one: Shape, other: Shape) -> Shape | None:
    """The intersection of two shapes of one kind, neither a :class:`ListedValue`; None if it is known to be empty."""
    match one, other:  # objects, the most frequent, come first
        case Object(), Object():
            most = _tighter(one.most, other.most)
            object_ = Object(
                one.maps | other.maps, one.required | other.required,
                max(one.fewest, other.fewest), most, one.names | other.names, one.wanted | other.wanted,
                one.declared | other.declared,
            )  # fmt: skip
            fewest = max(object_.fewest, len(object_.required), bool(object_.wanted))
            return object_ if most is None or fewest <= most else None
        case Null(), Null():
            return one
        case Boolean(), Boolean():
            return Boolean(one.values & other.values) if one.values & other.values else None
        case Number(), Number():
            return _meet_numbers(one, other)
        case String(), String():
            met = String(
                max(one.shortest, other.shortest), _tighter(one.longest, other.longest), one.patterns | other.patterns,
                one.absent | other.absent, one.formats | other.formats, one.excluded | other.excluded,
            )  # fmt: skip
            return met if met.longest is None or met.shortest <= met.longest else None
        case Array(), Array():
            length = max(len(one.prefix), len(other.prefix))
            prefixes = [array.prefix + (array.rest,) * (length - len(array.prefix)) for array in (one, other)]
            array = Array(
                tuple(item | beside for item, beside in zip(*prefixes, strict=True)), one.rest | other.rest,
                max(one.shortest, other.shortest), _tighter(one.longest, other.longest),
                one.contains | other.contains, one.unique or other.unique,
            )  # fmt: skip
            return array if array.longest is None or array.shortest <= array.longest else None
    return None


def _tighter(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _meet_numbers(one: Number, other: Number) -> Number | None:
    low, low_open = one.low, one.low_open
    if other.low is not None and (low is None or (other.low, other.low_open) > (low, low_open)):
        low, low_open = other.low, other.low_open
    high, high_open = one.high, one.high_open
    if other.high is not None and (high is None or (-other.high, other.high_open) > (-high, high_open)):
        high, high_open = other.high, other.high_open
    multiple = one.multiple or other.multiple
    if one.multiple and other.multiple:
        multiple = common_multiple(one.multiple, other.multiple)
    integer, fraction = one.integer or other.integer, one.fraction or other.fraction
    return tighten(Number(integer, fraction, low, low_open, high, high_open, multiple))


def tighten(number: Number) -> Number | None:
    """The same numbers; bounds of integers and multiples are moved inwards to the next one. None if none is left."""
    multiple = number.multiple
    if number.integer:
        multiple = common_multiple(multiple, Fraction(1)) if multiple else Fraction(1)
    low, high = number.low, number.high
    if multiple:
        if low is not None:
            steps = math.ceil(low / multiple)
            low = (steps + (number.low_open and steps * multiple == low)) * multiple
        if high is not None:
            steps = math.floor(high / multiple)
            high = (steps - (number.high_open and steps * multiple == high)) * multiple
        number = replace(number, low=low, high=high, low_open=False, high_open=False)
    if low is not None and high is not None and (low > high or (low == high and (number.low_open or number.high_open))):
        return None
    if multiple and multiple.denominator == 1:
        if number.fraction:
            return None
        number = replace(number, integer=True, multiple=multiple if multiple != 1 else Fraction(0))
    return number


def common_multiple(one: Fraction, other: Fraction) -> Fraction:
    """The least common multiple."""
    common = math.lcm(one.numerator * other.denominator, other.numerator * one.denominator)
    return Fraction(common, one.denominator * other.denominator)
