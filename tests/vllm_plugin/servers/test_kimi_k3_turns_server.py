"""Through a real vLLM server of a Kimi K3 model: a random one, and exact tokens pushed through it by a script."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, Vocabulary, parse_completion
from constrained_k2.evaluation.sample import UNCONSTRAINED
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts.xtml import render_turn
from tests.kit.budget import tries
from tests.kit.servers import on
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import MESSAGES, WEATHER, called, chat, respond
from tests.vllm_plugin.servers.answers import check_random

pytestmark = pytest.mark.server

OFF = UNCONSTRAINED["vllm_xargs"]
GOOD = ToolCall("get_weather", 1, '{"city": "Beijing", "days": 3}')
OTHER = ToolCall("get_weather", 2, '{"days": 1, "city": "北京 <|close|>argument<|sep|> \\"x\\""}')


both_routes = on("kimi_k3_structured_output", "kimi_k3_logits_processor")


def answer(server: VllmServer, *, stream: bool, **fields: Any) -> tuple[Any, ...]:
    """The finish reason, reasoning, content and calls that a client sees."""
    body = {"tools": [WEATHER], "max_tokens": 400, "temperature": 1.0}
    seen = chat(server, stream=stream, **(body | fields))
    return seen.reason, seen.reasoning, seen.content, seen.calls


@both_routes
def test_requests_to_a_random_model(server: VllmServer) -> None:
    check_random(server, tries(30, everything=100), whole=0.9, due=0.5)


@on("kimi_k3_ngram")
def test_requests_under_speculative_decoding(server: VllmServer) -> None:
    check_random(server, tries(15, everything=30), whole=0.9, due=0.5)


@both_routes
@pytest.mark.parametrize("choice", ["auto", "required", "none", "named"])
@pytest.mark.parametrize("thinking", [True, False])
def test_a_stream_is_the_whole_answer(server: VllmServer, choice: str, thinking: bool) -> None:
    """One request at a time, so that the random model computes the same logits."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    fields = {"tool_choice": named if choice == "named" else choice, "parallel_tool_calls": False, "max_tokens": 1500,
              "chat_template_kwargs": {"thinking": thinking}}  # fmt: skip
    for seed in range(2):
        whole = answer(server, stream=False, seed=seed, **fields)
        streamed = answer(server, stream=True, seed=seed, **fields)
        assert streamed == whole
        assert bool(whole[1]) == thinking
        if choice in {"required", "named"}:
            assert [call[0] for call in whole[3]] == ["functions.get_weather:0"] and not whole[2]
        if choice == "none":
            assert not whole[3] and whole[0] == "stop"


