"""The response format, from every field that can name one."""

from typing import Any

import pytest

from constrained_k2 import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, ToolCallSpec
from constrained_k2.request.answer_format import AnswerFormat
from constrained_k2.request.tools import Limits
from tests.kit.data import table
from tests.kit.tools import tool

TOOL = tool("f")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'


def spec_of(**fields: Any) -> ToolCallSpec:
    return ToolCallSpec.from_openai({"tools": [TOOL]} | fields)


def schema_format(**json_schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


FORMS = [
    (schema_format(name="x", schema=SCHEMA), "json", TEXT, None),
    (schema_format(schema=SCHEMA, strict=True), "json", TEXT, True),
    (schema_format(schema={}), "json", "{}", None),
    ({"response_format": {"type": "json_object"}}, "json", '{"type":"object"}', None),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": False}}}, "json", TEXT, False),
    ({"structured_outputs": {"json": SCHEMA}}, "json", TEXT, None),
    ({"structured_outputs": {"json": TEXT}}, "json", TEXT, None),
    ({"structured_outputs": {"json": True}}, "json", "{}", None),
    ({"structured_outputs": {"json_object": True, "regex": None}}, "json", '{"type":"object"}', None),
    ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", None),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"', None),
    ({"structured_outputs": {"choice": ["a", "ä\n", "a", "\x7f"]}}, "lark",
     'start: CHOICE\nCHOICE: "a" | "ä\\n" | "\\u007f"', None),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "text", "strict"), FORMS)
def test_forms_are_read_and_written(fields: Any, kind: str, text: str, strict: bool | None) -> None:
    spec = spec_of(**fields)
    assert spec.answer is not None
    assert (spec.answer.kind, spec.answer.text, spec.answer.strict) == (kind, text, strict)
    assert ToolCallSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": None}, {"response_format": {"type": "text"}}, {"text": {"format": {"type": "text"}}},
     {"text": {"verbosity": "low"}}, {"structured_outputs": {"regex": None}}],
)  # fmt: skip
def test_free_text(fields: Any) -> None:
    assert spec_of(**fields).answer is None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_required_call_leaves_no_answer(choice: Any) -> None:
    assert spec_of(response_format={"type": "json_object"}, tool_choice=choice).answer is None


@pytest.mark.parametrize(("fields", "location"), table(__file__))
def test_errors_name_the_field(fields: Any, location: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        spec_of(**fields)
    assert refused.value.location == location


def test_a_long_form_is_refused() -> None:
    with pytest.raises(SchemaTooCostly, match="over the limit of 100"):
        ToolCallSpec.from_openai({"structured_outputs": {"regex": "a" * 200}}, limits=Limits(tools_bytes=100))


@pytest.mark.parametrize("name", [5, None, ("a",)])
def test_odd_names_of_forms(name: Any) -> None:
    with pytest.raises(ConstrainedK2Error):
        spec_of(structured_outputs={name: "a"})


def test_the_location_is_not_part_of_the_constraint() -> None:
    assert AnswerFormat("regex", "a", location="here") == AnswerFormat("regex", "a", location="there")
