"""Screens schemas for the engines' builtin JSON Schema compilers: what they compile too slowly or incorrectly."""

import math
from decimal import Decimal
from typing import Any

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.schema.budget import objects_in, too_costly
from constrained_k2.schema.doubles import LARGEST_EXACT
from constrained_k2.schema.shapes import is_number

LARGEST_MULTIPLE = 10_000
"""Limit on ``multipleOf``, counted in its last decimal: engines have one state for each remainder."""
_MAX_COUNT = 10_000  # engines unroll counts
_COUNTS = frozenset({"minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"})
_TOGETHER = frozenset({"allOf", "anyOf", "oneOf"})  # under which several multiples may be read at once
_NUDGE = 1e-6


def prepare(schema: dict[str, Any]) -> None:
    """Refuse what builtin compilers cannot compile well; move, in place, exclusive bounds that they misread."""
    merges = False
    multiples: list[Decimal] = []
    for pointer, node in objects_in(schema):
        merges = merges or not _TOGETHER.isdisjoint(node) or {"$ref", "multipleOf"} <= node.keys()
        for key, value in node.items():
            if key in _COUNTS and is_number(value) and value > _MAX_COUNT:
                raise too_costly(key, f"{pointer}/{key}", "count", _MAX_COUNT, int(value))
            if key == "multipleOf" and is_number(value) and value > 0:
                multiples.append(Decimal(str(value)))
                _check_multiple(multiples[-1:], pointer)
        _check_numbers(node, pointer)
        _check_open_count(node, pointer)
        _move_exclusive_bounds(node)
    if merges and multiples:
        _check_multiple(multiples, "#")


def _check_numbers(node: dict[str, Any], pointer: str) -> None:
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "enum", "const"):
        value: Any = node.get(keyword)
        for number in value if isinstance(value, list) else [value]:
            if is_number(number) and abs(number) > LARGEST_EXACT and number == int(number):
                problem = f"{number} is beyond 2^53, where engines round"
                raise UnsupportedSchema(problem, f"{pointer}/{keyword}", "Remove it", keyword)


def _check_multiple(values: list[Decimal], pointer: str) -> None:
    """Engines count in the last decimal of ``multipleOf``: 0.25 costs as much as 25."""
    scale = max(0, *(-int(value.as_tuple().exponent) for value in values)) if len(values) > 1 else 0
    common = 1
    for value in values:
        digits = int("".join(map(str, value.normalize().as_tuple().digits)))
        common = math.lcm(common, int(value.scaleb(scale)) if scale else digits)
        if common > LARGEST_MULTIPLE:
            raise too_costly("multipleOf", f"{pointer}/multipleOf", "multiple", LARGEST_MULTIPLE, common)


def _check_open_count(node: dict[str, Any], pointer: str) -> None:
    """Refuse a ``minProperties`` that undeclared keys could meet: engines count a key that is written twice as two."""
    fewest, required = node.get("minProperties"), node.get("required")
    closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    named = len(required) if isinstance(required, list) else 0
    if is_number(fewest) and not closed and fewest > max(1, named):
        problem = f"{fewest} properties cannot be counted while undeclared keys are allowed"
        remedy = 'Add "additionalProperties": false, or require the properties by name'
        raise UnsupportedSchema(problem, f"{pointer}/minProperties", remedy, "minProperties")


def _move_exclusive_bounds(node: dict[str, Any]) -> None:
    """Move exclusive integer bounds within 1 of the other one, which LLGuidance (1.7.6) treats as inclusive.

    The bound moves by a millionth, which excludes a few valid numbers and admits no invalid one.
    """
    for key, closed, sign, others in (
        ("exclusiveMinimum", "minimum", 1, ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", "maximum", -1, ("minimum", "exclusiveMinimum")),
    ):
        edge: Any = node.get(key)
        if not is_number(edge) or edge != int(edge) or node.get("type") == "integer":
            continue
        room = [sign * (node[other] - edge) for other in others if is_number(node.get(other))]
        if room and 0 < min(room) < 1:
            moved = edge + sign * min(_NUDGE, min(room) / 2)
            del node[key]
            beside = node.get(closed) if is_number(node.get(closed)) else moved
            node[closed] = max(moved, beside) if sign > 0 else min(moved, beside)
