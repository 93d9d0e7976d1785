"""Endpoints of real servers of a random Kimi K3 model: with this package's tool parser, and with vLLM's own."""

import json
from typing import Any

import jsonschema
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, Vocabulary, parse_completion
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts.xtml import render_turn
from tests.kit.k3_turns import Turn, read
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import MESSAGES, WEATHER, Call, claude
from tests.vllm_plugin.servers.answers import CHAT, answered, only_choice

pytestmark = pytest.mark.server

PING = tool("ping", {"type": "object", "additionalProperties": False})
TOOLS = [WEATHER, PING]
SCHEMAS = {made["function"]["name"]: made["function"]["parameters"] for made in TOOLS}
NAMED = {"type": "function", "function": {"name": "ping"}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"], "properties": {
    "a": {"enum": [1, 2]}}, "additionalProperties": False}}}  # fmt: skip
HISTORY = [*MESSAGES, calls(call("x", "ping", "{}")) | {"content": ""}, result("x", "<|open|>pong")]
BODY: dict[str, Any] = {
    "messages": MESSAGES, "tools": TOOLS, "max_tokens": 1200, "temperature": 1.0, "seed": 1,
    "thinking_token_budget": 8, "vllm_xargs": {"constrained_k2_finish_reserve": 900},
}  # fmt: skip
SPOKEN = [ToolCall("get_weather", 1, '{"city": "Oslo <|close|>", "days": 3}'), ToolCall("ping", 2, "{}")]


ours, vllms = on("kimi_k3_structured_output"), on("kimi_k3_adopted")


def checked(ids: list[int], vocabulary: Vocabulary, *, thinks: bool = True) -> Turn:
    """A whole turn, whose calls are valid and numbered from one."""
    end = ids.index(vocabulary.format.turn_end) + 1
    turn = read(ids[:end], vocabulary, in_reasoning=thinks)
    for number, (name, index, arguments) in enumerate(turn.calls, 1):
        values = {key: raw.decode() if kind == "string" else json.loads(raw) for key, kind, raw in arguments}
        assert index == number and len(values) == len(arguments)
        jsonschema.validate(values, SCHEMAS[name])
    return turn


# With this package's tool parser


def decoded(calls: list[Call]) -> list[tuple[str, str, Any]]:
    """Calls with their arguments as JSON values."""
    return [(call_id, name, json.loads(arguments)) for call_id, name, arguments in calls]


@ours
@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_messages(server: VllmServer, k3_vocabulary: Vocabulary, stream: bool) -> None:
    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    script = render_turn(SPOKEN, k3_vocabulary, response="So", reasoning="Hm.")
    seen = claude(server, stream=stream, max_tokens=400, tools=tools, vllm_xargs={"script": script})
    made = [(f"functions.{call.name}:{at}", call.name, json.loads(call.arguments)) for at, call in enumerate(SPOKEN)]
    assert (seen.reasoning, seen.content, decoded(seen.calls)) == ("Hm.", "So", made)
    wrong = render_turn([ToolCall("ping", 4, '{"a": 1}')], k3_vocabulary, response="So", reasoning="Hm.")
    named: dict[str, Any] = {"tool_choice": {"type": "tool", "name": "ping"}, "vllm_xargs": {"script": wrong}}
    seen = claude(server, stream=stream, max_tokens=400, tools=tools, **named)
    assert (seen.reasoning, seen.content, decoded(seen.calls)) == ("Hm.", "", [("functions.ping:0", "ping", {})])


REQUESTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "required": {"tool_choice": "required"},
    "one function": {"tool_choice": NAMED},
    "no calls": {"tool_choice": "none", "max_tokens": 60},
    "one call": {"tool_choice": "required", "parallel_tool_calls": False},
    "without thinking": {"tool_choice": "required", "chat_template_kwargs": {"thinking": False}},
    "history": {"messages": HISTORY, "tool_choice": "required"},
    "a form": {"response_format": FORM},
    "a form, no calls": {"response_format": FORM, "tool_choice": "none"},
    "cut": {"tool_choice": "required", "max_tokens": 40, "vllm_xargs": {}},
    "off": {"vllm_xargs": {"constrained_k2": "off"}, "thinking_token_budget": None, "max_tokens": 60},
}


