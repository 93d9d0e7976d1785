"""Tools, requests and figures of the first-token benchmark; no server is started."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from benchmarks.first_token.__main__ import comparable, table
from benchmarks.first_token.run import Row, Sample, body_of
from benchmarks.first_token.servers import ARMS, FREE, SERVERS
from benchmarks.servers.new_tools import extended, renewed
from constrained_k2 import Compiler, ToolCallSpec, Vocabulary

NODE: dict[str, Any] = {
    "type": "object",
    "description": "A node.",
    "properties": {
        "name": {"type": "string", "enum": ["name", "id"]},
        "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"$ref": "#/properties/name"}}}},
    },
    "required": ["name"],
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "make", "parameters": NODE}}


def properties(schema: object) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(properties, schema))
    if not isinstance(schema, dict):
        return set()
    own = schema.get("properties", {})
    return set(own).union(*map(properties, schema.values())) if isinstance(own, dict) else set()


def test_renewed_tools_share_no_name_and_accept_the_same_values() -> None:
    (one,), (other,) = renewed([TOOL], 1), renewed([TOOL], 2)
    assert renewed([TOOL], 1) == [one]
    schemas = [tool["function"]["parameters"] for tool in (TOOL, one, other)]
    found = [properties(schema) for schema in schemas]
    assert not (found[0] & found[1] or found[0] & found[2] or found[1] & found[2])
    assert one["function"]["name"] != other["function"]["name"]
    name, parts = schemas[1]["properties"]
    inner = schemas[1]["properties"][parts]["items"]["properties"]
    assert list(inner) == [name]
    validator = Draft202012Validator(schemas[1])
    assert validator.is_valid({name: "id", parts: [{name: "name"}]})
    assert not validator.is_valid({name: "id", parts: [{name: "else"}]})
    assert not validator.is_valid({})


def test_extended_tools_take_what_the_given_ones_take() -> None:
    (one,), (other,) = extended([TOOL], 1), extended([TOOL], 2)
    assert one != other
    parameters = one["function"]["parameters"]
    assert parameters["required"] == ["name"]
    assert parameters["properties"].items() > NODE["properties"].items()


def test_arms_are_asked_the_same_but_for_their_constraint() -> None:
    free = body_of(ARMS[0], [TOOL])
    assert ARMS[0].name == FREE and free["tool_choice"] == "auto"
    for arm in ARMS[1:]:
        assert arm.server in SERVERS and arm.is_constrained
        assert body_of(arm, [TOOL]) == free | {"tool_choice": "required"}


def test_all_renewed_tools_compile(small_vocabulary: Vocabulary) -> None:
    spec = ToolCallSpec.from_openai({"tools": renewed([TOOL], 3)})
    Compiler(small_vocabulary).compile(spec).check_all()


def test_what_an_arm_adds_is_of_the_same_round() -> None:
    free = (Sample(10, 1), Sample(30, 1), Sample(20, 1))
    own = (Sample(12, 9), Sample(31, 8), Sample(26, 7))
    row = Row(ARMS[1], 16, own, free)
    assert row.median("first") == 26
    assert row.added("first") == pytest.approx((2, 1, 6))
    shown = table([Row(ARMS[0], 16, free, free), row], "first")
    assert list(shown.columns[1].cells) == ["20", "26; +2 (+1 to +6)"]


def test_tools_that_xgrammar_does_not_compile_are_left_out() -> None:
    parameters = {"type": "object", "properties": {"a": {"enum": []}}}
    refused = {"type": "function", "function": {"name": "refused", "parameters": parameters}}
    plain = {"type": "function", "function": {"name": "plain", "parameters": {"type": "object", "properties": {}}}}
    assert comparable(Vocabulary.of_bytes(), [refused, plain]) == (plain,)
