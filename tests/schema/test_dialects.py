"""Schemas of OpenAPI 3.0 and of older drafts: every reader of a schema reads them in one way, and coverage says how."""

import json
from functools import cache
from typing import Any

import pytest

from constrained_k2 import Compiler, UnsupportedSchema, Vocabulary, schema_coverage
from constrained_k2.compiler.coverage import byte_compiler as of_format
from constrained_k2.evaluation.judge import validator_of
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.dialects import in_json_schema, read
from constrained_k2.schema.plain import plain_shape
from tests.kit.compilers import accepts, byte_compiler
from tests.kit.grammars import request_of

DEFINITIONS = {
    "thing": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    "maybe": {"type": "boolean", "nullable": True},
}
# Schema of a property; values that it has; values that it does not have; pointers of what is read as something else.
CASES: dict[str, tuple[Any, list[Any], list[Any], list[str]]] = {
    "type": ({"type": "string", "nullable": True}, ["a", None], [1], ["nullable"]),
    "bounds": ({"type": "integer", "minimum": 3, "nullable": True}, [3, None], [2, "a"], ["nullable"]),
    "enum without null": ({"type": "string", "enum": ["a"], "nullable": True}, ["a", None], ["b"], ["nullable"]),
    "enum with null": ({"type": "string", "enum": ["a", None], "nullable": True}, ["a", None], ["b"], ["nullable"]),
    "enum of null": ({"type": "string", "enum": [None], "nullable": True}, [None], ["", "null"], ["nullable"]),
    "enum without a type": ({"enum": ["a"], "nullable": True}, ["a", None], ["b", 1], ["nullable"]),
    "enum of any type with null": ({"enum": ["a", None], "nullable": True}, ["a", None], ["b", 1], []),
    "const": ({"const": 5, "nullable": True}, [5, None], [6], ["nullable"]),
    "no type": ({"nullable": True, "minLength": 2}, ["ab", None, 1], ["a"], []),
    "reference": ({"$ref": "#/definitions/thing", "nullable": True}, [{"a": "x"}, None], [{}, 1], ["nullable"]),
    "allOf": ({"allOf": [{"$ref": "#/definitions/thing"}], "nullable": True}, [{"a": "x"}, None], [{}, 1], ["nullable"]),
    "anyOf": ({"anyOf": [{"type": "string"}, {"type": "boolean"}], "nullable": True}, ["a", None], [1], ["nullable"]),
    "a branch": ({"anyOf": [{"type": "string", "nullable": True}, {"type": "boolean"}]}, ["a", True, None], [1], ["anyOf/0/nullable"]),
    "one of two": ({"oneOf": [{"type": "string", "nullable": True}, {"type": "boolean"}]}, ["a", True, None], [1], ["oneOf/0/nullable"]),
    "two branches": ({"oneOf": [{"type": "string", "nullable": True}, {"type": "boolean", "nullable": True}]},
                     ["a", True], [None, 1], ["oneOf/0/nullable", "oneOf/1/nullable"]),
    "both of two": ({"allOf": [{"type": "string", "nullable": True}, {"minLength": 2}]}, ["ab", None], ["a", 1], ["allOf/0/nullable"]),
    "negation": ({"not": {"type": "string", "nullable": True}}, [1, {}], ["a", None], ["not/nullable"]),
    "items": ({"type": "array", "items": {"type": "integer", "nullable": True}}, [[1, None], []], [["a"], None], ["items/nullable"]),
    "members": ({"type": "object", "properties": {"nullable": {"type": "null"}}, "additionalProperties": {"nullable": True, "type": "integer"}},
                [{"nullable": None, "b": None, "c": 1}], [{"b": "x"}, {"nullable": 1}], ["additionalProperties/nullable"]),
    "a definition": ({"$ref": "#/definitions/maybe"}, [True, None], [1], ["/definitions/maybe/nullable"]),
    "a part of a nullable schema": (
        {"prefixItems": [{"type": "array", "nullable": True, "items": {"type": "string"}, "minItems": 1}],
         "items": {"$ref": "#/properties/p/prefixItems/0/items"}},
        [[["a"], "b"], [None, "b"]], [["b"], [["a"], 1], [["a"], None]], ["prefixItems/0/nullable"],
    ),
    "null already": ({"type": ["string", "null"], "nullable": True}, ["a", None], [1], []),
    "false": ({"type": "string", "nullable": False}, ["a"], [None], []),
    "no boolean": ({"type": "string", "nullable": "true"}, ["a"], [None], []),
    "Swagger": ({"type": "string", "x-nullable": True}, ["a", None], [1], ["x-nullable"]),
    "Gemini": ({"type": "STRING", "nullable": True, "enum": ["A"]}, ["A", None], ["a"], ["nullable", "type"]),
    "zod's null": ({"enum": ["null"], "nullable": True}, [None, "null"], ["a"], ["nullable"]),
    "YAML": ({"type": ["string", None]}, ["a", None], [1], ["type"]),
    "draft 4's bounds": ({"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 3, "exclusiveMaximum": False},
                         [2, 3], [1, 4], []),
    "draft 4's bounds alone": ({"type": "integer", "exclusiveMinimum": True}, [0, -1, 1], ["a"], []),
    "draft 3's required": (
        {"type": "object", "required": True, "properties": {"a": {"type": "null", "required": True}, "b": {"type": "null", "required": False}}},
        [{"a": None}, {"a": None, "b": None}], [{}, {"b": None}], ["/properties/p/required", "properties/a/required"],
    ),
    "required twice": ({"type": "object", "required": ["a"], "properties": {"a": {"type": "null", "required": True}}},
                       [{"a": None}], [{}], []),
    "a property named required": (
        {"type": "object", "properties": {"required": True, "a": {"properties": {"required": {"type": "null"}}}}},
        [{}, {"a": {}}], [{"a": {"required": 1}}], [],
    ),
}  # fmt: skip


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": schema}, "definitions": DEFINITIONS, "additionalProperties": False}


def pointers(relative: list[str]) -> list[str]:
    return sorted(f"#{each}" if each.startswith("/") else f"#/properties/p/{each}" for each in relative)


@cache
def compiler_of(engine: EngineName) -> Compiler:
    return Compiler(Vocabulary.of_bytes(), engine=engine, undeclared_keys="allow")


each_case = pytest.mark.parametrize(("schema", "right", "wrong", "read_as"), list(CASES.values()), ids=list(CASES))


@pytest.mark.slow
@each_case
@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_grammars(engine: EngineName, schema: Any, right: list[Any], wrong: list[Any], read_as: list[str]) -> None:
    compiler = compiler_of(engine)
    coverage = compiler.grammar(json.dumps(of(schema)), "").coverage
    assert sorted(use.pointer for use in coverage.read_as) == pointers(read_as)
    assert not coverage.refused
    for value in right:
        assert accepts(compiler, of(schema), json.dumps({"p": value}, separators=(",", ":"))), value
    for value in wrong if coverage.is_sound else ():
        assert not accepts(compiler, of(schema), json.dumps({"p": value}, separators=(",", ":"))), value
    assert coverage.is_sound or engine == "xgrammar"


@each_case
def test_the_judge(schema: Any, right: list[Any], wrong: list[Any], read_as: list[str]) -> None:
    validator = validator_of(of(schema))
    assert all(validator.is_valid({"p": value}) for value in right)
    assert not any(validator.is_valid({"p": value}) for value in wrong)
    assert set(pointers(read_as)) <= in_json_schema(of(schema))[1].keys()


@each_case
def test_admission_by_shape_compiles_them(schema: Any, right: list[Any], wrong: list[Any], read_as: list[str]) -> None:
    del right, wrong
    assert not read_as or plain_shape(json.dumps(of(schema))) is None


def test_a_property_of_kimi_k3_may_be_null() -> None:
    compiler = of_format(wire_format=KIMI_K3)
    assert [use.keyword for use in schema_coverage(of(CASES["type"][0]), wire_format=KIMI_K3).read_as] == ["nullable"]
    assert request_of(compiler, of(CASES["type"][0])).coverage("f").is_sound


def test_a_recursion_may_end_in_null() -> None:
    parent = {"nullable": True, "allOf": [{"$ref": "#"}]}
    tree = {"type": "object", "properties": {"parent": parent}, "required": ["parent"]}
    for text, expected in (('{"parent":null}', True), ('{"parent":{"parent":null}}', True), ('{"parent":{}}', False)):
        assert accepts(byte_compiler(), tree, text) == expected
        assert validator_of(tree).is_valid(json.loads(text)) == expected


@pytest.mark.parametrize("keyword", ["nullable", "x-nullable"])
def test_arguments_are_an_object_also_if_they_are_nullable(keyword: str) -> None:
    for root in ({"type": "object"}, {}, {"$ref": "#/definitions/thing", "definitions": DEFINITIONS}):
        schema = {**root, keyword: True}
        assert not schema_coverage(schema).inexact
        assert accepts(byte_compiler(), schema, '{"a":"x"}') and not accepts(byte_compiler(), schema, "null")


def test_references_of_old_drafts_may_be_nullable() -> None:
    """Old drafts ignore what is beside a reference; converters that write the keyword there mean it."""
    schema = of({"$ref": "#/definitions/thing", "nullable": True, "type": "str", "minProperties": 2})
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    coverage = schema_coverage(schema)
    assert [use.pointer for use in coverage.read_as] == ["#/properties/p/nullable"] and coverage.is_sound
    for text in ('{"p":{"a":"x"}}', '{"p":null}'):
        assert accepts(byte_compiler(), schema, text)
    assert validator_of(schema).is_valid({"p": None})


def test_a_strict_tool_is_refused() -> None:
    with pytest.raises(
        UnsupportedSchema, match="'nullable' has no meaning in JSON Schema: is read as: or null"
    ) as refused:
        request_of(byte_compiler(), of(CASES["type"][0]), strict=True)
    assert refused.value.location.endswith("#/properties/p/nullable")


def test_references_into_nullable_schemas_are_moved() -> None:
    """Also where the path has escapes, goes through several such schemas, or begins at an inner resource."""
    inner = {"type": "array", "nullable": True, "items": {"type": "string"}}
    schema = {
        "properties": {
            "a b": {"nullable": True, "properties": {"x/y": inner}},
            "r": {"$ref": "#/properties/a%20b/properties/x~1y/items"},
            "s": {"$id": "urn:s", "nullable": True, "$defs": {"d": inner}, "items": [{"$ref": "#/$defs/d/items"}]},
        }
    }
    made, _ = in_json_schema(schema)
    validator = validator_of(schema)
    assert made["properties"]["r"]["$ref"] == "#/properties/a%20b/anyOf/0/properties/x~1y/anyOf/0/items"
    assert validator.is_valid({"a b": None, "r": "t", "s": None}) and not validator.is_valid({"r": 1})
    assert made["properties"]["s"]["anyOf"][0]["items"][0] == {"$ref": "#/$defs/d/anyOf/0/items"}


def test_data_is_not_read() -> None:
    data = {"type": "STRING", "nullable": True, "exclusiveMinimum": True}
    schema = {"const": data, "default": data, "properties": {"enum": {"enum": [data]}, "nullable": {}}}
    assert in_json_schema(schema) == (schema, {})
    assert read(True).schema is True
