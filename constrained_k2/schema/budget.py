"""Checks a client's schema against size limits, in linear time, before it is compiled.

A schema of a hundred bytes can cost an engine seconds and gigabytes. One of a hundred kilobytes can overflow the stack
of a recursive function, so the checks do not recurse.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.document import DEFINITIONS, local_target

_ANNOTATIONS = frozenset({"title", "description", "$comment", "default", "examples", "example"})
_VALUES = frozenset({"enum", "const"})
_BOUNDED = _VALUES | {"pattern", "patternProperties"}
_LIMITS_OF_PATTERNS = ("patterns", "anchored_patterns")  # names of limits; the second applies if all begin with "^"
_CONTAINERS = (dict, list)
_IN_DATA = re.compile(r"/(?:const|enum)(?:/|\Z)")  # a pointer into data, where an annotation's name is an ordinary key


@dataclass(frozen=True, slots=True)
class SchemaBudget:
    """Limits on one tool's schema."""

    depth: int = 200  # levels of nested subschemas and references
    objects: int = 50_000  # JSON objects in the schema
    values: int = 10_000  # values in one enum
    pattern_characters: int = 8_000
    patterns: int = 8  # patterns for one string: in an allOf, or in patternProperties of one object
    anchored_patterns: int = 32  # in patternProperties, if all begin with "^": the first characters of a key decide
    text_characters: int = 4_000  # length of one property name, or of one string in an enum or const


DEFAULT_BUDGET = SchemaBudget()


def check_budget(schema: Any, budget: SchemaBudget = DEFAULT_BUDGET) -> None:
    """Refuse a schema that exceeds a limit, or contains a string or number that UTF-8 JSON cannot express."""
    _check_depth(schema, budget.depth)

    def check(what: str, pointer: str, name: str, actual: int) -> None:
        if actual > (limit := getattr(budget, name)):
            raise too_costly(what, pointer, name, limit, actual)

    patterns = 0
    for count, (pointer, node) in enumerate(objects_in(schema), 1):
        check("the number of its parts", pointer, "objects", count)
        _check_writable(node, pointer)
        if node and (longest := max(map(len, node))) > budget.text_characters:
            check("a property name's length", pointer, "text_characters", longest)
        if _BOUNDED.isdisjoint(node):
            continue
        if isinstance(pattern := node.get("pattern"), str):
            patterns += 1
            check("a pattern's length", f"{pointer}/pattern", "pattern_characters", len(pattern))
        if isinstance(by_pattern := node.get("patternProperties"), dict):
            here, is_anchored = f"{pointer}/patternProperties", all(pattern.startswith("^") for pattern in by_pattern)
            check("the number of patternProperties", here, _LIMITS_OF_PATTERNS[is_anchored], len(by_pattern))
            for pattern in by_pattern:
                check("a pattern's length", here, "pattern_characters", len(pattern))
        if isinstance(listed := node.get("enum"), list):
            check("an enum's number of values", f"{pointer}/enum", "values", len(listed))
        for key in _VALUES.intersection(node):
            value, here = node[key], f"{pointer}/{key}"
            for item in value if isinstance(value, list) else [value]:
                check("a string's length", here, "text_characters", len(item) if isinstance(item, str) else 0)
    if patterns > budget.patterns and _patterns_meet(schema, budget.patterns):
        raise too_costly("the number of patterns in one allOf", "#", "patterns", budget.patterns, patterns)


def too_costly(what: str, pointer: str, budget: str, limit: int, actual: int) -> SchemaTooCostly:
    """The error for a count that exceeds its budget."""
    problem = f"{what} ({actual}) is over the limit of {limit}"
    return SchemaTooCostly(problem, pointer, "Simplify the schema", budget=budget, limit=limit, actual=actual)


def objects_in(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every JSON object in the schema with its pointer, including objects in enums and annotations."""
    waiting = [("#", schema)]
    while waiting:
        pointer, value = waiting.pop()
        if isinstance(value, dict):
            yield pointer, value
        items: Any = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
        waiting += [(f"{pointer}/{str(key)[:80]}", item) for key, item in items if isinstance(item, _CONTAINERS)]


def _check_depth(schema: Any, limit: int) -> None:
    """Check the depth, following nesting and local references as an engine does; each value is visited once."""
    seen: set[int] = set()
    path: list[Iterator[Any]] = [iter((schema,))]
    while path:
        value = next(path[-1], path)
        if value is path:
            path.pop()
            continue
        if not isinstance(value, _CONTAINERS) or id(value) in seen:
            continue
        seen.add(id(value))
        if len(path) > limit:
            raise too_costly("the depth", "#", "depth", limit, len(path))
        children = value
        if isinstance(value, dict):
            # Definitions are visited only through references, so that a chain of them is followed to its end.
            children = [
                child for key, child in value.items() if isinstance(child, _CONTAINERS) and key not in DEFINITIONS
            ]
            if isinstance(reference := value.get("$ref"), str):
                children.insert(0, local_target(schema, reference))
        path.append(iter(children))


def _patterns_meet(schema: Any, limit: int) -> bool:
    """True if more patterns than the limit may apply to one string through the branches of an ``allOf``."""
    return any(
        isinstance(branches := node.get("allOf"), list)
        and sum("pattern" in branch or "$ref" in branch for branch in branches if isinstance(branch, dict)) > limit
        for _, node in objects_in(schema)
    )


def _check_writable(node: dict[str, Any], pointer: str) -> None:
    """Refuse lone surrogates, which no token contains, and numbers that are not finite."""
    skipped = frozenset[str]() if _IN_DATA.search(pointer) else _ANNOTATIONS
    for key, value in node.items():
        is_plain = isinstance(value, dict) or (isinstance(value, str) and value.isascii())  # by far the most frequent
        if key in skipped or (is_plain and key.isascii()):
            continue
        items = [value, key]
        while items:
            item, problem = items.pop(), ""
            if isinstance(item, list):
                items += item
            elif isinstance(item, str) and not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
                problem = "contains a lone surrogate, which UTF-8 cannot encode"
            elif isinstance(item, float) and not math.isfinite(item):
                problem = f"{item} is not a number in JSON"
            if problem:
                raise UnsupportedSchema(problem, f"{pointer}/{ascii(key)[1:-1][:80]}", "Remove it", key)
