"""Through a real vLLM server: a random Kimi-K2-shaped model, and exact tokens pushed through it by a script."""

import asyncio
import json
from typing import Any

import jsonschema
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, Vocabulary, parse_completion, render_tool_calls
from constrained_k2.evaluation.sample import UNCONSTRAINED, Sample
from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.kit.budget import tries
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import MESSAGES, WEATHER, chat
from tests.vllm_plugin.openai_client import ask_all, judged
from tests.vllm_plugin.servers.answers import CHAT, answered, check_random, only_choice

pytestmark = pytest.mark.server

GOOD = ToolCall("get_weather", 0, '{"city": "Beijing", "days": 3}')


def test_requests_to_a_random_model(server: VllmServer) -> None:
    check_random(server, tries(60, everything=200), whole=0.975, due=0.55)


def test_the_same_model_unconstrained(server: VllmServer) -> None:
    samples = list(ordinary_samples(60, seed=1))
    fields: dict[str, Any] = {"temperature": 1.0, "max_tokens": 2048, "extra_body": UNCONSTRAINED}
    found, _ = judged(samples, asyncio.run(ask_all(server.url, samples, model="kimi-k2", **fields)))
    assert found.due >= 30
    assert found.served <= 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "attempt",
    ["undeclared", "other_index", "leading_zero", "special_in_string", "wrong_type", "extra_key", "stop_inside", "text_between", "no_call"],
)  # fmt: skip
def test_the_mask_wins_against_whatever_the_model_wants(
    server: VllmServer, vocabulary: Vocabulary, attempt: str, stream: bool
) -> None:
    markers = vocabulary.format
    good = render_tool_calls([GOOD], vocabulary)
    in_string = good.index(markers.argument_begin) + len(vocabulary.encode('{"city": "Bei'))
    script = {
        "undeclared": render_tool_calls([ToolCall("get_secrets", 0, "{}")], vocabulary),
        "other_index": render_tool_calls([ToolCall("get_weather", 7, GOOD.arguments)], vocabulary),
        "leading_zero": [*good[:2], *vocabulary.encode("functions.get_weather:007"), markers.argument_begin],
        "special_in_string": [*good[:in_string], markers.call_end, markers.section_begin, markers.turn_end],
        "wrong_type": render_tool_calls([ToolCall("get_weather", 0, '{"city": "x", "days": "many"}')], vocabulary),
        "extra_key": render_tool_calls([ToolCall("get_weather", 0, '{"city": "x", "evil": 1}')], vocabulary),
        "stop_inside": [*good[:-3], markers.turn_end, markers.text_end],
        "text_between": [*good[:-1], *vocabulary.encode("and then")],
        "no_call": [*vocabulary.encode("I'd rather not."), markers.turn_end],
    }[attempt]
    body = {"messages": MESSAGES, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    sample = Sample(0, "", body, stream=stream)
    asked = ask_all(
        server.url, [sample], model="kimi-k2", max_tokens=2000, extra_body={"vllm_xargs": {"script": script}}
    )
    found, problems = judged([sample], asyncio.run(asked))
    assert not problems
    assert found.served == 1


ONE: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 1000, "temperature": 1.0}
REQUIRED: dict[str, Any] = ONE | {"tool_choice": "required", "parallel_tool_calls": False}


def test_indexes_go_on_from_the_history(server: VllmServer) -> None:
    made = calls(call("functions.get_weather:0", "get_weather", '{"city": "a", "days": 1}')) | {"content": ""}
    seen = chat(server, **REQUIRED, messages=[*MESSAGES, made, result("functions.get_weather:0", "sunny"), *MESSAGES])
    assert [call_id for call_id, _, _ in seen.calls] == ["functions.get_weather:1"]


