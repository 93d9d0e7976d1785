"""The grammars of objects and arrays, exhaustively over small values: exactly the valid ones, in any property order."""

import json
from typing import Any

import jsonschema
import pytest

from tests.kit.compilers import narrowed
from tests.kit.grammars import accepts, compiled
from tests.schema.test_cases import spellings
from tests.schema.universe import UNIVERSE

ONE, TEXT = {"const": 1}, {"type": "string"}
ABC = {"a": {}, "b": ONE, "c": TEXT}
OBJECTS: list[dict[str, Any]] = [
    {},
    {"required": ["a"]},
    {"required": ["c", "a", "b"]},
    {"properties": ABC},
    {"properties": ABC, "required": ["b"]},
    {"properties": ABC, "required": ["a", "b", "c"], "additionalProperties": False},
    {"properties": ABC, "additionalProperties": False},
    {"properties": {"a": ONE}, "additionalProperties": TEXT},
    {"properties": {"a": {}}, "required": ["b"], "additionalProperties": ONE},
    {"additionalProperties": False},
    {"additionalProperties": ONE, "minProperties": 1},
    {"properties": ABC, "additionalProperties": False, "minProperties": 2},
    {"properties": ABC, "additionalProperties": False, "minProperties": 1, "maxProperties": 2},
    {"properties": ABC, "additionalProperties": False, "maxProperties": 2, "required": ["a"]},
    {"properties": {"a": {}}, "maxProperties": 1},
    {"maxProperties": 0},
    {"minProperties": 2},
    {"minProperties": 3, "properties": {"a": ONE, "b": {}}},
    {"minProperties": 2, "maxProperties": 2, "required": ["a"], "additionalProperties": TEXT},
    {"minProperties": 2, "patternProperties": {"^[ab]+$": ONE}, "additionalProperties": False},
    {"propertyNames": {"enum": ["a", "b", "d"]}, "minProperties": 2},
    {"not": {"propertyNames": {"not": {"const": "a"}}}},
    {"patternProperties": {"^(?:a|b)$": ONE}, "additionalProperties": False, "minProperties": 2},
    {"patternProperties": {"^[ab]$": ONE}},
    {"patternProperties": {"[ab]": ONE, "[bc]": {"type": ["string", "number"]}}, "additionalProperties": False},
    {"properties": {"a": ONE}, "patternProperties": {"^a": {"type": "number"}, "b": TEXT}},
    {"propertyNames": {"maxLength": 0}},
    {"propertyNames": {"enum": ["a", "d"]}, "required": ["a"]},
    {"propertyNames": {"pattern": "^[^c]$"}, "properties": ABC},
    {"dependentRequired": {"a": ["b"], "c": ["a"]}},
    {"dependentSchemas": {"a": {"properties": {"b": ONE}, "required": ["b"]}}},
    {"properties": ABC, "not": {"required": ["a", "b"]}},
    {"anyOf": [{"required": ["a"]}, {"required": ["b", "c"]}], "properties": ABC},
    {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"properties": {"c": ONE}}},
    {"properties": {"a": {"type": "object", "properties": {"a": ONE}, "required": ["a"]}}},
    {"properties": {"a": {"$ref": "#"}, "b": ONE}, "additionalProperties": False},
]
ARRAYS: list[dict[str, Any]] = [
    {},
    {"items": ONE},
    {"items": {"type": ["string", "number"]}, "minItems": 1},
    {"items": False},
    {"minItems": 1, "maxItems": 2},
    {"maxItems": 0},
    {"maxItems": 1},
    {"minItems": 1, "maxItems": 1, "items": ONE},
    {"minItems": 3, "items": {"enum": [1, "a"]}},
    {"prefixItems": [ONE, TEXT]},
    {"prefixItems": [ONE, TEXT], "items": {"type": "null"}},
    {"prefixItems": [ONE, TEXT], "items": False, "minItems": 1},
    {"prefixItems": [{}, ONE], "minItems": 2, "maxItems": 2},
    {"prefixItems": [False]},
    {"contains": ONE},
    {"contains": ONE, "minContains": 2},
    {"contains": TEXT, "maxContains": 1},
    {"contains": TEXT, "minContains": 1, "maxContains": 2},
    {"contains": ONE, "maxItems": 2},
    {"contains": ONE, "minItems": 2, "items": {"type": ["number", "null"]}},
    {"contains": TEXT, "maxContains": 1, "maxItems": 2},
    {"contains": TEXT, "minContains": 0, "maxContains": 1, "maxItems": 3, "items": {"type": ["string", "null"]}},
    {"contains": ONE, "minContains": 2, "maxContains": 2, "prefixItems": [ONE, {"type": ["string", "null"]}]},
    {"contains": ONE, "maxContains": 1, "prefixItems": [TEXT, {}], "items": False},
    {"allOf": [{"contains": ONE}, {"contains": TEXT, "maxContains": 1}], "maxItems": 3},
    {"allOf": [{"contains": ONE}, {"contains": TEXT}, {"contains": {"type": "null"}}], "prefixItems": [{}, ONE]},
    {"allOf": [{"contains": {"const": value}} for value in (1, "a", None, False)], "maxItems": 4},
    {"contains": ONE, "maxContains": 2, "items": ONE},
    {"contains": ONE, "maxItems": 80},
    {"contains": ONE, "minContains": 3, "maxContains": 70},
    {"not": {"contains": ONE}},
    {"items": {"enum": [1, "a", None]}, "uniqueItems": True},
    {"items": {"enum": [1, "a", None]}, "uniqueItems": True, "minItems": 2},
    {"items": {"enum": [1, "a"]}, "uniqueItems": True, "maxItems": 1},
    {"items": {"enum": [1, "a", None]}, "contains": ONE},
    {"not": {"items": ONE}},
    {"anyOf": [{"items": ONE}, {"items": TEXT}]},
    {"oneOf": [{"contains": ONE}, {"contains": TEXT}]},
    {"items": {"type": "array", "maxItems": 0}},
]


@pytest.mark.parametrize(
    "schema",
    [{"type": "object"} | schema for schema in OBJECTS] + [{"type": "array"} | schema for schema in ARRAYS],
    ids=json.dumps,
)
def test_exactly_the_valid_values_are_written(schema: dict[str, Any]) -> None:
    grammar = compiled(schema)
    assert not narrowed(grammar.coverage) and not grammar.coverage.relaxed, grammar.coverage
    validator = jsonschema.Draft202012Validator(schema)
    for value in UNIVERSE:
        valid = validator.is_valid(value)
        assert all(accepts(grammar, *spelling) == valid for spelling in spellings(value)), value
