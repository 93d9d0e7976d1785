"""Declined calls and limits of calls on real servers.

A random model means none of its calls, so each is declined at its name.
"""

import json
from typing import Any

import pytest

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.vllm_plugin.start.apply import vllm_version
from tests.kit.servers import RUST, on
from tests.kit.tools import tool
from tests.vllm_plugin.asking import (
    CHAT,
    MESSAGES,
    WEATHER,
    chat_choices,
    claude,
    events,
    only_choice,
    post,
    respond,
    said,
    settled,
)

pytestmark = pytest.mark.server

DECLINE = {"constrained_k2_undeclared_calls": "decline"}
PUSH = 100.0  # of OpenAI's logit_bias


def scripts(vocabulary: Vocabulary) -> dict[str, list[int]]:
    """The turn up to a call's name, where the script ends."""
    markers = vocabulary.format
    opening = [markers.section_begin, markers.call_begin]
    return {"alone": opening, "behind text": [*vocabulary.encode("Hi"), *opening]}


def ask(server: VllmServer, script: list[int], **fields: Any) -> Any:
    """The only choice of a chat, or the chunks of its stream."""
    xargs = {"script": script} | fields.pop("vllm_xargs", DECLINE)
    body: dict[str, Any] = {"messages": MESSAGES, "tools": [WEATHER], "max_tokens": 60, "return_token_ids": True}
    body |= fields
    if body.get("stream"):
        return [event["choices"][0] for event in events(post(server, CHAT, vllm_xargs=xargs, **body))]
    return only_choice(server, vllm_xargs=xargs, **body)


@pytest.mark.parametrize("place", ["alone", "behind text"])
def test_neither_a_call_nor_a_marker_is_shown(server: VllmServer, vocabulary: Vocabulary, place: str) -> None:
    """Whole and streamed, the answer ends as one without a call; the next turn is served."""
    script, markers = scripts(vocabulary)[place], vocabulary.format
    text = "Hi" if place == "behind text" else ""
    choice = ask(server, script)
    assert choice["token_ids"] == [*script, markers.section_end, choice["token_ids"][-1]]
    assert choice["token_ids"][-1] in markers.stop_ids
    assert choice["finish_reason"] == "stop"
    assert not choice["message"].get("tool_calls") and choice["message"]["content"] == text
    assert choice["constrained_k2"] == {"declined_call": ""}
    chunks = ask(server, script, stream=True)
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == text
    assert not any(chunk["delta"].get("tool_calls") for chunk in chunks)
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]
    told = [chunk["constrained_k2"] for chunk in chunks if "constrained_k2" in chunk]
    assert told == ([{"declined_call": ""}] if vllm_version().startswith("0.32") else [])  # see ``add_diagnostics``
    message = {"role": "assistant", "content": choice["message"]["content"]}
    assert ask(server, script, messages=[*MESSAGES, message, *MESSAGES])["finish_reason"] == "stop"


def test_what_must_be_called_is_called_and_counted(server: VllmServer, vocabulary: Vocabulary) -> None:
    before, calls = settled(server), 0
    xargs = DECLINE | {"constrained_k2_finish_reserve": 300}
    required: dict[str, Any] = {"tool_choice": "required", "max_tokens": 400, "vllm_xargs": xargs}
    for number in range(2):
        choice = ask(server, [], seed=number, **required)
        assert choice["finish_reason"] == "tool_calls"
        assert {call["function"]["name"] for call in choice["message"]["tool_calls"]} == {"get_weather"}
        calls += len(choice["message"]["tool_calls"])
    ask(server, scripts(vocabulary)["alone"])
    after = settled(server, before)
    assert (after("unmeant_calls_total"), after("declined_calls_total")) == (calls, 1)


def test_diagnostics_beside_a_declined_call(server: VllmServer, vocabulary: Vocabulary) -> None:
    xargs = DECLINE | {"constrained_k2_diagnostics": "on"}
    found = ask(server, scripts(vocabulary)["alone"], vllm_xargs=xargs)["constrained_k2"]
    assert found["declined_call"] == "" and found["tool_choice"] == "auto"


