"""Thinking models: the constraint binds although the model reasons first."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm import SamplingParams

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from tests.vllm_plugin.served import OneRow

ANY = {"type": "object", "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ANY}} for name in ("f", "g")]
NAMED = {"type": "function", "function": {"name": "g"}}


def sampled_by(model: Path, vocabulary: Vocabulary, body: Any, prompt: list[int]) -> OneRow:
    return OneRow(model, vocabulary, SamplingParams(extra_args={"constrained_k2": json.dumps(body)}), prompt)


@pytest.fixture(params=["writes <think> itself", "prompt ends in <think>"])
def prompt(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> list[int]:
    return [5] if request.param.startswith("writes") else [5, vocabulary.format.think_begin]


def begin(sampled: OneRow, prompt: list[int], vocabulary: Vocabulary) -> set[int]:
    """Have the reasoning begun; what it may hold."""
    if len(prompt) == 1:
        assert vocabulary.format.think_begin in sampled.allowed()
        return sampled.allowed(vocabulary.format.think_begin)
    return sampled.allowed()


@pytest.mark.parametrize("choice", ["required", NAMED, "auto", "none"])
def test_what_reasoning_may_hold(model: Path, vocabulary: Vocabulary, prompt: list[int], choice: Any) -> None:
    markers = vocabulary.format
    sampled = sampled_by(model, vocabulary, {"tools": TOOLS, "tool_choice": choice, "thinking": True}, prompt)
    ordinary = {token for token in range(vocabulary.size) if vocabulary.is_ordinary(token)}
    expected = ordinary | {markers.think_end} | (set() if choice == "none" else {markers.section_begin})
    assert begin(sampled, prompt, vocabulary) == expected
    assert sampled.allowed(*vocabulary.encode("hm, <think> let me see")) == expected
    after = sampled.allowed(markers.think_end)
    if choice in ("required", NAMED):
        assert after == {markers.section_begin}  # reasoning does not replace the call
    else:
        assert after == expected - {markers.think_end} | set(markers.stop_ids)


@pytest.mark.parametrize("choice", ["required", NAMED, "auto"])
@pytest.mark.parametrize("closed", [True, False])
def test_the_call_behind_or_inside_reasoning_is_constrained(
    model: Path, vocabulary: Vocabulary, prompt: list[int], choice: Any, closed: bool
) -> None:
    markers = vocabulary.format
    sampled = sampled_by(model, vocabulary, {"tools": TOOLS, "tool_choice": choice, "thinking": True}, prompt)
    begin(sampled, prompt, vocabulary)
    sampled.allowed(70, *([markers.think_end] if closed else []))
    turn = render_tool_calls([ToolCall("g", 0, "{}")], vocabulary)
    for token in turn:
        assert token in sampled.allowed()
        sampled.allowed(token)
        assert not {markers.think_begin, markers.think_end} & sampled.allowed()
    assert sampled.allowed() == set(markers.stop_ids)


@pytest.mark.parametrize("ending", [[], "think_end"])
def test_thinking_that_is_off(model: Path, vocabulary: Vocabulary, ending: Any) -> None:
    """K2.5's prompt then ends in ``<think></think>``: the call is due at once, and no reasoning opens."""
    markers = vocabulary.format
    prompt = [5, markers.think_begin, markers.think_end] if ending else [5]
    body = {"tools": TOOLS, "tool_choice": "required", "chat_template_kwargs": {"thinking": False}}
    assert sampled_by(model, vocabulary, body, prompt).allowed() == {markers.section_begin}