def test_several_choices_and_logprobs(server: VllmServer) -> None:
    choices = answered(server, CHAT, messages=MESSAGES, n=3, logprobs=True, top_logprobs=2, **REQUIRED)["choices"]
    assert len(choices) == 3
    for choice in choices:
        assert choice["finish_reason"] == "tool_calls"
        (made,) = choice["message"]["tool_calls"]
        assert json.loads(made["function"]["arguments"]).keys() >= {"city", "days"}
        assert choice["logprobs"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cut_off_by_max_tokens(server: VllmServer, vocabulary: Vocabulary, stream: bool) -> None:
    script = render_tool_calls([GOOD], vocabulary)
    seen = chat(server, stream=stream, **ONE | {"max_tokens": len(script) - 3}, vllm_xargs={"script": script})
    assert seen.reason == "length"
    assert stream or not seen.calls


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_texts_alone(server: VllmServer, vocabulary: Vocabulary, stream: bool) -> None:
    """Not the reasoning, and no call."""
    markers = vocabulary.format
    thought = [markers.think_begin, *vocabulary.encode("The END is near."), markers.think_end]
    text = [*thought, *vocabulary.encode("It is raining. END of it"), markers.turn_end]
    end = ToolCall("get_weather", 0, '{"city": "END", "days": 3}')
    calling = [*thought, *vocabulary.encode("It is raining. "), *render_tool_calls([end], vocabulary), markers.turn_end]
    for script, reason, made in ((text, "stop", []), (calling, "tool_calls", [(end.id, end.name, end.arguments)])):
        extra: dict[str, Any] = {"vllm_xargs": {"script": script}, "chat_template_kwargs": {"thinking": True}}
        seen = chat(server, stream=stream, **ONE, stop=["END"], **extra)
        assert seen.shown == (reason, "The END is near.", "It is raining. ", made)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_the_content_beside_calls_alone_is_null(server: VllmServer, vocabulary: Vocabulary, choice: Any) -> None:
    script = [*render_tool_calls([GOOD], vocabulary), vocabulary.format.turn_end]
    fields = ONE | {"tool_choice": choice, "vllm_xargs": {"script": script}}
    message = only_choice(server, messages=MESSAGES, **fields)["message"]
    assert [made["id"] for made in message["tool_calls"]] == [GOOD.id]
    assert message["content"] is None


def test_min_tokens_cannot_keep_a_turn_open_behind_its_section(server: VllmServer, vocabulary: Vocabulary) -> None:
    script = render_tool_calls([GOOD], vocabulary)
    extra = {"min_tokens": 200, "vllm_xargs": {"script": script}}
    answer = answered(server, CHAT, messages=MESSAGES, **ONE, **extra)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens"] == len(script) + 1


@on("structured_output", only_all=("many_logits_processor",))  # without a reasoning parser
@pytest.mark.parametrize("stream", [False, True])
def test_chat_without_tools_is_as_ever(server: VllmServer, vocabulary: Vocabulary, stream: bool) -> None:
    script = [*vocabulary.encode("Hello there."), vocabulary.format.turn_end]
    fields: dict[str, Any] = {"vllm_xargs": {"script": script}, "tool_choice": None, "tools": None}
    assert chat(server, stream=stream, **ONE | fields).content == "Hello there."


@pytest.mark.parametrize("stop", [["}"], ['"city"'], ["functions"], ["<|tool_call_end|>"]])
def test_stops_do_not_cut_a_required_call(server: VllmServer, stop: list[str]) -> None:
    for stream in (False, True):
        ((_, _, arguments),) = chat(server, stream=stream, **REQUIRED, stop=stop).calls
        assert json.loads(arguments).keys() >= {"city", "days"}


@pytest.mark.parametrize("limit", [1, 2, 4, 7])
def test_no_marker_leaks_from_a_call_cut_in_its_header(server: VllmServer, limit: int) -> None:
    for stream in (False, True):
        seen = chat(server, stream=stream, **ONE | {"tool_choice": "required", "max_tokens": limit})
        assert (seen.content, seen.reason) == ("", "length")


def test_completions_with_a_tool_of_very_many_optional_properties(server: VllmServer, vocabulary: Vocabulary) -> None:
    """With tokens kept for its end: a random model's call would be cut, and nothing of it could be looked at."""
    parameters = {"type": "object", "properties": {f"p{n}": {"type": "boolean"} for n in range(300)},
                  "required": ["p7", "p250"], "additionalProperties": False}  # fmt: skip
    spec = {"tools": [tool("f", parameters)], "tool_choice": "required", "first_index": 4}
    xargs = {"constrained_k2": json.dumps(spec), "constrained_k2_finish_reserve": 200}
    body = {"prompt": "hi", "max_tokens": 1000, "return_token_ids": True, "vllm_xargs": xargs}
    choice = only_choice(server, "/v1/completions", **body)
    found = parse_completion(choice["token_ids"], vocabulary)
    assert choice["finish_reason"] == "stop" and not (found.content or found.malformed or found.cut_calls)
    assert found.tool_calls[0].id == "functions.f:4"
    for made in found.tool_calls:
        arguments = json.loads(made.arguments)
        assert arguments.keys() >= {"p7", "p250"}
        jsonschema.validate(arguments, parameters)
