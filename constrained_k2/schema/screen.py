"""What a schema may cost, decided before an engine sees it, and the few things that engines get wrong.

Schemas come from clients. Some of a hundred bytes cost an engine seconds and gigabytes, and some of a hundred kilobytes
overflow its stack, which ends the process. All checks here are linear in the schema and do not recurse.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema

_EXACT = 2**53  # beyond it engines round integers to doubles
_NUDGE = 1e-6


@dataclass(frozen=True, slots=True)
class SchemaBudget:
    """Limits on one tool's schema.

    Attributes:
        depth: How deeply subschemas and references lead into each other.
        count: Of ``minItems`` and its like: engines unroll them.
        multiple: ``multipleOf`` as an integer; of several that may meet in an ``allOf``, their common multiple.
        pattern_bytes: One pattern.
        patterns: Patterns that may meet: in an ``allOf``, or as ``patternProperties`` of one object.
        text_bytes: One property name, or one string of an enum or const.
    """

    depth: int = 200
    count: int = 10_000
    multiple: int = 10_000
    pattern_bytes: int = 2_000
    patterns: int = 8
    text_bytes: int = 4_000


DEFAULT_BUDGET = SchemaBudget()


def screen(schema: Any, budget: SchemaBudget = DEFAULT_BUDGET) -> None:
    """Refuse a schema that is over the budget or that engines match wrongly.

    Args:
        schema: A decoded schema.
        budget: The limits.

    Raises:
        SchemaTooCostly: Over a budget.
        UnsupportedSchema: Engines accept what this schema does not, or write numbers it does not have.
    """
    _check_depth(schema, budget.depth)
    merges = False
    patterns = 0
    multiples: list[Decimal] = []
    for pointer, node in _objects(schema):
        merges = merges or "allOf" in node or {"$ref", "multipleOf"} <= node.keys()
        for key, value in node.items():
            if len(key) > budget.text_bytes:
                raise _over("a property name", pointer, "text_bytes", budget.text_bytes, len(key))
            if key in _COUNTS and _is_number(value) and value > budget.count:
                raise _over(f"{key}", f"{pointer}/{key}", "count", budget.count, int(value))
            if key == "multipleOf" and _is_number(value) and value > 0:
                multiples.append(Decimal(str(value)))
                _check_multiple(multiples[-1:], pointer, budget.multiple)
            if key == "pattern" and isinstance(value, str):
                patterns += 1
                _check_pattern(value, f"{pointer}/pattern", budget)
            if key == "patternProperties" and isinstance(value, dict):
                if len(value) > budget.patterns:
                    raise _over("patternProperties", f"{pointer}/{key}", "patterns", budget.patterns, len(value))
                for pattern in value:
                    _check_pattern(pattern, f"{pointer}/{key}", budget)
            if key in {"enum", "const"}:
                _check_values(value, f"{pointer}/{key}", budget)
        _check_numbers(node, pointer)
    if merges:
        _check_multiple(multiples, "#", budget.multiple)
        if patterns > budget.patterns and _patterns_meet(schema, budget.patterns):
            raise _over("patterns in one allOf", "#", "patterns", budget.patterns, patterns)


_COUNTS = frozenset({"minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"})


def _over(what: str, pointer: str, budget: str, limit: int, actual: int) -> SchemaTooCostly:
    return SchemaTooCostly(
        f"{what} of {actual} is over the {limit} that one schema may have",
        pointer,
        "Simplify the schema",
        budget=budget,
        limit=limit,
        actual=actual,
    )


def _wrong(problem: str, pointer: str, keyword: str, remedy: str) -> UnsupportedSchema:
    return UnsupportedSchema(problem, f"{pointer}/{keyword}", remedy, keyword)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _objects(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every JSON object in the schema with its pointer; objects that are data are looked at too, at no harm."""
    waiting = [("#", schema)]
    while waiting:
        pointer, value = waiting.pop()
        if isinstance(value, dict):
            yield pointer, value
            waiting += [(f"{pointer}/{str(key)[:80]}", item) for key, item in value.items() if _is_container(item)]
        elif isinstance(value, list):
            waiting += [(f"{pointer}/{number}", item) for number, item in enumerate(value) if _is_container(item)]


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _check_depth(schema: Any, limit: int) -> None:
    """Follow nesting and local references as an engine does, each reference's target once."""
    seen: set[int] = set()
    path: list[Iterator[Any]] = [iter((schema,))]
    while path:
        value = next(path[-1], path)
        if value is path:
            path.pop()
            continue
        if not _is_container(value) or id(value) in seen:
            continue
        seen.add(id(value))
        if len(path) > limit:
            raise _over("the depth", "#", "depth", limit, len(path))
        if isinstance(value, dict):
            # Definitions are only reached by reference, so that a chain of them is followed as far as it goes.
            children = [child for key, child in value.items() if key not in {"$defs", "definitions"}]
            if isinstance(reference := value.get("$ref"), str):
                children.insert(0, _target(schema, reference))
        else:
            children = value
        path.append(iter(children))


