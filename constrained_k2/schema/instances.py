"""Validates JSON values and keys against an expanded schema, such as its own ``enum`` values."""

from fractions import Fraction
from typing import Any

from constrained_k2.schema.doubles import number_of
from constrained_k2.schema.keywords.keyword import Expander
from constrained_k2.schema.shapes import (
    ANY,
    Array,
    Boolean,
    ListedValue,
    Number,
    Object,
    Shape,
    String,
    Witness,
    kind_of,
    value_of,
)
from constrained_k2.schema.string_formats import patterns_of


def is_instance(nodes: Expander, shape: Shape, value: Any) -> bool:
    """True if the value is an instance of the shape."""
    match shape:
        case ListedValue():
            return shape == value_of(value)
        case _ if kind_of(value) != shape.kind:
            return False
        case Boolean():
            return value in shape.values
        case Number():
            return _is_number(shape, number_of(value))
        case String():
            return _is_string(nodes, shape, value)
        case Array():
            return _is_array(nodes, shape, value)
        case Object():
            return _is_object(nodes, shape, value)
    return True


def _is_number(shape: Number, value: Fraction) -> bool:
    is_integer = value.denominator == 1
    return (
        (is_integer or not shape.integer)
        and not (is_integer and shape.fraction)
        and (shape.low is None or value > shape.low or (value == shape.low and not shape.low_open))
        and (shape.high is None or value < shape.high or (value == shape.high and not shape.high_open))
        and (not shape.multiple or (value / shape.multiple).denominator == 1)
    )


def _is_string(nodes: Expander, shape: String, value: str) -> bool:
    if not _fits(len(value), shape.shortest, shape.longest) or value in shape.excluded:
        return False
    wanted, unwanted = (*shape.patterns, *patterns_of(shape.formats)), shape.absent
    return all(nodes.matches(one, value) for one in wanted) and not any(nodes.matches(one, value) for one in unwanted)


def _is_array(nodes: Expander, shape: Array, value: list[Any]) -> bool:
    if not _fits(len(value), shape.shortest, shape.longest):
        return False
    for position, item in enumerate(value):
        node = shape.prefix[position] if position < len(shape.prefix) else shape.rest
        if not nodes.is_instance(node, item):
            return False
    for node, fewest, most in shape.contains_clauses:
        if not _fits(sum(nodes.is_instance(node, item) for item in value), fewest, most):
            return False
    return not shape.unique or len({value_of(item) for item in value}) == len(value)


def _is_object(nodes: Expander, shape: Object, value: dict[str, Any]) -> bool:
    if not _fits(len(value), shape.fewest, shape.most) or not shape.required <= value.keys():
        return False
    for wanted in shape.wanted:
        if not any(is_key_of(nodes, wanted, key) and nodes.is_instance(wanted.value, value[key]) for key in value):
            return False
    return all(
        nodes.is_instance(shape.names, key) and nodes.is_instance(nodes.value_node(shape, key), item)
        for key, item in value.items()
    )


def is_key_of(nodes: Expander, wanted: Witness, key: str) -> bool:
    """True if a member with this key may be the witness."""
    return (
        key not in wanted.excluded
        and all(nodes.matches(pattern, key) for pattern in wanted.found)
        and not any(nodes.matches(pattern, key) for pattern in wanted.absent)
        and (wanted.names == ANY or nodes.is_instance(wanted.names, key))
    )


def _fits(count: int, fewest: int, most: int | None) -> bool:
    return fewest <= count and (most is None or count <= most)
