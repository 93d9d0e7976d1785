"""Declined calls on real servers: a random model means none of its calls, so each is declined at its name."""

from time import monotonic, sleep
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters, total
from constrained_k2.vllm_plugin.start.apply import vllm_version
from tests.kit.servers import RUST, on
from tests.vllm_plugin.asking import MESSAGES, WEATHER, chat_choices, events, post, respond
from tests.vllm_plugin.servers.answers import said

pytestmark = pytest.mark.server

DECLINE = {"constrained_k2_undeclared_calls": "decline"}
PUSH = 100.0  # of OpenAI's logit_bias


def scripts(vocabulary: Vocabulary) -> dict[str, list[int]]:
    """The turn up to a call's name, where the script ends."""
    markers = vocabulary.format
    opening = [markers.section_begin, markers.call_begin]
    return {"alone": opening, "behind text": [*vocabulary.encode("Hi"), *opening]}


def shown(answer: httpx.Response) -> Any:
    """The only choice of an answer."""
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice


def ask(server: VllmServer, vocabulary: Vocabulary, script: list[int], **fields: Any) -> httpx.Response:
    xargs = DECLINE | {"script": script}
    body = {"messages": MESSAGES, "tools": [WEATHER], "max_tokens": 60, "return_token_ids": True, "vllm_xargs": xargs}
    return post(server, "/v1/chat/completions", **body | fields)


@pytest.mark.parametrize("place", ["alone", "behind text"])
def test_neither_a_call_nor_a_marker_is_shown(server: VllmServer, vocabulary: Vocabulary, place: str) -> None:
    """Whole and streamed, the answer ends as one without a call; the next turn is served."""
    script, markers = scripts(vocabulary)[place], vocabulary.format
    text = "Hi" if place == "behind text" else ""
    choice = shown(ask(server, vocabulary, script))
    assert choice["token_ids"] == [*script, markers.section_end, choice["token_ids"][-1]]
    assert choice["token_ids"][-1] in markers.stop_ids
    assert choice["finish_reason"] == "stop"
    assert not choice["message"].get("tool_calls") and choice["message"]["content"] == text
    assert choice["constrained_k2"] == {"declined_call": ""}
    chunks = [event["choices"][0] for event in events(ask(server, vocabulary, script, stream=True))]
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == text
    assert not any(chunk["delta"].get("tool_calls") for chunk in chunks)
    assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == ["stop"]
    told = [chunk["constrained_k2"] for chunk in chunks if "constrained_k2" in chunk]
    assert told == ([{"declined_call": ""}] if vllm_version().startswith("0.32") else [])  # see ``add_diagnostics``
    message = {"role": "assistant", "content": choice["message"]["content"]}
    after = ask(server, vocabulary, script, messages=[*MESSAGES, message, *MESSAGES])
    assert shown(after)["finish_reason"] == "stop"


def test_what_must_be_called_is_called_and_counted(server: VllmServer, vocabulary: Vocabulary) -> None:
    def counts() -> dict[str, float]:
        counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=60).text)
        return {name: total(counters, f"constrained_k2_{name}_total") for name in ("declined_calls", "unmeant_calls")}

    before, calls = counts(), 0
    xargs = DECLINE | {"constrained_k2_finish_reserve": 300}
    required: dict[str, Any] = {"tool_choice": "required", "max_tokens": 400, "vllm_xargs": xargs}
    for number in range(2):
        choice = shown(ask(server, vocabulary, [], seed=number, **required))
        assert choice["finish_reason"] == "tool_calls"
        assert {call["function"]["name"] for call in choice["message"]["tool_calls"]} == {"get_weather"}
        calls += len(choice["message"]["tool_calls"])
    shown(ask(server, vocabulary, scripts(vocabulary)["alone"]))
    expected = {"unmeant_calls": before["unmeant_calls"] + calls, "declined_calls": before["declined_calls"] + 1}
    end = monotonic() + 20  # the last step's statistics come behind its answer
    while counts() != expected and monotonic() < end:
        sleep(0.2)
    assert counts() == expected


def test_diagnostics_beside_a_declined_call(server: VllmServer, vocabulary: Vocabulary) -> None:
    xargs = DECLINE | {"script": scripts(vocabulary)["alone"], "constrained_k2_diagnostics": "on"}
    found = shown(ask(server, vocabulary, [], vllm_xargs=xargs))["constrained_k2"]
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
    choice = shown(ask(server, vocabulary, [], max_tokens=400, vllm_xargs=xargs, **fields))
    assert choice["message"]["tool_calls"][0]["function"]["name"].endswith("get_weather")
    assert choice["finish_reason"] == "tool_calls"