def transcripts(vocabulary: Vocabulary) -> Iterator[list[int]]:
    """Turns right and wrong, after a prompt that opened the reasoning."""
    right = render_turn([GOOD, OTHER], vocabulary, response="So: 🌦️", reasoning="Hm.")
    yield render_turn([], vocabulary, response="Just text, with 北京 and 🌦️.", reasoning="")
    yield render_turn([], vocabulary, response="<|open|>tools<|sep|>", reasoning="<|close|>think<|sep|>")
    yield right
    yield render_turn([GOOD], vocabulary, reasoning="Hm.", first_index=7)
    yield render_turn([ToolCall("not_declared", 1, "{}"), GOOD], vocabulary, reasoning="Hm.")
    yield render_turn([ToolCall("get_weather", 1, '{"days": "many"}')], vocabulary, reasoning="Hm.")
    yield render_turn([ToolCall("get_weather", 1, "not json")], vocabulary, reasoning="Hm.")
    for cut in (3, 9, len(right) // 2, len(right) - 12):
        yield [*right[:cut], vocabulary.format.turn_end]


@both_routes
def test_unconstrained_answers_are_parsed_by_token_id(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    for number, script in enumerate(transcripts(k3_vocabulary)):
        parsed = parse_completion(script, k3_vocabulary, level="tolerant", in_reasoning=True)
        seen = [(f"functions.{call.name}:{at}", call.name, call.arguments) for at, call in enumerate(parsed.tool_calls)]
        fields = {"vllm_xargs": OFF | {"script": script}}
        reason, *whole = answer(server, stream=False, **fields)
        assert whole == [parsed.reasoning, parsed.content, seen], number
        streamed = answer(server, stream=True, **fields)
        assert streamed[:3] == (reason, *whole[:2]), number
        assert streamed[3][: len(seen)] == seen and len(streamed[3]) <= len(seen) + len(parsed.cut_calls), number
        assert reason == ("length" if parsed.cut_calls else "tool_calls" if seen else "stop"), number


@both_routes
def test_answers_without_tools_hold_no_tags(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    for stream in (False, True):
        for reasoning, kwargs in (("<|close|>think", {}), (None, {"chat_template_kwargs": {"thinking": False}})):
            script = render_turn([], k3_vocabulary, response="a <|close|>response<|sep|> b", reasoning=reasoning)
            found = answer(server, stream=stream, tools=None, vllm_xargs={"script": script}, **kwargs)
            assert found == ("stop", reasoning or "", "a <|close|>response<|sep|> b", [])


WRONG: dict[str, Sequence[ToolCall]] = {
    "undeclared": [ToolCall("get_secrets", 1, "{}")],
    "wrong type": [ToolCall("get_weather", 1, '{"city": "x", "days": "many"}')],
    "missing key": [ToolCall("get_weather", 1, '{"city": "x"}')],
    "extra key": [ToolCall("get_weather", 1, '{"city": "x", "evil": 1}')],
    "twice": [ToolCall("get_weather", 1, '{"city": "x", "city": "y", "days": 1}')],
    "json": [ToolCall("get_weather", 1, "not json")],
    "no call": [],
}


@both_routes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("attempt", [*WRONG, "other index"])
def test_the_mask_wins_against_whatever_the_model_wants(
    server: VllmServer, k3_vocabulary: Vocabulary, attempt: str, stream: bool
) -> None:
    first = 7 if attempt == "other index" else 1
    script = render_turn(WRONG.get(attempt, [GOOD]), k3_vocabulary, reasoning="Hm.", first_index=first)
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 2000}
    reason, reasoning, content, calls = answer(server, stream=stream, vllm_xargs={"script": script}, **fields)
    assert (reason, reasoning, content) == ("tool_calls", "Hm.", "")
    [(call_id, name, arguments)] = calls
    assert (call_id, name) == ("functions.get_weather:0", "get_weather")
    assert sorted(json.loads(arguments, object_pairs_hook=list)) == sorted(json.loads(arguments).items())
    assert {"city", "days"} <= json.loads(arguments).keys()


@both_routes
def test_calls_are_numbered_through_the_dialog_and_indexes_begin_anew(
    server: VllmServer, k3_vocabulary: Vocabulary
) -> None:
    made = calls(call("x", "get_weather", '{"city": "a", "days": 1}')) | {"content": ""}
    history = [*MESSAGES, made, result("x", "sunny"), *MESSAGES]
    script = render_turn([GOOD, OTHER], k3_vocabulary, response="So", reasoning="Hm.")
    for stream in (False, True):
        found = answer(server, stream=stream, messages=history, vllm_xargs={"script": script})
        new = [(f"functions.{call.name}:{at}", call.name, call.arguments) for at, call in enumerate((GOOD, OTHER), 1)]
        assert found == ("tool_calls", "Hm.", "So", new)


@both_routes
@pytest.mark.parametrize("stream", [False, True])
def test_responses(server: VllmServer, k3_vocabulary: Vocabulary, stream: bool) -> None:
    script = render_turn([GOOD, OTHER], k3_vocabulary, response="So", reasoning="Hm.")
    tools = [{"type": "function", **WEATHER["function"]}]
    body = {"input": "hi", "tools": tools, "max_output_tokens": 400, "vllm_xargs": {"script": script}}
    found = respond(server, stream=stream, **body)
    assert found["status"] == "completed"
    texts = [part["text"] for item in found["output"] for part in item.get("content") or ()]
    assert texts == ["Hm.", "So"]
    assert called(found) == [
        (f"functions.get_weather:{at}", call.name, call.arguments) for at, call in enumerate((GOOD, OTHER))
    ]


@both_routes
def test_stop_strings_end_texts(server: VllmServer, k3_vocabulary: Vocabulary) -> None:
    script = render_turn([GOOD], k3_vocabulary, response="one STOP two", reasoning="Hm.")
    for stream in (False, True):
        for kwargs in ({}, {"tools": None}):
            found = answer(server, stream=stream, stop=["STOP"], vllm_xargs={"script": script}, **kwargs)
            assert found == ("stop", "Hm.", "one ", [])


@both_routes
@pytest.mark.parametrize("stop", [["Hm"], ["response"], ["city", "Beijing"]], ids=["reasoning", "tag", "call"])
def test_stop_strings_end_nothing_else(server: VllmServer, k3_vocabulary: Vocabulary, stop: list[str]) -> None:
    script = render_turn([GOOD], k3_vocabulary, response="one", reasoning="Hm.")
    for stream in (False, True):
        found = answer(server, stream=stream, stop=stop, vllm_xargs={"script": script})
        assert found == ("tool_calls", "Hm.", "one", [("functions.get_weather:0", GOOD.name, GOOD.arguments)])


@both_routes
def test_a_call_or_an_answer_in_the_form_asked_for(server: VllmServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for stream in (False, True):
        for choice in ("auto", "none"):
            fields = {"response_format": form, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 2000}
            reason, _, content, calls = answer(server, stream=stream, **fields)
            assert reason == ("tool_calls" if calls else "stop")
            if calls:
                assert choice == "auto" and not content
            else:
                assert json.loads(content) in ({"a": 1}, {"a": 2})
