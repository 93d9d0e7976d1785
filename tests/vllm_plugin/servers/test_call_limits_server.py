"""``constrained_k2_max_calls`` and ``constrained_k2_repeated_calls`` on real servers."""

import json
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.evaluation.server import VllmServer
from tests.kit.tools import tool
from tests.vllm_plugin.asking import MESSAGES, claude, events, post
from tests.vllm_plugin.servers.answers import only_choice

pytestmark = pytest.mark.server

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
TOOL = tool("count", SCHEMA)
FORBID = {"constrained_k2_repeated_calls": "forbid"}


def script(vocabulary: Vocabulary, *values: int) -> list[int]:
    """The turn up to the end of the last call's arguments."""
    calls = [ToolCall("count", index, json.dumps({"n": value})) for index, value in enumerate(values)]
    return list(render_tool_calls(calls, vocabulary)[:-2])


def ask(server: VllmServer, xargs: dict[str, Any], **fields: Any) -> httpx.Response:
    given = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 300, "vllm_xargs": xargs}
    answer = post(server, "/v1/chat/completions", **given | fields)
    assert answer.status_code == 200 or "error" in answer.json(), answer.text
    return answer


def test_a_repeated_call_is_not_made(server: VllmServer, vocabulary: Vocabulary) -> None:
    xargs = FORBID | {"script": script(vocabulary, 1, 2, 1)}
    (choice,) = ask(server, xargs).json()["choices"]
    made = [json.loads(call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    assert made == [{"n": 1}, {"n": 2}] and choice["finish_reason"] == "tool_calls"
    assert choice["constrained_k2"] == {"declined_call": "count"}
    chunks = events(ask(server, xargs, stream=True))
    parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls") or ()]
    assert {part["index"] for part in parts} == {0, 1}
    assert [json.loads(part["function"]["arguments"]) for part in parts] == made


def test_a_turn_ends_after_its_last_call(server: VllmServer, vocabulary: Vocabulary) -> None:
    xargs = {"constrained_k2_max_calls": 3, "script": script(vocabulary, 1, 1, 1)}
    (choice,) = ask(server, xargs).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 3 and choice["finish_reason"] == "tool_calls"
    bias = {str(vocabulary.format.call_begin): 100.0}
    spec = {"tools": [TOOL], "tool_choice": "required", "max_calls": 3}
    body = {"prompt": "Hi", "max_tokens": 600, "logit_bias": bias, "return_token_ids": True}
    choice = only_choice(server, "/v1/completions", **body, vllm_xargs={"constrained_k2": json.dumps(spec)})
    assert choice["token_ids"].count(vocabulary.format.call_begin) == 3


@pytest.mark.parametrize("field", ["max_calls", "repeated_calls"])
def test_wrong_values_are_named(server: VllmServer, field: str) -> None:
    answer = ask(server, {f"constrained_k2_{field}": "x"})
    assert answer.status_code == 400 and f"vllm_xargs.constrained_k2_{field}" in answer.json()["error"]["message"]


def test_the_messages_endpoint_takes_both(server: VllmServer, vocabulary: Vocabulary) -> None:
    xargs = FORBID | {"constrained_k2_max_calls": 5, "script": script(vocabulary, 1, 1)}
    tools = [{"name": "count", "input_schema": SCHEMA}]
    seen = claude(server, max_tokens=300, tool_choice={"type": "any"}, tools=tools, vllm_xargs=xargs)
    assert [json.loads(arguments) for _, _, arguments in seen.calls] == [{"n": 1}]
