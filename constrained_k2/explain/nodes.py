"""Finds the subschemas of a schema document that apply to a value, by the path to the value."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from constrained_k2.explain.position import Path
from constrained_k2.schema.document import SchemaDocument, escape
from constrained_k2.schema.keywords import in_place

MAX_NODES = 64  # max subschemas that apply to one value

_ALWAYS = ("$ref", "$dynamicRef", "allOf")
_SOMETIMES = ("anyOf", "oneOf", "then", "else", "dependentSchemas", "dependencies")


class Node(NamedTuple):
    """A subschema, by its pointer in the document."""

    pointer: str
    is_sure: bool  # True if it applies to every value at the path, not only in some branches


Level = tuple[Node, ...]


def levels_of(document: SchemaDocument, path: Path, check: Callable[[], None]) -> list[Level]:
    """The subschemas at each value on a path, from the root's to the last part's; ``check`` may raise at each."""
    levels = [_with_in_place(document, [Node("#", is_sure=True)])]
    for part in path:
        check()
        found = (child for node in levels[-1] for child in _children(document, node, part))
        levels.append(_with_in_place(document, found))
    return levels


def schema_at(document: SchemaDocument, pointer: str) -> dict[str, Any]:
    """The subschema at a pointer; empty if it is a boolean or anything else."""
    schema = document.find(pointer)
    return schema if isinstance(schema, dict) else {}


def _with_in_place(document: SchemaDocument, nodes: Iterable[Node]) -> Level:
    """The nodes, and the subschemas that apply to the same value through them (``allOf``, ``$ref``, …)."""
    found: dict[str, bool] = {}
    waiting = list(nodes)
    while waiting and len(found) < MAX_NODES:
        pointer, is_sure = waiting.pop(0)
        if found.get(pointer, False) >= is_sure and pointer in found:
            continue
        found[pointer] = is_sure
        schema = schema_at(document, pointer)
        if document.draft == "legacy" and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        for keyword in (*_ALWAYS, *_SOMETIMES):
            if keyword in schema:
                part = in_place(document, {keyword: schema[keyword]}, pointer)
                waiting += (Node(child, is_sure and keyword in _ALWAYS) for child in part)
    return tuple(Node(pointer, is_sure) for pointer, is_sure in found.items())


def _children(document: SchemaDocument, node: Node, part: str | int) -> Iterator[Node]:
    """The subschemas that a node applies to one of its members or items."""
    pointer, is_sure = node
    schema = schema_at(document, pointer)
    if document.draft == "legacy" and "$ref" in schema:
        return
    if isinstance(part, int):
        yield from _items(schema, node, part)
        return
    declared, patterns = schema.get("properties"), schema.get("patternProperties")
    if is_declared := isinstance(declared, dict) and part in declared:
        yield Node(f"{pointer}/properties/{escape(part)}", is_sure)
    if isinstance(patterns, dict):  # a pattern is not matched here: a client's may take any time
        yield from (Node(f"{pointer}/patternProperties/{escape(key)}", is_sure=False) for key in patterns)
    if not is_declared and isinstance(schema.get("additionalProperties"), dict):
        yield Node(f"{pointer}/additionalProperties", is_sure and not patterns)
    if isinstance(schema.get("unevaluatedProperties"), dict):
        yield Node(f"{pointer}/unevaluatedProperties", is_sure=False)


def _items(schema: dict[str, Any], node: Node, index: int) -> Iterator[Node]:
    pointer, is_sure = node
    is_old = isinstance(schema.get("items"), list)
    first, rest = ("items", "additionalItems") if is_old else ("prefixItems", "items")
    listed = schema.get(first)
    if isinstance(listed, list) and index < len(listed):
        yield Node(f"{pointer}/{first}/{index}", is_sure)
    elif isinstance(schema.get(rest), dict):
        yield Node(f"{pointer}/{rest}", is_sure)
    for keyword in ("unevaluatedItems", "contains"):
        if isinstance(schema.get(keyword), dict):
            yield Node(f"{pointer}/{keyword}", is_sure=False)
