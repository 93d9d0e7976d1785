"""Through real vLLM servers of both formats: a random model, and exact tokens pushed through it by a script."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import jsonschema
import pytest

from constrained_k2 import ToolCall, Vocabulary, parse_completion, render_tool_calls
from constrained_k2.evaluation.sample import UNCONSTRAINED
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.prompts.xtml import render_turn
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.kit.budget import tries
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.kit.turns import is_k3
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import (
    CHAT,
    MESSAGES,
    WEATHER,
    Metrics,
    answered,
    ask_all,
    called,
    chat,
    chat_choices,
    check_random,
    claude,
    judged,
    only_choice,
    respond,
)

pytestmark = pytest.mark.server

K3_ROUTES = ("kimi_k3_structured_output", "kimi_k3_logits_processor")
both_formats = on("structured_output", "logits_processor", *K3_ROUTES)
on_k3 = on(*K3_ROUTES)
GOOD = '{"city": "Beijing", "days": 3}'
OTHER = '{"days": 1, "city": "北京 <|close|>argument<|sep|> \\"x\\""}'
ONE: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 1000, "temperature": 1.0}
REQUIRED: dict[str, Any] = ONE | {"tool_choice": "required", "parallel_tool_calls": False}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALLED = [
    *MESSAGES,
    calls(call("functions.get_weather:0", "get_weather", '{"city": "a", "days": 1}')) | {"content": ""},
    result("functions.get_weather:0", "sunny"),
    *MESSAGES,
]


@pytest.fixture
def served(server: VllmServer) -> Vocabulary:
    """The vocabulary of the test's server, in its format."""
    return Vocabulary.from_pretrained(server.model)


def turn(
    vocabulary: Vocabulary, *made: str | tuple[str, str], text: str = "", first: int = 0, reasoning: str | None = None
) -> list[int]:
    """The tokens of a turn.

    ``made`` are calls, each its arguments or its name and arguments; their indexes count from ``first`` in K2, and from
    one more in K3. With reasoning None, K3's prompt has opened the response.
    """
    named = [("get_weather", each) if isinstance(each, str) else each for each in made]
    calls = [ToolCall(name, at, arguments) for at, (name, arguments) in enumerate(named, first)]
    if is_k3(vocabulary):
        return render_turn(calls, vocabulary, response=text, reasoning=reasoning, first_index=first + 1)
    markers = vocabulary.format
    thought = [] if reasoning is None else [markers.think_begin, *vocabulary.encode(reasoning), markers.think_end]
    written = render_tool_calls(calls, vocabulary) if calls else []
    return [*thought, *vocabulary.encode(text), *written, markers.turn_end]


def shown(*made: str, first: int = 0) -> list[tuple[str, str, str]]:
    """The calls that a client sees."""
    return [(f"functions.get_weather:{at}", "get_weather", arguments) for at, arguments in enumerate(made, first)]


def scripted(
    server: VllmServer, script: list[int], *, stream: bool, thinks: bool = False, xargs: Any = None, **fields: Any
) -> tuple[Any, ...]:
    """The finish reason, reasoning, content and calls of the only choice."""
    more = {"chat_template_kwargs": {"thinking": thinks}, "vllm_xargs": {"script": script} | (xargs or {})}
    return chat(server, stream=stream, **ONE | more | fields).shown


@on("structured_output", "logits_processor", *K3_ROUTES, "kimi_k3_ngram")
def test_requests_to_a_random_model(server: VllmServer, served: Vocabulary) -> None:
    if is_k3(served):
        check_random(server, tries(30, everything=100), whole=0.9, due=0.5)
    else:
        check_random(server, tries(60, everything=200), whole=0.975, due=0.55)


def test_the_same_model_unconstrained(server: VllmServer) -> None:
    samples = list(ordinary_samples(60, seed=1))
    fields: dict[str, Any] = {"temperature": 1.0, "max_tokens": 2048, "extra_body": UNCONSTRAINED}
    found, _ = judged(samples, asyncio.run(ask_all(server.url, samples, model="kimi-k2", **fields)))
    assert found.due >= 30
    assert found.served <= 1


WRONG: dict[str, list[str | tuple[str, str]]] = {
    "undeclared": [("get_secrets", "{}")],
    "wrong type": ['{"city": "x", "days": "many"}'],
    "missing key": ['{"city": "x"}'],
    "extra key": ['{"city": "x", "evil": 1}'],
    "twice": ['{"city": "x", "city": "y", "days": 1}'],
    "no json": ["not json"],
    "other index": [GOOD],
    "no call": [],
}


