"""Tools, requests and figures of the first-token benchmark; no server is started."""

from typing import Any

from jsonschema import Draft202012Validator

from benchmarks.first_token import body_of, cell, comparable
from benchmarks.servers.harness import ARMS, FREE
from benchmarks.servers.new_tools import extended, renewed
from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from tests.kit.tools import tool
from tests.kit.walks import keys_of

NODE: dict[str, Any] = {
    "type": "object",
    "description": "A node.",
    "properties": {
        "name": {"type": "string", "enum": ["name", "id"]},
        "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"$ref": "#/properties/name"}}}},
    },
    "required": ["name"],
}
TOOL = tool("make", NODE)


def test_renewed_tools_share_no_name_and_accept_the_same_values(small_vocabulary: Vocabulary) -> None:
    (one,), (other,) = renewed([TOOL], 1), renewed([TOOL], 2)
    assert renewed([TOOL], 1) == [one]
    Compiler(small_vocabulary).compile(ToolCallSpec.from_openai({"tools": [one]})).check_all()
    schemas = [tool["function"]["parameters"] for tool in (TOOL, one, other)]
    found = [keys_of(schema) for schema in schemas]
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
    free = body_of(FREE, [TOOL])
    assert free["tool_choice"] == "auto"
    for arm in ARMS:
        assert body_of(arm, [TOOL]) == free | ({} if arm == FREE else {"tool_choice": "required"})


def test_what_an_arm_adds_is_of_the_same_round() -> None:
    free = [(10.0, 1.0), (30.0, 1.0), (20.0, 1.0)]
    own = [(12.0, 9.0), (31.0, 8.0), (26.0, 7.0)]
    assert cell(free, free, 0) == "20"
    assert cell(own, free, 0) == "26; +2 (+1 to +6)"
    assert cell(own, free, 1) == "8; +7 (+6 to +8)"


def test_tools_that_xgrammar_does_not_compile_are_left_out() -> None:
    refused = tool("refused", {"type": "object", "properties": {"a": {"enum": []}}})
    plain = tool("plain", {"type": "object", "properties": {}})
    assert comparable(Vocabulary.of_bytes(), [refused, plain]) == [plain]