def _target(schema: Any, reference: str) -> Any:
    """What a local reference points at; None for others, which engines refuse."""
    value = schema
    for token in reference.removeprefix("#").split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and len(key) < 9 and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value if reference.startswith("#") else None


def _check_multiple(values: list[Decimal], pointer: str, limit: int) -> None:
    """Engines count in the last decimal of ``multipleOf``: 0.25 costs as much as 25."""
    scale = max(0, *(-int(value.as_tuple().exponent) for value in values)) if len(values) > 1 else 0
    common = 1
    for value in values:
        digits = int("".join(map(str, value.normalize().as_tuple().digits)))
        common = math.lcm(common, int(value.scaleb(scale)) if scale else digits)
        if common > limit:
            raise _over("multipleOf", f"{pointer}/multipleOf", "multiple", limit, common)


def _check_pattern(pattern: str, pointer: str, budget: SchemaBudget) -> None:
    if len(pattern) > budget.pattern_bytes:
        raise _over("a pattern's length", pointer, "pattern_bytes", budget.pattern_bytes, len(pattern))


def _patterns_meet(schema: Any, limit: int) -> bool:
    """Whether some ``allOf`` has so many branches that as many patterns may apply to one string."""
    return any(
        isinstance(branches := node.get("allOf"), list)
        and sum("pattern" in branch or "$ref" in branch for branch in branches if isinstance(branch, dict)) > limit
        for _, node in _objects(schema)
    )


def _check_values(value: Any, pointer: str, budget: SchemaBudget) -> None:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and len(item) > budget.text_bytes:
            raise _over("a string's length", pointer, "text_bytes", budget.text_bytes, len(item))
        if isinstance(item, int) and not isinstance(item, bool) and abs(item) > _EXACT:
            raise UnsupportedSchema(
                f"{item} cannot be told from its neighbours: engines read numbers as doubles", pointer, "Use a string"
            )


def _check_numbers(node: dict[str, Any], pointer: str) -> None:
    """Refuse bounds that engines round."""
    for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        value: Any = node.get(key)
        if _is_number(value) and isinstance(value, int) and abs(value) > _EXACT:
            raise _wrong(f"{value} is beyond 2^53, where engines round", pointer, key, "Leave the bound out")


def move_open_bounds(node: dict[str, Any]) -> bool:
    """Close, in place, an open integer bound that LLGuidance (1.7.6) takes for a closed one.

    It does so where the other bound lies within 1 of it. The bound is moved by a millionth: that leaves out a few
    numbers and lets no wrong one in.

    Args:
        node: A schema, or as much of one as speaks of numbers.

    Returns:
        Whether a bound was moved.
    """
    has_moved = False
    for key, closed, sign, others in (
        ("exclusiveMinimum", "minimum", 1, ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", "maximum", -1, ("minimum", "exclusiveMinimum")),
    ):
        edge: Any = node.get(key)
        if not _is_number(edge) or edge != int(edge) or node.get("type") == "integer":
            continue
        room = [sign * (node[other] - edge) for other in others if _is_number(node.get(other))]
        if room and 0 < min(room) < 1:
            moved = edge + sign * min(_NUDGE, min(room) / 2)
            del node[key]
            beside = node.get(closed) if _is_number(node.get(closed)) else moved
            node[closed] = max(moved, beside) if sign > 0 else min(moved, beside)
            has_moved = True
    return has_moved


def move_all_open_bounds(schema: Any) -> None:
    """:func:`move_open_bounds` everywhere in a schema that is given to an engine's own compiler."""
    for _, node in _objects(schema):
        move_open_bounds(node)


def check_open_counts(schema: Any) -> None:
    """Refuse ``minProperties`` that only keys of the model's choice can meet: written twice, one key counts as two.

    For engines' own JSON Schema compilers; grammars of ours count such keys once.

    Raises:
        UnsupportedSchema: There is such a ``minProperties``.
    """
    for pointer, node in _objects(schema):
        fewest: Any = node.get("minProperties")
        required = node.get("required")
        closed = node.get("additionalProperties") is False and not node.get("patternProperties")
        named = len(required) if isinstance(required, list) else 0
        if _is_number(fewest) and not closed and fewest > max(1, named):
            raise _wrong(
                f"{fewest} properties cannot be counted where other keys are open",
                pointer,
                "minProperties",
                'Add "additionalProperties": false, or require the properties by name',
            )
