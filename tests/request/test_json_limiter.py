"""A schema as a forced tool, and the value back from its arguments."""

import json
from typing import Any

import pytest

from constrained_k2 import Compiler, InvalidRequest, JsonLimiter, MalformedCompletion, ToolCallSpec
from tests.kit.turns import call_start, ids_of

MESSAGES = [{"role": "user", "content": "Which city?"}]
OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}}}


def answer(arguments: str, *, name: str = "answer", reason: str = "stop") -> dict[str, Any]:
    call = {"id": "functions.answer:0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"choices": [{"finish_reason": reason, "message": {"content": None, "tool_calls": [call]}}]}


class Answer:
    def model_dump(self) -> dict[str, Any]:
        return answer('{"city": "Oslo"}')


@pytest.mark.parametrize(
    ("schema", "good", "bad", "value"),
    [
        (OBJECT, '{"city": "Oslo"}', '{"value": 1}', {"city": "Oslo"}),
        ({"enum": ["yes", "no"]}, '{"value": "no"}', '{"value": "maybe"}', "no"),
        ({"type": "integer"}, '{"value": 3}', "3", 3),
        (TREE, '{"value": [[], [[]]]}', '{"value": [1]}', [[], [[]]]),
        (True, '{"value": null}', "null", None),
    ],
    ids=["object", "enum", "integer", "recursive", "anything"],
)
def test_a_schema_becomes_a_forced_tool(small_compiler: Compiler, schema: Any, good: str, bad: str, value: Any) -> None:
    limiter = JsonLimiter(schema)
    body = limiter.request(model="kimi-k2", messages=MESSAGES)
    assert body["model"] == "kimi-k2" and body["messages"] == MESSAGES
    spec = ToolCallSpec.from_openai(body)
    assert (spec.choice, spec.max_calls, [tool.name for tool in spec.tools]) == ("required", 1, ["answer"])
    vocabulary, matcher = small_compiler.vocabulary, small_compiler.compile(spec).matcher()
    begin, end = call_start(vocabulary, "answer"), ids_of(vocabulary, "call_end", "section_end", "turn_end")
    assert not matcher.accept_tokens([*begin, *vocabulary.encode(bad), *end])
    assert matcher.accept_tokens([*begin, *vocabulary.encode(good), *end])
    assert limiter.value(answer(good)) == value


def test_the_clients_objects_are_read_too() -> None:
    assert JsonLimiter(OBJECT).value(Answer()) == {"city": "Oslo"}


def test_name_description_and_strictness_are_the_callers() -> None:
    body = JsonLimiter(OBJECT, name="city_of", description="The city.", strict=True).request(messages=MESSAGES)
    assert body["tools"][0]["function"] == {
        "name": "city_of", "description": "The city.", "parameters": OBJECT, "strict": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        answer('{"city": "Os', reason="length"),
        answer('{"city": "Os'),
        answer("{}", name="other"),
        {"choices": [{"finish_reason": "stop", "message": {"content": "Oslo", "tool_calls": None}}]},
        {"choices": [{"finish_reason": "stop", "message": {"content": "Oslo"}}]},
        {"choices": []},
        {"error": {}},
        None,
    ],
)
def test_answers_without_the_value(wrong: Any) -> None:
    with pytest.raises(MalformedCompletion):
        JsonLimiter(OBJECT).value(wrong)
    with pytest.raises(MalformedCompletion):
        JsonLimiter({"type": "integer"}).value(answer(json.dumps({"other": 1})))


def test_bad_use() -> None:
    with pytest.raises(InvalidRequest, match="schema: must be a JSON Schema"):
        JsonLimiter("object")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="is empty"):
        JsonLimiter(OBJECT, name="")
    with pytest.raises(InvalidRequest, match="tools: cannot be combined"):
        JsonLimiter(OBJECT).request(tools=[{}])
