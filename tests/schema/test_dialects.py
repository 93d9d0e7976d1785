"""Schemas of OpenAPI 3.0 and of older drafts: every reader of a schema reads them in one way, and coverage says how.

Parts that JSON Schema gives no meaning are read as meant, or left out, unless the tool is strict.
"""

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
from constrained_k2.schema.fast_path import fast_path_shape
from tests.kit.compilers import accepts, byte_compiler
from tests.kit.data import table
from tests.kit.grammars import request_of

DEFINITIONS = {
    "thing": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    "maybe": {"type": "boolean", "nullable": True},
}
TABLE: dict[str, Any] = table(__file__)
CASES: dict[str, dict[str, Any]] = TABLE["dialects"]
"""Schema of a property; values that it has, and has not; pointers of what is read as something else."""


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": schema}, "definitions": DEFINITIONS, "additionalProperties": False}


def pointers(relative: list[str]) -> list[str]:
    return sorted(f"#{each}" if each.startswith("/") else f"#/properties/p/{each}" for each in relative)


@cache
def compiler_of(engine: EngineName) -> Compiler:
    return Compiler(Vocabulary.of_bytes(), engine=engine, undeclared_keys="allow")


each_case = pytest.mark.parametrize(
    ("schema", "right", "wrong", "read_as"), [tuple(case.values()) for case in CASES.values()], ids=CASES
)


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
def test_the_judge_and_admission(schema: Any, right: list[Any], wrong: list[Any], read_as: list[str]) -> None:
    validator = validator_of(of(schema))
    assert all(validator.is_valid({"p": value}) for value in right)
    assert not any(validator.is_valid({"p": value}) for value in wrong)
    assert set(pointers(read_as)) <= in_json_schema(of(schema))[1].keys()
    assert not read_as or fast_path_shape(json.dumps(of(schema))) is None  # admission compiles it


def test_a_property_of_kimi_k3_may_be_null() -> None:
    compiler = of_format(wire_format=KIMI_K3)
    assert [use.keyword for use in schema_coverage(of(CASES["type"]["schema"]), wire_format=KIMI_K3).read_as] == [
        "nullable"
    ]
    assert request_of(compiler, of(CASES["type"]["schema"])).coverage("f").is_sound


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
        request_of(byte_compiler(), of(CASES["type"]["schema"]), strict=True)
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


WITHOUT_MEANING: list[dict[str, Any]] = TABLE["no meaning"]
"""A property's schema, the status and pointer of its note, values that are taken, and values that are not."""


@pytest.mark.parametrize("case", WITHOUT_MEANING, ids=lambda case: f"{case['status']} {str(case['schema'])[:40]}")
def test_what_has_no_meaning_is_read_as_meant_or_left_out(case: dict[str, Any]) -> None:
    tool = {"type": "object", "properties": {"p": case["schema"]}, "required": ["p"]}
    coverage = schema_coverage(tool)
    noted = [use.pointer for use in getattr(coverage, case["status"])]
    assert f"#/properties/p{case['pointer']}" in noted and not coverage.refused, coverage
    if case["status"] == "read_as":
        assert len(noted) == 1 and not coverage.relaxed
        assert "read as" in coverage.read_as[0].reason
    for kind in ("taken", "refused"):
        for value in case[kind]:
            text = json.dumps({"p": value}, ensure_ascii=False, separators=(",", ":"))
            assert accepts(byte_compiler(), tool, text) == (kind == "taken"), value
    with pytest.raises(UnsupportedSchema, match="strict") as refusal:
        request_of(byte_compiler(), {"type": "object", "properties": {"p": case["schema"]}}, strict=True)
    assert "#/properties/p" in refusal.value.location and refusal.value.remedy


@pytest.mark.parametrize(
    ("root", "status"), [("dict", "read_as"), ("Object", "read_as"), (["any"], "read_as"), ("string", "relaxed"),
                         (None, "relaxed"), ("array", "relaxed"), (["array", "null"], "relaxed")]
)  # fmt: skip
def test_arguments_are_an_object_whatever_the_type_says(root: Any, status: str) -> None:
    schema = {"type": root, "properties": {"a": {"type": "null"}}, "required": ["a"]}
    (use,) = getattr(schema_coverage(schema), status)
    assert use.pointer == "#/type" and (status == "read_as" or "arguments are always an object" in use.reason)
    assert accepts(byte_compiler(), schema, '{"a":null}')
    assert not accepts(byte_compiler(), schema, '{"a":1}')


@pytest.mark.parametrize(
    ("properties", "said", "remedy"),
    [
        ({"p": {"type": "int"}}, "'type' has no meaning in JSON Schema: 'int' is read as 'integer'", "is read as"),
        ({"p": "int"}, "'p' has no meaning in JSON Schema: the text 'int' is read as the type 'integer'", "is read as"),
        ({"p": {"type": "int", "enum": 7}}, "'enum' cannot be enforced: is not an array (and 1 more)", "Rewrite it"),
        ({"p": {"type": "nope"}, "q": {"minimum": "3"}}, "unknown type 'nope': use null, boolean, ", "Rewrite it"),
        ({"p": {"$ref": "https://example.com/schema"}}, "example.com", ""),
        ({"p": {"type": "string", "pattern": "("}}, "regular expression", ""),
    ],
)
def test_the_refusal_of_a_strict_tool_says_what_to_do(properties: Any, said: str, remedy: str) -> None:
    with pytest.raises(UnsupportedSchema) as refused:
        request_of(byte_compiler(), {"type": "object", "properties": properties}, strict=True)
    assert said in refused.value.problem and remedy in refused.value.remedy
    assert str(refused.value).startswith("tools[name='f'].function.parameters#/properties/p")
