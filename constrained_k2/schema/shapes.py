"""Shapes: what a schema leaves of one JSON type, in a form that can be intersected and written as a grammar.

A *node* is a set of literals, each a subschema's pointer and whether it must hold or must not; it means that all of
them do. Shapes refer to nodes below them and are made of them one level at a time, so recursive schemas are finite.
"""

import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

Kind = Literal["null", "boolean", "number", "string", "array", "object"]
SchemaLiteral = tuple[str, bool]
"""A subschema's pointer, and whether it must hold."""
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
    """A range of numbers, of integers, or of those that are none (``fraction``); ``multiple`` 0 for no multiple."""

    integer: bool = False
    fraction: bool = False
    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    multiple: Fraction = Fraction(0)
    kind: Kind = "number"


@dataclass(frozen=True, slots=True)
class String:
    """Strings by length in characters, by patterns found (or not) in them, and by excluded values."""

    shortest: int = 0
    longest: int | None = None
    patterns: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    kind: Kind = "string"


@dataclass(frozen=True, slots=True)
class Array:
    """Arrays: the first items each with its node, then the rest; ``contains`` are nodes of which one item must be."""

    prefix: tuple[Node, ...] = ()
    rest: Node = ANY
    shortest: int = 0
    longest: int | None = None
    contains: frozenset[tuple[Node, int, int | None]] = frozenset()
    unique: bool = False
    kind: Kind = "array"


@dataclass(frozen=True, slots=True)
class KeyMap:
    """What one subschema says of the values by key: named ones, by pattern, and of all keys that are neither."""

    named: tuple[tuple[str, Node], ...] = ()
    patterns: tuple[tuple[str, Node], ...] = ()
    extra: Node = ANY


@dataclass(frozen=True, slots=True)
class Object:
    """Objects: every map holds for every key."""

    maps: frozenset[KeyMap] = frozenset()
    required: frozenset[str] = frozenset()
    fewest: int = 0
    most: int | None = None
    names: Node = ANY
    kind: Kind = "object"


@dataclass(frozen=True, slots=True)
class Value:
    """One value, as compact JSON."""

    text: str
    kind: Literal["value"] = "value"

    @property
    def value(self) -> Any:
        """The value itself."""
        return json.loads(self.text)


Shape = Null | Boolean | Number | String | Array | Object | Value
EVERYTHING: tuple[Shape, ...] = (Null(), Boolean(), Number(), String(), Array(), Object())


def value_of(value: Any) -> Value:
    """The shape of one value; equal values (``1`` and ``1.0``, keys in another order) have equal shapes."""
    return Value(json.dumps(_canonical(value), sort_keys=True, ensure_ascii=True))


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value == int(value) and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value


def kind_of(value: Any) -> Kind:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def meet(one: Shape, other: Shape) -> Shape | None:
    """What is of both shapes (of the same kind, neither a value); None if nothing can be."""
    met: Shape | None = None
    if isinstance(one, Null) and isinstance(other, Null):
        met = one
    elif isinstance(one, Boolean) and isinstance(other, Boolean):
        met = Boolean(one.values & other.values) if one.values & other.values else None
    elif isinstance(one, Number) and isinstance(other, Number):
        met = _meet_numbers(one, other)
    elif isinstance(one, String) and isinstance(other, String):
        longest = _least(one.longest, other.longest)
        shortest = max(one.shortest, other.shortest)
        met = None if longest is not None and longest < shortest else String(
            shortest, longest, one.patterns | other.patterns, one.absent | other.absent,
            one.formats | other.formats, one.excluded | other.excluded,
        )  # fmt: skip
    elif isinstance(one, Array) and isinstance(other, Array):
        met = _meet_arrays(one, other)
    elif isinstance(one, Object) and isinstance(other, Object):
        met = Object(
            one.maps | other.maps, one.required | other.required, max(one.fewest, other.fewest),
            _least(one.most, other.most), one.names | other.names,
        )  # fmt: skip
        if met.most is not None and met.most < max(met.fewest, len(met.required)):
            met = None
    return met


def _least(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _meet_numbers(one: Number, other: Number) -> Number | None:
    low, low_open = one.low, one.low_open
    if other.low is not None and (low is None or (other.low, other.low_open) > (low, low_open)):
        low, low_open = other.low, other.low_open
    high, high_open = one.high, one.high_open
    if other.high is not None and (high is None or (-other.high, other.high_open) > (-high, high_open)):
        high, high_open = other.high, other.high_open
    multiple = one.multiple or other.multiple
    if one.multiple and other.multiple:
        multiple = _common_multiple(one.multiple, other.multiple)
    integer, fraction = one.integer or other.integer, one.fraction or other.fraction
    return tighten(Number(integer, fraction, low, low_open, high, high_open, multiple))


def tighten(number: Number) -> Number | None:
    """The same numbers with bounds that are reached where they can be; None if there are none."""
    multiple = number.multiple
    if number.integer:
        multiple = _common_multiple(multiple, Fraction(1)) if multiple else Fraction(1)
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


def _common_multiple(one: Fraction, other: Fraction) -> Fraction:
    return Fraction(
        math.lcm(one.numerator * other.denominator, other.numerator * one.denominator),
        one.denominator * other.denominator,
    )


def _meet_arrays(one: Array, other: Array) -> Array | None:
    length = max(len(one.prefix), len(other.prefix))

    def item(array: Array, position: int) -> Node:
        return array.prefix[position] if position < len(array.prefix) else array.rest

    met = Array(
        tuple(item(one, position) | item(other, position) for position in range(length)),
        one.rest | other.rest,
        max(one.shortest, other.shortest),
        _least(one.longest, other.longest),
        one.contains | other.contains,
        one.unique or other.unique,
    )
    return None if met.longest is not None and met.longest < met.shortest else met
