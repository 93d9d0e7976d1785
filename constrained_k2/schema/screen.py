"""What a schema may cost, decided before it is looked into.

Schemas come from clients. Some of a hundred bytes cost an engine seconds and gigabytes, and some of a hundred kilobytes
overflow its stack, which ends the process. All checks here are linear in the schema and do not recurse.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema


@dataclass(frozen=True, slots=True)
class SchemaBudget:
    """Limits on one tool's schema.

    Attributes:
        depth: How deeply subschemas and references lead into each other.
        objects: JSON objects in it.
        values: One enum.
        pattern_bytes: One pattern.
        patterns: Patterns that may meet: in an ``allOf``, or as ``patternProperties`` of one object.
        text_bytes: One property name, or one string of an enum or const.
    """

    depth: int = 200
    objects: int = 50_000
    values: int = 10_000
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
        UnsupportedSchema: It speaks of texts or numbers that JSON in UTF-8 cannot hold.
    """
    _check_depth(schema, budget.depth)
    patterns = 0
    for count, (pointer, node) in enumerate(objects_in(schema), 1):
        if count > budget.objects:
            raise over("the number of its parts", pointer, "objects", budget.objects, count)
        _check_writable(node, pointer)
        for key, value in node.items():
            if len(key) > budget.text_bytes:
                raise over("a property name", pointer, "text_bytes", budget.text_bytes, len(key))
            if key == "pattern" and isinstance(value, str):
                patterns += 1
                _check_pattern(value, f"{pointer}/pattern", budget)
            if key == "patternProperties" and isinstance(value, dict):
                if len(value) > budget.patterns:
                    raise over("patternProperties", f"{pointer}/{key}", "patterns", budget.patterns, len(value))
                for pattern in value:
                    _check_pattern(pattern, f"{pointer}/{key}", budget)
            if key in {"enum", "const"}:
                _check_values(value, f"{pointer}/{key}", budget)
    if patterns > budget.patterns and _patterns_meet(schema, budget.patterns):
        raise over("patterns in one allOf", "#", "patterns", budget.patterns, patterns)


def over(what: str, pointer: str, budget: str, limit: int, actual: int) -> SchemaTooCostly:
    """The error for something of which there is more than its budget."""
    return SchemaTooCostly(
        f"{what} of {actual} is over the {limit} that one schema may have",
        pointer,
        "Simplify the schema",
        budget=budget,
        limit=limit,
        actual=actual,
    )


def objects_in(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
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
            raise over("the depth", "#", "depth", limit, len(path))
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


def _check_pattern(pattern: str, pointer: str, budget: SchemaBudget) -> None:
    if len(pattern) > budget.pattern_bytes:
        raise over("a pattern's length", pointer, "pattern_bytes", budget.pattern_bytes, len(pattern))


def _patterns_meet(schema: Any, limit: int) -> bool:
    """Whether some ``allOf`` has so many branches that as many patterns may apply to one string."""
    return any(
        isinstance(branches := node.get("allOf"), list)
        and sum("pattern" in branch or "$ref" in branch for branch in branches if isinstance(branch, dict)) > limit
        for _, node in objects_in(schema)
    )


_ANNOTATIONS = frozenset({"title", "description", "$comment", "default", "examples"})
_IN_DATA = re.compile(r"/(?:const|enum)(?:/|\Z)")  # of a pointer: where an annotation's name is a key like any other


def _check_writable(node: dict[str, Any], pointer: str) -> None:
    """Refuse lone surrogates, which no token has, and numbers that are none."""
    skipped = frozenset[str]() if _IN_DATA.search(pointer) else _ANNOTATIONS
    for key, value in node.items():
        if key in skipped:
            continue
        items = [value, key]
        while items:
            item = items.pop()
            if isinstance(item, list):
                items += item
                continue
            problem = _unwritable(item)
            if problem:
                raise UnsupportedSchema(problem, f"{pointer}/{ascii(key)[1:-1][:80]}", "Remove it", key)


def _unwritable(value: Any) -> str:
    """What is wrong with a string or number; empty if nothing is."""
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        return "holds a lone surrogate, which no text in UTF-8 can"
    if isinstance(value, float) and not math.isfinite(value):
        return "is no number in JSON"
    return ""


def _check_values(value: Any, pointer: str, budget: SchemaBudget) -> None:
    if pointer.endswith("/enum") and isinstance(value, list) and len(value) > budget.values:
        raise over("an enum's number of values", pointer, "values", budget.values, len(value))
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and len(item) > budget.text_bytes:
            raise over("a string's length", pointer, "text_bytes", budget.text_bytes, len(item))