def k2_attempts(vocabulary: Vocabulary) -> dict[str, list[int]]:
    """Turns that are wrong in another way than a call."""
    markers = vocabulary.format
    good = render_tool_calls([ToolCall("get_weather", 0, GOOD)], vocabulary)
    in_string = good.index(markers.argument_begin) + len(vocabulary.encode('{"city": "Bei'))
    return {
        "leading zero": [*good[:2], *vocabulary.encode("functions.get_weather:007"), markers.argument_begin],
        "special in string": [*good[:in_string], markers.call_end, markers.section_begin, markers.turn_end],
        "stop inside": [*good[:-3], markers.turn_end, markers.text_end],
        "text between": [*good[:-1], *vocabulary.encode("and then")],
    }


def check_good_call(server: VllmServer, script: list[int], *, stream: bool) -> None:
    """Whatever the script is, the answer is one valid call."""
    fields = REQUIRED | {"max_tokens": 2000}
    reason, _, content, ((call_id, name, arguments),) = scripted(server, script, stream=stream, **fields)
    assert (reason, content, call_id, name) == ("tool_calls", "", "functions.get_weather:0", "get_weather")
    pairs = json.loads(arguments, object_pairs_hook=list)
    assert len(pairs) == len(dict(pairs))
    jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])


@both_formats
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("attempt", WRONG)
def test_the_mask_wins_against_whatever_the_model_wants(
    server: VllmServer, served: Vocabulary, attempt: str, stream: bool
) -> None:
    text, first = "I'd rather not." if attempt == "no call" else "", 7 if attempt == "other index" else 0
    check_good_call(server, turn(served, *WRONG[attempt], text=text, first=first), stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("attempt", ["leading zero", "special in string", "stop inside", "text between"])
def test_the_mask_wins_against_markers_of_kimi_k2(
    server: VllmServer, served: Vocabulary, attempt: str, stream: bool
) -> None:
    check_good_call(server, k2_attempts(served)[attempt], stream=stream)


@both_formats
def test_calls_are_numbered_through_the_dialog(server: VllmServer, served: Vocabulary) -> None:
    """The indexes in the tokens go on from the history in K2, and begin anew in K3."""
    script = turn(served, GOOD, OTHER, text="So", first=0 if is_k3(served) else 1, reasoning="Hm.")
    for stream in (False, True):
        found = scripted(server, script, stream=stream, thinks=True, messages=CALLED)
        assert found == ("tool_calls", "Hm.", "So", shown(GOOD, OTHER, first=1))


@both_formats
@pytest.mark.parametrize("stream", [False, True])
def test_responses_and_messages(server: VllmServer, served: Vocabulary, stream: bool) -> None:
    reasoning = "Hm." if is_k3(served) else None
    extra: dict[str, Any] = {"vllm_xargs": {"script": turn(served, GOOD, OTHER, text="So", reasoning=reasoning)}}
    function = WEATHER["function"]
    found = respond(server, stream=stream, input="hi", tools=[{"type": "function", **function}], **extra)
    assert found["status"] == "completed"
    texts = [part["text"] for item in found["output"] for part in item.get("content") or ()]
    assert texts == (["Hm.", "So"] if reasoning else ["So"])
    assert called(found) == shown(GOOD, OTHER)
    tools = [{"name": function["name"], "input_schema": function["parameters"]}]
    seen = claude(server, stream=stream, tools=tools, max_tokens=400, **extra)
    made = [json.loads(arguments) for _, _, arguments in seen.calls]
    assert (seen.reasoning, seen.content, made) == (reasoning or "", "So", [json.loads(GOOD), json.loads(OTHER)])
    assert [call_id for call_id, _, _ in seen.calls] == [call_id for call_id, _, _ in shown(GOOD, OTHER)]


@both_formats
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_texts_alone(server: VllmServer, served: Vocabulary, stream: bool) -> None:
    """Not the reasoning, no marker and no call."""
    end, thought = '{"city": "END", "days": 3}', "The END is near."
    script = turn(served, text="It is raining. END of it", reasoning=thought)
    found = scripted(server, script, stream=stream, thinks=True, stop=["END"])
    assert found == ("stop", thought, "It is raining. ", [])
    script = turn(served, end, text="It is raining.", reasoning=thought)
    for stops in (["END", "response", "argument", "functions"], ["}", '"city"', "<|tool_call_end|>"]):
        found = scripted(server, script, stream=stream, thinks=True, stop=stops)
        assert found == ("tool_calls", thought, "It is raining.", shown(end))


@on_k3
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_texts_without_tools(server: VllmServer, served: Vocabulary, stream: bool) -> None:
    script = turn(served, text="one STOP two", reasoning="Hm.")
    found = scripted(server, script, stream=stream, thinks=True, stop=["STOP"], tools=None)
    assert found == ("stop", "Hm.", "one ", [])


def k3_transcripts(vocabulary: Vocabulary) -> Iterator[list[int]]:
    """Turns right and wrong, after a prompt that opened the reasoning."""
    spoken = partial(turn, vocabulary, reasoning="Hm.")
    right = spoken(GOOD, OTHER, text="So: 🌦️")
    yield turn(vocabulary, text="Just text, with 北京 and 🌦️.", reasoning="")
    yield turn(vocabulary, text="<|open|>tools<|sep|>", reasoning="<|close|>think<|sep|>")
    yield right
    yield spoken(GOOD, first=6)
    yield spoken(("not_declared", "{}"), GOOD)
    yield spoken('{"days": "many"}')
    yield spoken("not json")
    for cut in (3, 9, len(right) // 2, len(right) - 12):
        yield [*right[:cut], vocabulary.format.turn_end]


@on_k3  # for K2, see test_parsing_server.py
def test_unconstrained_answers_are_parsed_by_token_id(server: VllmServer, served: Vocabulary) -> None:
    for number, script in enumerate(k3_transcripts(served)):
        parsed = parse_completion(script, served, level="tolerant", in_reasoning=True)
        seen = [(f"functions.{call.name}:{at}", call.name, call.arguments) for at, call in enumerate(parsed.tool_calls)]
        off: dict[str, Any] = {"thinks": True, "xargs": UNCONSTRAINED["vllm_xargs"]}
        reason, *whole = scripted(server, script, stream=False, **off)
        assert whole == [parsed.reasoning, parsed.content, seen], number
        streamed = scripted(server, script, stream=True, **off)
        assert streamed[:3] == (reason, *whole[:2]), number
        assert streamed[3][: len(seen)] == seen and len(streamed[3]) <= len(seen) + len(parsed.cut_calls), number
        assert reason == ("length" if parsed.cut_calls else "tool_calls" if seen else "stop"), number


@on_k3  # for K2, see tests/clients/test_table.py
@pytest.mark.parametrize("choice", ["auto", "required", "none", "named"])
@pytest.mark.parametrize("thinking", [True, False])
def test_a_stream_is_the_whole_answer(server: VllmServer, choice: str, thinking: bool) -> None:
    """One request at a time, so that the random model computes the same logits."""
    fields = {"tool_choice": NAMED if choice == "named" else choice, "parallel_tool_calls": False, "max_tokens": 1500,
              "chat_template_kwargs": {"thinking": thinking}}  # fmt: skip
    for seed in range(2):
        whole, streamed = (chat(server, stream=stream, **ONE | fields, seed=seed).shown for stream in (False, True))
        assert streamed == whole
        assert bool(whole[1]) == thinking
        if choice in {"required", "named"}:
            assert [call[0] for call in whole[3]] == ["functions.get_weather:0"] and not whole[2]
        if choice == "none":
            assert not whole[3] and whole[0] == "stop"


@both_formats
@pytest.mark.parametrize("stream", [False, True])
def test_answers_without_tools_hold_no_tags(server: VllmServer, served: Vocabulary, stream: bool) -> None:
    text = "a <|close|>response<|sep|> b"
    for reasoning in ("<|close|>think", None) if is_k3(served) else (None,):
        script = turn(served, text=text, reasoning=reasoning)
        found = scripted(server, script, stream=stream, thinks=reasoning is not None, tools=None)
        assert found == ("stop", reasoning or "", text, [])


@on_k3  # for K2, see tests/clients/test_table.py
def test_a_call_or_an_answer_in_the_form_asked_for(server: VllmServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for stream in (False, True):
        for choice in ("auto", "none"):
            fields = {"response_format": form, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 2000}
            seen = chat(server, stream=stream, **ONE | fields)
            assert seen.reason == ("tool_calls" if seen.calls else "stop")
            if seen.calls:
                assert choice == "auto" and not seen.content
            else:
                assert json.loads(seen.content) in ({"a": 1}, {"a": 2})


def test_several_choices_and_logprobs(server: VllmServer) -> None:
    """Each is valid, differs from the others, and is the same under the same seed."""
    fields = REQUIRED | {"n": 3, "logprobs": True, "top_logprobs": 2, "seed": 3}
    choices = answered(server, CHAT, messages=MESSAGES, **fields)["choices"]
    assert all(choice["logprobs"]["content"] for choice in choices)
    first, second = ([seen.calls for seen in chat_choices(server, **fields)] for _ in range(2))
    assert first == second
    assert len({json.dumps(made) for made in first}) == 3
    for ((call_id, _, arguments),) in first:
        assert call_id == "functions.get_weather:0"
        jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cut_off_by_max_tokens(server: VllmServer, served: Vocabulary, stream: bool) -> None:
    script = turn(served, GOOD)
    seen = chat(server, stream=stream, **ONE | {"max_tokens": len(script) - 4}, vllm_xargs={"script": script})
    assert seen.reason == "length"
    assert stream or not seen.calls


@pytest.mark.parametrize("choice", ["auto", "required", NAMED])
def test_the_content_beside_calls_alone_is_null(server: VllmServer, served: Vocabulary, choice: Any) -> None:
    fields = ONE | {"tool_choice": choice, "vllm_xargs": {"script": turn(served, GOOD)}}
    message = only_choice(server, messages=MESSAGES, **fields)["message"]
    assert [made["id"] for made in message["tool_calls"]] == ["functions.get_weather:0"]
    assert message["content"] is None


def test_min_tokens_cannot_keep_a_turn_open_behind_its_section(server: VllmServer, served: Vocabulary) -> None:
    script = turn(served, GOOD)
    extra = {"min_tokens": 200, "vllm_xargs": {"script": script[:-1]}}
    answer = answered(server, CHAT, messages=MESSAGES, **ONE, **extra)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens"] == len(script)


@pytest.mark.parametrize("limit", [1, 2, 4, 7])
def test_no_marker_leaks_from_a_call_cut_in_its_header(server: VllmServer, limit: int) -> None:
    for stream in (False, True):
        seen = chat(server, stream=stream, **ONE | {"tool_choice": "required", "max_tokens": limit})
        assert (seen.content, seen.reason) == ("", "length")


@both_formats
def test_completions_with_a_tool_of_very_many_optional_properties(server: VllmServer, served: Vocabulary) -> None:
    """With tokens kept for its end: a random model's call would be cut, and nothing of it could be looked at."""
    parameters = {"type": "object", "properties": {f"p{n}": {"type": "boolean"} for n in range(300)},
                  "required": ["p7", "p250"], "additionalProperties": False}  # fmt: skip
    spec = {"tools": [tool("f", parameters)], "tool_choice": "required", "first_index": 4}
    xargs = {"constrained_k2": json.dumps(spec), "constrained_k2_finish_reserve": 400}
    body = {"prompt": "hi", "max_tokens": 1000, "return_token_ids": True, "vllm_xargs": xargs}
    choice = only_choice(server, "/v1/completions", **body)
    found = parse_completion(choice["token_ids"], served)
    assert choice["finish_reason"] == "stop" and not (found.content or found.malformed or found.cut_calls)
    assert found.tool_calls[0].id == f"functions.f:{1 if is_k3(served) else 4}"  # K3 counts anew in each turn
    for made in found.tool_calls:
        arguments = json.loads(made.arguments)
        assert arguments.keys() >= {"p7", "p250"}
        jsonschema.validate(arguments, parameters)


def weather(server: VllmServer, **fields: Any) -> Any:
    """The arguments of a required call, which are valid."""
    ((_, _, arguments),) = chat(server, **REQUIRED | fields).calls
    jsonschema.validate(json.loads(arguments), WEATHER["function"]["parameters"])
    return arguments


@on("structured_output")
def test_a_prompt_from_the_cache_is_constrained_alike(server: VllmServer) -> None:
    messages = [{"role": "user", "content": "A prompt of some length, again and again. " * 12}]
    before = Metrics(server)
    first, second = (weather(server, messages=messages, seed=5) for _ in range(2))
    assert Metrics(server, before)("vllm:prefix_cache_hits_total") > 0
    assert first == second


@on("structured_output")
def test_a_lora_request_is_constrained(server: VllmServer) -> None:
    base, tuned = (weather(server, model=model, seed=6) for model in ("kimi-k2", "tuned"))
    assert base != tuned, "the adapter changes nothing: it is not in use"
