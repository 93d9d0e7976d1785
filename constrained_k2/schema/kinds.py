"""Computes cheaply, from the keywords alone, which JSON types a subschema's instances may have.

The result is a superset.
"""

from contextlib import suppress
from typing import Any

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.schema.dialects import read
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.shapes import Kind, kind_of

_ALL: frozenset[Kind] = frozenset({"null", "boolean", "number", "string", "array", "object"})
_MAX_DEPTH = 8


def possible_kinds(document: SchemaDocument, pointer: str, depth: int = 0) -> frozenset[Kind]:
    """A superset of the JSON types of a subschema's instances."""
    schema, null, _ = read(document.find(pointer))
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return frozenset() if schema is False else _ALL
    kinds = _kinds_without_null(document, schema, pointer, depth)
    return kinds | {"null"} if null else kinds


def _kinds_without_null(document: SchemaDocument, schema: dict[str, Any], pointer: str, depth: int) -> frozenset[Kind]:
    def below(target: str) -> frozenset[Kind]:
        return possible_kinds(document, target, depth + 1)

    kinds = _ALL
    if isinstance(reference := schema.get("$ref"), str):
        with suppress(UnsupportedSchema):  # the reference is relaxed
            kinds = below(document.resolve(reference, pointer))
        if document.draft == "legacy":
            return kinds
    kinds &= _declared(schema)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := schema.get(keyword), list) and branches:
            parts = [below(f"{pointer}/{keyword}/{number}") for number in range(len(branches))]
            kinds &= _ALL.intersection(*parts) if keyword == "allOf" else frozenset().union(*parts)
    return kinds


def _declared(schema: dict[str, Any]) -> frozenset[Kind]:
    kinds = _ALL
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        known: dict[str, Kind] = {kind: kind for kind in _ALL} | {"integer": "number"}
        if all(isinstance(name, str) and name in known for name in names):
            kinds = frozenset(known[name] for name in names)
    if isinstance(values := schema.get("enum"), list):
        kinds &= frozenset(map(kind_of, values))
    return kinds & {kind_of(schema["const"])} if "const" in schema else kinds