def test_every_endpoint(server: VllmServer, vocabulary: Vocabulary) -> None:
    script = scripts(vocabulary)["behind text"]
    extra: dict[str, Any] = {"vllm_xargs": DECLINE | {"script": script}}
    response = respond(server, input="Hi?", tools=[{"type": "function", **WEATHER["function"]}], **extra)
    assert (response["status"], said(response)) == ("completed", "Hi")
    assert {item["type"] for item in response["output"]} == {"message"}
    several = chat_choices(server, tools=[WEATHER], n=2, max_tokens=60, **extra)
    assert [(seen.reason, seen.content) for seen in several] == [("stop", "Hi")] * 2


@on(
    *(f"{RUST}tag_structured_output", "python_tag_logits_processor"),
    only_all=(f"{RUST}tag_logits_processor", "python_tag_structured_output"),
)
def test_other_parsers_keep_the_nearest_name(server: VllmServer, vocabulary: Vocabulary) -> None:
    """vLLM's parsers of Kimi K2 take the section's end for the name of a call, or show it: nothing is declined there."""
    fields: Any = {"logit_bias": {str(vocabulary.format.section_begin): PUSH}, "tool_choice": "auto", "seed": 1}
    xargs = DECLINE | {"constrained_k2_finish_reserve": 300}
    choice = ask(server, [], max_tokens=400, vllm_xargs=xargs, **fields)
    assert choice["message"]["tool_calls"][0]["function"]["name"].endswith("get_weather")
    assert choice["finish_reason"] == "tool_calls"


COUNT = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
COUNTING: dict[str, Any] = {"tools": [tool("count", COUNT)], "tool_choice": "required"}
FORBID = {"constrained_k2_repeated_calls": "forbid"}


def counting(vocabulary: Vocabulary, *values: int) -> list[int]:
    """The turn up to the end of the last call's arguments."""
    calls = [ToolCall("count", index, json.dumps({"n": value})) for index, value in enumerate(values)]
    return list(render_tool_calls(calls, vocabulary)[:-2])


def test_a_repeated_call_is_not_made(server: VllmServer, vocabulary: Vocabulary) -> None:
    fields = COUNTING | {"max_tokens": 300, "vllm_xargs": FORBID}
    script = counting(vocabulary, 1, 2, 1)
    choice = ask(server, script, **fields)
    made = [json.loads(call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    assert made == [{"n": 1}, {"n": 2}] and choice["finish_reason"] == "tool_calls"
    assert choice["constrained_k2"] == {"declined_call": "count"}
    chunks = ask(server, script, **fields, stream=True)
    parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls") or ()]
    assert {part["index"] for part in parts} == {0, 1}
    assert [json.loads(part["function"]["arguments"]) for part in parts] == made


def test_a_turn_ends_after_its_last_call(server: VllmServer, vocabulary: Vocabulary) -> None:
    xargs = {"constrained_k2_max_calls": 3}
    choice = ask(server, counting(vocabulary, 1, 1, 1), **COUNTING, max_tokens=300, vllm_xargs=xargs)
    assert len(choice["message"]["tool_calls"]) == 3 and choice["finish_reason"] == "tool_calls"
    bias = {str(vocabulary.format.call_begin): PUSH}
    body = {"prompt": "Hi", "max_tokens": 600, "logit_bias": bias, "return_token_ids": True}
    constraint = {"constrained_k2": json.dumps(COUNTING | {"max_calls": 3})}
    choice = only_choice(server, "/v1/completions", **body, vllm_xargs=constraint)
    assert choice["token_ids"].count(vocabulary.format.call_begin) == 3


def test_the_messages_endpoint_takes_both_limits(server: VllmServer, vocabulary: Vocabulary) -> None:
    xargs = FORBID | {"constrained_k2_max_calls": 5, "script": counting(vocabulary, 1, 1)}
    tools = [{"name": "count", "input_schema": COUNT}]
    seen = claude(server, max_tokens=300, tool_choice={"type": "any"}, tools=tools, vllm_xargs=xargs)
    assert [json.loads(arguments) for _, _, arguments in seen.calls] == [{"n": 1}]
