"""Schemas with parts that JSON Schema gives no meaning: they are read as meant, or left out, unless the tool is strict."""

from typing import Any

import pytest

from constrained_k2 import UnsupportedSchema, schema_coverage
from tests.kit.compilers import accepts, byte_compiler
from tests.kit.grammars import request_of

READ: list[tuple[Any, str, tuple[str, ...], tuple[str, ...]]] = [
    ({"type": "float"}, "/type", ("1.5", "2"), ('"a"', "true")),
    ({"type": "INTEGER"}, "/type", ("2",), ("1.5", '"a"')),
    ({"type": "int"}, "/type", ("2",), ("1.5",)),
    ({"type": "str"}, "/type", ('"a"',), ("1",)),
    ({"type": "bool"}, "/type", ("true",), ("1",)),
    ({"type": "list", "items": {"type": "string"}}, "/type", ('["a"]',), ("[1]", '"a"')),
    ({"type": "dict", "additionalProperties": {"type": "null"}}, "/type", ('{"a":null}',), ('{"a":1}', "[]")),
    ({"type": ["string", "None"]}, "/type", ('"a"', "null"), ("1",)),
    ({"type": "any", "maxLength": 1}, "/type", ("1", '"a"', "null", "[]"), ('"ab"',)),
    ("string", "", ('"a"',), ("1",)),
    ({"type": "string", "pattern": r"\A(?P<x>a|b)\Z"}, "/pattern", ('"a"',), ('"ab"', '"ca"')),
    ({"type": "string", "pattern": r"(?i)^straße|[^A-YZ]é$"}, "/pattern", ('"sTRAßE"', '"1É"'), ('"xé"', '"1e"')),
    ({"type": "string", "pattern": "/^[A-C]{2}$/i"}, "/pattern", ('"aC"',), ('"/ac/"', '"abc"', '"ad"')),
    ({"type": "string", "pattern": "/^[0-9]{2}$/"}, "/pattern", ('"12"',), ('"/12/"', '"123"')),
    ({"type": "string", "pattern": r"^(?P<q>['_])a(?P=q)$"}, "/pattern", ("\"'a'\"", '"_a_"'), ('"_a\'"', '"a"')),
    (
        {"patternProperties": {r"\Ax": {"type": "null"}}, "additionalProperties": {"type": "boolean"}},
        "/patternProperties",
        ('{"xy":null,"ax":true}',),
        ('{"xy":true}', '{"ax":null}'),
    ),
]
RELAXED: list[tuple[Any, str, tuple[str, ...], tuple[str, ...]]] = [
    ({"type": "quantity", "minimum": 2}, "/type", ("2", '"a"'), ("1",)),
    ({"type": "string", "enum": None}, "/enum", ('"a"',), ("1",)),
    ({"required": None, "type": "object"}, "/required", ("{}",), ("1",)),
    ({"properties": None, "additionalProperties": False}, "/properties", ("{}", "1"), ('{"a":1}',)),
    ("the name of a city", "", ("1", '"a"'), ()),
    (None, "", ("1", '"a"'), ()),
    ({"anyOf": [], "type": "string"}, "/anyOf", ('"a"',), ("1",)),
    ({"anyOf": ["string", "a unit"]}, "/anyOf/1", ("1",), ()),
    ({"minimum": "3", "maximum": 4}, "/minimum", ("1",), ("5",)),
    ({"type": "string", "minLength": -1, "maxLength": 2}, "/minLength", ('"a"',), ('"abc"',)),
    ({"items": {"minimum": []}, "minItems": 1}, "/items/minimum", ("[1]",), ("[]",)),
    ({"$ref": "https://example.com/s.json", "type": "string"}, "/$ref", ('"a"',), ("1",)),
    ({"$ref": "#/$defs/missing"}, "/$ref", ("1",), ()),
    ({"$ref": "#/properties/p"}, "/$ref", ("1",), ()),
    ({"type": "string", "pattern": "["}, "/pattern", ('"a"',), ("1",)),
    ({"not": {"minimum": "3"}, "type": "number"}, "/not/minimum", ("1", "5"), ('"a"',)),
    ({"oneOf": [{"type": "string"}, {"enum": 7}]}, "/oneOf/1/enum", ("1",), ()),
]


CASES = [*(("read_as", *case) for case in READ), *(("relaxed", *case) for case in RELAXED)]


@pytest.mark.parametrize(
    ("status", "schema", "pointer", "taken", "refused"), CASES, ids=[f"{case[0]} {str(case[1])[:40]}" for case in CASES]
)
def test_what_has_no_meaning_is_read_as_meant_or_left_out(
    status: str, schema: Any, pointer: str, taken: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    tool = {"type": "object", "properties": {"p": schema}, "required": ["p"]}
    coverage = schema_coverage(tool)
    noted = [use.pointer for use in getattr(coverage, status)]
    assert f"#/properties/p{pointer}" in noted and not coverage.refused, coverage
    if status == "read_as":
        assert len(noted) == 1 and not coverage.relaxed
        assert "read as" in coverage.read_as[0].reason
    for value in (*taken, *refused):
        assert accepts(byte_compiler(), tool, f'{{"p":{value}}}') == (value in taken), value
    with pytest.raises(UnsupportedSchema, match="strict") as refusal:
        request_of(byte_compiler(), {"type": "object", "properties": {"p": schema}}, strict=True)
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
