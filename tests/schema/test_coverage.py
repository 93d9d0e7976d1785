"""Schema coverage: the status and reason of each keyword occurrence."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from constrained_k2 import InvalidRequest, schema_coverage
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.coverage import Status
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.keywords import ROWS
from constrained_k2.schema.notes import Notes
from tests.kit.data import table

HUGE = 10**400
EXAMPLES = [example for row in ROWS for example in row.examples.items()]
TABLE: dict[str, Any] = table(__file__)


@pytest.mark.parametrize(
    ("schema", "status", "pointer", "reason"), TABLE["one"], ids=[str(case[0])[:40] for case in TABLE["one"]]
)
def test_statuses_and_reasons(schema: dict[str, Any], status: Status, pointer: str, reason: str) -> None:
    """The pointer is relative to the property's schema, and the reason is a part of the one in the report."""
    coverage = schema_coverage({"type": "object", "properties": {"p": schema}})
    found = {use.pointer: use.reason for use in coverage.by_status()[status]}
    assert reason in found[f"#/properties/p/{pointer}"], coverage
    assert status != "relaxed" or len(found) == 1 + ("contains" in schema)  # maxContains has the same reason


@pytest.mark.parametrize(
    "schema", [{"minimum": HUGE}, {"multipleOf": HUGE}, {"default": {"maximum": HUGE}, "multipleOf": 0.07}]
)
@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_an_integer_beyond_doubles_is_no_crash(schema: dict[str, Any], engine: EngineName) -> None:
    assert not schema_coverage({"type": "object", "properties": {"p": schema}}, engine).is_sound


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


@pytest.mark.parametrize(
    ("schema", "pointer", "expected"), TABLE["several"], ids=[case[1] for case in TABLE["several"]]
)
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