@ours
@pytest.mark.parametrize("name", [*REQUESTS, "no tools", "script"])
def test_a_split_request_is_constrained_as_by_one_server(
    server: VllmServer, k3_vocabulary: Vocabulary, name: str
) -> None:
    body = BODY | REQUESTS.get(name, {})
    if name == "no tools":
        body = {key: value for key, value in body.items() if key != "tools"} | {"max_tokens": 60}
    if name == "script":
        script = render_turn(SPOKEN, k3_vocabulary, response="So", reasoning="Hm.")
        body |= {"vllm_xargs": {"script": script}, "thinking_token_budget": None}
    whole = answered(server, CHAT, **body, return_token_ids=True)
    generated = answered(server, "/inference/v1/generate", **answered(server, f"{CHAT}/render", **body))
    ids = [choice["token_ids"] for choice in generated["choices"]]
    assert ids == [choice["token_ids"] for choice in whole["choices"]]
    if name not in {"no calls", "no tools", "cut", "off"}:
        turn = checked(ids[0], k3_vocabulary, thinks=name != "without thinking")
        ids_of_calls = [made["id"] for made in whole["choices"][0]["message"].get("tool_calls", [])]
        first = 1 if name == "history" else 0
        assert ids_of_calls == [f"functions.{made[0]}:{at}" for at, made in enumerate(turn.calls, first)]
        assert turn.calls or "form" in name or name == "auto"


@ours
def test_the_other_endpoints_that_render(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    weather = WEATHER["function"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses/render": {"input": "go", "tools": [{"type": "function", **weather}], "tool_choice": "required",
                                 "max_output_tokens": 1200},
        "/v1/messages/render": {"messages": MESSAGES, "max_tokens": 1200, "tool_choice": {"type": "any"},
                                "tools": [{"name": weather["name"], "input_schema": weather["parameters"]}]},
        "/v1/completions/render": {"prompt": "Go.", "max_tokens": 1200, "vllm_xargs": {
            "constrained_k2": json.dumps({"tools": [WEATHER], "tool_choice": "required"})}},
    }  # fmt: skip
    reserve = {"constrained_k2_finish_reserve": 1100}
    for path, body in bodies.items():
        given = {"temperature": 1.0, "seed": 1} | body | {"vllm_xargs": body.get("vllm_xargs", {}) | reserve}
        rendered = answered(server, path, **given)
        (rendered,) = rendered if isinstance(rendered, list) else [rendered]
        generated = answered(server, "/inference/v1/generate", **rendered)
        thinks = k3_vocabulary.opens_reasoning(rendered["token_ids"])
        assert thinks == ("completions" not in path)
        turn = checked(generated["choices"][0]["token_ids"], k3_vocabulary, thinks=thinks)
        assert turn.calls and not turn.text, path


@ours
def test_completions(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    spec = json.dumps({"tools": TOOLS, "tool_choice": "required", "first_index": 3})
    xargs = {"constrained_k2": spec, "constrained_k2_finish_reserve": 1000}
    body = {"prompt": "hi", "max_tokens": 1200, "seed": 2, "return_token_ids": True, "vllm_xargs": xargs}
    choice = only_choice(server, "/v1/completions", **body)
    turn = checked(choice["token_ids"], k3_vocabulary, thinks=False)
    assert turn.calls and choice["finish_reason"] == "stop"


# With vLLM's own tool parser: the engine core adopts the requests


def ids_of(server: VllmServer, **fields: Any) -> list[int]:
    ids: list[int] = only_choice(server, **BODY | {"return_token_ids": True} | fields)["token_ids"]
    return ids


@vllms
@pytest.mark.parametrize("name", ["auto", "required", "one function", "one call", "without thinking", "history"])
def test_adopted_requests_write_valid_calls(server: VllmServer, k3_vocabulary: Vocabulary, name: str) -> None:
    for seed in range(3):
        turn = checked(ids_of(server, **REQUESTS[name], seed=seed), k3_vocabulary, thinks=name != "without thinking")
        assert name == "auto" or (turn.calls and not turn.text)
        if name == "one function":
            assert {call[0] for call in turn.calls} == {"ping"}
        if name == "one call":
            assert len(turn.calls) == 1


@vllms
def test_adopted_requests_in_a_form_and_without_calls(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    turn = checked(ids_of(server, response_format=FORM), k3_vocabulary)
    assert turn.calls or json.loads(turn.text) in ({"a": 1}, {"a": 2})
    ids = ids_of(server, tool_choice="none", max_tokens=80)
    assert not parse_completion(ids, k3_vocabulary, level="tolerant", in_reasoning=True).tool_calls
    log = server.log_text()
    assert "is left to vLLM" not in log and "adopt prompt" in log
