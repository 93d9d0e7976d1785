"""Schema coverage: the status and reason of each keyword occurrence."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from constrained_k2 import InvalidRequest, schema_coverage
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.keywords import ROWS
from constrained_k2.schema.notes import Notes

PATHS = {
    "$defs": {
        "b": {"$id": "b", "$defs": {"x": {"$dynamicAnchor": "x"}}, "properties": {"q": {"$dynamicRef": "#x"}}},
        "c": {"$id": "c", "$defs": {"x": {"$dynamicAnchor": "x"}}},
    },
    "$ref": "b",
}
HUGE = 10**400
EXAMPLES = [example for row in ROWS for example in row.examples.items()]
CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"items": {"type": "string"}, "uniqueItems": True}, "enforced", "#/properties/p/uniqueItems", ""),
    ({"items": {"type": "number", "multipleOf": 0.5}, "uniqueItems": True}, "relaxed", "#/properties/p/uniqueItems", "an item may repeat"),
    ({"pattern": "(a+)\\1"}, "relaxed", "#/properties/p/pattern", "a back-reference to a group of more than"),
    ({"pattern": "(?:a(?!.*b)|bb)*c"}, "relaxed", "#/properties/p/pattern", "lookaround, other than lookahead at the start"),
    ({"pattern": "^(?!b)[ab]"}, "enforced", "#/properties/p/pattern", ""),
    ({"pattern": "(?!b)a"}, "relaxed", "#/properties/p/pattern", "the rest of the pattern is enforced"),
    ({"pattern": "["}, "relaxed", "#/properties/p/pattern", "not a regular expression"),
    ({"$ref": "https://example.com"}, "relaxed", "#/properties/p/$ref", "nothing is fetched"),
    ({"$ref": "#/$defs/missing"}, "relaxed", "#/properties/p/$ref", "points at nothing"),
    ({"anyOf": [{"$ref": "#/properties/p/anyOf/-1"}, {}]}, "relaxed", "#/properties/p/anyOf/0/$ref", "points at nothing"),
    ({"properties": {"a": None}}, "relaxed", "#/properties/p/properties/a", "null"),
    ({"type": "integer"}, "narrowed", "#/properties/p/type", "1.0"),
    ({"minProperties": 2}, "enforced", "#/properties/p/minProperties", ""),
    ({"minProperties": 70}, "relaxed", "#/properties/p/minProperties", "more than 64"),
    ({"patternProperties": {"^[a-z]+$": {}}, "additionalProperties": False, "minProperties": 2},
     "enforced", "#/properties/p/minProperties", ""),
    ({"patternProperties": {"^[ab]{1,9}$": {}}, "additionalProperties": False, "minProperties": 2},
     "relaxed", "#/properties/p/minProperties", "only finitely many"),
    ({"patternProperties": {"^(?:a|b.*)$": {}}, "additionalProperties": False, "minProperties": 2},
     "relaxed", "#/properties/p/minProperties", "only finitely many"),
    ({"patternProperties": {"^a": {}, "^b": {}}, "additionalProperties": False, "minProperties": 2, "maxProperties": 4},
     "enforced", "#/properties/p/minProperties", ""),
    ({"patternProperties": {"^a": {}, "b$": {}}, "additionalProperties": False, "minProperties": 2},
     "relaxed", "#/properties/p/minProperties", "only finitely many"),
    ({"propertyNames": {"enum": ["a", "b", "c"]}, "minProperties": 2}, "enforced", "#/properties/p/minProperties", ""),
    ({"multipleOf": 1e-9}, "enforced", "#/properties/p/multipleOf", ""),
    ({"multipleOf": 123457}, "relaxed", "#/properties/p/multipleOf", "more than"),
    ({"required": [f"k{n}" for n in range(70)]}, "narrowed", "#/properties/p/required", "6 of the keys come first, in the schema's order"),
    ({"contains": {"const": 1}, "maxContains": 1, "maxItems": 3}, "enforced", "#/properties/p/contains", ""),
    ({"contains": {"const": 1}, "maxContains": 40, "maxItems": 90}, "relaxed", "#/properties/p/contains", "needs too many states"),
    ({"not": {"additionalProperties": False}}, "enforced", "#/properties/p/not/additionalProperties", ""),
    ({"format": "unheard-of"}, "enforced", "#/properties/p/format", ""),
    (PATHS, "relaxed", "#/properties/p/$defs/b/properties/q/$dynamicRef", "path"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "status", "pointer", "reason"), CASES, ids=[str(case[0])[:40] for case in CASES])
def test_statuses_and_reasons(schema: dict[str, Any], status: str, pointer: str, reason: str) -> None:
    coverage = schema_coverage({"type": "object", "properties": {"p": schema}})
    found = {use.pointer: use.reason for use in coverage.by_status()[status]}  # type: ignore[index]
    assert pointer in found, coverage
    assert reason in found[pointer]


@pytest.mark.parametrize(
    "schema", [{"minimum": HUGE}, {"multipleOf": HUGE}, {"default": {"maximum": HUGE}, "multipleOf": 0.07}]
)
@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_an_integer_beyond_doubles_is_no_crash(schema: dict[str, Any], engine: EngineName) -> None:
    assert not schema_coverage({"type": "object", "properties": {"p": schema}}, engine).is_sound


def test_a_multiple_that_the_engine_misreads_is_not_enforced() -> None:
    coverage = schema_coverage({"type": "object", "properties": {"p": {"multipleOf": 0.07}}})
    assert [use.pointer for use in coverage.relaxed] == ["#/properties/p/multipleOf"]  # it computes 0.07 * 10 * 10


PRINT_COVERAGE = (
    "import json, sys; from constrained_k2 import schema_coverage; print(schema_coverage(json.load(sys.stdin)))"
)


def test_the_report_is_the_same_in_every_process() -> None:
    one_of = (
        [{"type": "string"}, {"uniqueItems": True}],
        [{"multipleOf": 2}, {"not": {"format": "date"}}],
        [{"type": "string", "minLength": 1}, {"enum": [[1], 2]}],
    )
    array = {"allOf": [{"contains": {"oneOf": branches}} for branches in one_of], "maxItems": 4}
    schema = json.dumps({"type": "object", "properties": {"a": array}})
    reports = {
        subprocess.run(
            [sys.executable, "-c", PRINT_COVERAGE], input=schema, env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "2")
    }  # fmt: skip
    assert len(reports) == 1


SEVERAL: list[tuple[dict[str, Any], str, list[tuple[str, str]]]] = [
    ({"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "multipleOf": 10}]},
     "oneOf/1/multipleOf", [("narrowed", "1.0 and 1e3"), ("narrowed", "negated: the negation of this")]),
    ({"type": "object", "required": ["a"], "properties": {"a": {}, "b": {}}, "minProperties": 3,
      "patternProperties": {"_id$": {"type": "string", "pattern": "^a$", "minLength": 2}}},
     "minProperties", [("narrowed", "of undeclared keys, one counts")]),
    ({"type": "object", "required": ["a"], "properties": {"a": {}, "b": {}}, "minProperties": 4,
      "patternProperties": {"_id$": {"type": "string", "pattern": "^a$", "minLength": 2}}},
     "minProperties", [("relaxed", "undeclared keys cannot be counted")]),
    # What is noted of a shape holds if the shape is written so.
    ({"items": {"type": "number", "minimum": 0, "maximum": 1}, "uniqueItems": True, "minItems": 200},
     "uniqueItems", [("narrowed", "without an exponent"), ("relaxed", "an item may repeat")]),
    # One keyword bounds two values.
    ({"properties": {"u": {"$ref": "#/$defs/u", "pattern": "(a+)\\1"}, "v": {"$ref": "#/$defs/u"}},
      "$defs": {"u": {"items": {"type": "number"}, "uniqueItems": True}, "v": {}}, "required": ["v"]},
     "$defs/u/uniqueItems", [("narrowed", "without an exponent")]),
    ({"$defs": {"u": {"uniqueItems": True, "minItems": 2}},
      "properties": {"u": {"$ref": "#/$defs/u", "items": {"type": "number"}},
                     "v": {"$ref": "#/$defs/u", "items": {"multipleOf": 0.5, "type": "number"}}}},
     "$defs/u/uniqueItems", [("narrowed", "without an exponent"), ("relaxed", "an item may repeat")]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "pointer", "expected"), SEVERAL, ids=[case[1] for case in SEVERAL])
def test_no_note_replaces_another(schema: dict[str, Any], pointer: str, expected: list[tuple[str, str]]) -> None:
    coverage = schema_coverage({"type": "object", "properties": {"p": schema}}, undeclared_keys="allow")
    uses = [(status, use) for status, found in coverage.by_status().items() for use in found]
    noted = [(status, use.reason) for status, use in uses if use.pointer == f"#/properties/p/{pointer}"]
    assert len(noted) == len(expected), noted
    for (status, reason), (expected_status, part) in zip(noted, expected, strict=True):
        assert status == expected_status and part in reason


def test_reasons_of_one_keyword_are_bounded() -> None:
    notes = Notes(SchemaDocument({}))
    for number in range(50):
        notes.add("#/not", "narrowed", str(number))
    notes.add("#/not", "relaxed", "more than that")
    assert len(notes.found["#/not"]) < 20
    assert ("relaxed", "more than that") in notes.found["#/not"]


@pytest.mark.parametrize("schema", [schema for _, schema in EXAMPLES], ids=[name for name, _ in EXAMPLES])
def test_every_occurrence_is_reported_with_its_pointer(schema: dict[str, Any]) -> None:
    whole = {"type": "object", "properties": {"p": schema}}
    before = json.dumps(whole)
    coverage = schema_coverage(whole)
    assert json.dumps(whole) == before
    uses = [use for found in coverage.by_status().values() for use in found]
    assert len(uses) == len(set(uses))
    pointers = {use.pointer for use in uses}
    assert pointers.isdisjoint(LEFT_OUT)
    assert {use.pointer for use in coverage.enforced}.isdisjoint(use.pointer for use in uses if use.reason)
    for pointer in pointers:
        SchemaDocument(whole).at(pointer)  # raises if nothing is there
    assert {f"#/properties/p/{keyword}" for keyword in schema if not keyword.startswith("$d")} <= {*pointers, *LEFT_OUT}
    assert json.loads(json.dumps(coverage.to_json()))["sound"] is coverage.is_sound


LEFT_OUT = {"#/properties/p/$dynamicAnchor"}


def test_an_unsatisfiable_subschema_is_reported_with_its_pointer() -> None:
    inner = {"type": "object", "properties": {"n": {"minimum": 3, "maximum": 2, "type": "integer"}}, "required": ["n"]}
    coverage = schema_coverage({"type": "object", "properties": {"p": inner}, "required": ["p"]})
    (refused,) = coverage.refused
    assert refused.pointer == "#/properties/p/properties/n"
    assert "no value" in refused.reason


def test_a_schema_that_was_moved_into_a_property_keeps_its_references() -> None:
    moved = {"$defs": {"n": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}
    assert schema_coverage({"type": "object", "properties": {"value": moved}}).is_sound


@pytest.mark.parametrize("schema", [True, None, [], "object"])
def test_non_objects_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest):
        schema_coverage(schema)


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="llguidance"):
        schema_coverage({"type": "object"}, engine="outlines")  # type: ignore[arg-type]
