"""What engines' own JSON Schema compilers cost too much for, or get wrong: seen to before they get a schema."""

import math
from decimal import Decimal
from typing import Any

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.schema.screen import objects_in, over

LARGEST_EXACT = 2**53
"""Beyond it engines round integers to doubles."""
LARGEST_MULTIPLE = 10_000
"""Of ``multipleOf``, as an integer: engines have a state for each remainder."""
_LARGEST_COUNT = 10_000  # engines unroll counts
_COUNTS = frozenset({"minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"})
_NUDGE = 1e-6


def prepare(schema: Any) -> None:
    """Refuse what engines' own compilers choke on or get wrong; move, in place, the open bounds that they close.

    Args:
        schema: A decoded schema of the caller's own.

    Raises:
        SchemaTooCostly: A count or a multiple is too large for them.
        UnsupportedSchema: They would round a number, or count a property twice.
    """
    merges = False
    multiples: list[Decimal] = []
    for pointer, node in objects_in(schema):
        merges = merges or "allOf" in node or {"$ref", "multipleOf"} <= node.keys()
        for key, value in node.items():
            if key in _COUNTS and is_number(value) and value > _LARGEST_COUNT:
                raise over(f"{key}", f"{pointer}/{key}", "count", _LARGEST_COUNT, int(value))
            if key == "multipleOf" and is_number(value) and value > 0:
                multiples.append(Decimal(str(value)))
                _check_multiple(multiples[-1:], pointer)
        _check_numbers(node, pointer)
        _check_open_count(node, pointer)
        _move_open_bounds(node)
    if merges and multiples:
        _check_multiple(multiples, "#")


def _check_numbers(node: dict[str, Any], pointer: str) -> None:
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "enum", "const"):
        value: Any = node.get(keyword)
        for number in value if isinstance(value, list) else [value]:
            if is_number(number) and abs(number) > LARGEST_EXACT and number == int(number):
                problem = f"{number} is beyond 2^53, where engines round"
                raise UnsupportedSchema(problem, f"{pointer}/{keyword}", "Leave it out", keyword)


def _check_multiple(values: list[Decimal], pointer: str) -> None:
    """Engines count in the last decimal of ``multipleOf``: 0.25 costs as much as 25."""
    scale = max(0, *(-int(value.as_tuple().exponent) for value in values)) if len(values) > 1 else 0
    common = 1
    for value in values:
        digits = int("".join(map(str, value.normalize().as_tuple().digits)))
        common = math.lcm(common, int(value.scaleb(scale)) if scale else digits)
        if common > LARGEST_MULTIPLE:
            raise over("multipleOf", f"{pointer}/multipleOf", "multiple", LARGEST_MULTIPLE, common)


def _check_open_count(node: dict[str, Any], pointer: str) -> None:
    """Refuse ``minProperties`` that only keys of the model's choice can meet: written twice, one key counts as two."""
    fewest: Any = node.get("minProperties")
    required = node.get("required")
    closed = node.get("additionalProperties") is False and not node.get("patternProperties")
    named = len(required) if isinstance(required, list) else 0
    if is_number(fewest) and not closed and fewest > max(1, named):
        raise UnsupportedSchema(
            f"{fewest} properties cannot be counted where other keys are open",
            f"{pointer}/minProperties",
            'Add "additionalProperties": false, or require the properties by name',
            "minProperties",
        )


def _move_open_bounds(node: dict[str, Any]) -> None:
    """Close, in place, an open integer bound that LLGuidance (1.7.6) takes for a closed one.

    It does so where the other bound lies within 1 of it. The bound is moved by a millionth: that leaves out a few
    numbers and lets no wrong one in.

    Args:
        node: A schema, or as much of one as speaks of numbers.
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


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
