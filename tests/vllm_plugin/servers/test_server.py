"""Through a real vLLM server: a random Kimi-K2-shaped model, and exact tokens pushed through it by a script."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, Vocabulary, parse_completion, render_tool_calls
from constrained_k2.evaluation.sample import UNCONSTRAINED, Sample
from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.kit.budget import tries
from tests.kit.servers import on
from tests.vllm_plugin.asking import MESSAGES, WEATHER, create
from tests.vllm_plugin.openai_client import ask, ask_all, judged

pytestmark = pytest.mark.server

OFF = UNCONSTRAINED["vllm_xargs"]
GOOD = ToolCall("get_weather", 0, '{"city": "Beijing", "days": 3}')


def test_requests_to_a_random_model(server: VllmServer) -> None:
    count = tries(60, everything=200)
    samples = list(ordinary_samples(count, seed=1))
    answers = asyncio.run(ask_all(server.url, samples, model="kimi-k2", temperature=1.0, max_tokens=2048))
    result, problems = judged(samples, answers)
    assert not problems
    assert result.success - result.truncated >= 0.975 * count
    assert result.served == result.due >= 0.55 * count
    assert result.calls == result.declared == result.valid == result.numbered > 0.6 * count


def test_the_same_model_unconstrained(server: VllmServer) -> None:
    samples = list(ordinary_samples(60, seed=1))
    answers = asyncio.run(
        ask_all(server.url, samples, model="kimi-k2", temperature=1.0, max_tokens=2048, extra_body=UNCONSTRAINED)
    )
    result, _ = judged(samples, answers)
    assert result.due >= 30
    assert result.served <= 1


def transcripts(vocabulary: Vocabulary) -> Iterator[list[int]]:
    """Turns right and wrong, as token ids behind which the stop is due."""
    markers = vocabulary.format
    other = ToolCall("get_weather", 1, '{\n  "days": 1,\n  "city": "北京 🌦️ \\"x\\""\n}')
    right = render_tool_calls([GOOD, other], vocabulary)
    yield vocabulary.encode("Just text, with 北京 and 🌦️.")
    yield right
    yield [*vocabulary.encode("Let me see. "), *right]
    yield [markers.think_begin, *vocabulary.encode("Hm."), markers.think_end, *vocabulary.encode("So:"), *right]
    yield [markers.think_begin, *vocabulary.encode("Hm."), *right]
    yield render_tool_calls([ToolCall("not_declared", 0, "{}")], vocabulary)
    yield render_tool_calls([ToolCall("get_weather", 7, '{"days": "many"}')], vocabulary)
    yield render_tool_calls([ToolCall("get_weather", 0, "not json")], vocabulary)
    yield vocabulary.encode("<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0")
    yield right[:-2]  # the last call is cut off
    yield right[:4]
    yield [markers.call_begin, *right[2:]]
    yield [*right, *vocabulary.encode("and some text behind")]
    yield [markers.section_begin, *vocabulary.encode("no call"), markers.section_end]
    yield [markers.section_begin, markers.call_begin, *vocabulary.encode("search:2"), *right[right.index(markers.argument_begin):]]  # fmt: skip


def test_stream_and_whole_agree_on_scripted_transcripts(server: VllmServer, vocabulary: Vocabulary) -> None:
    scripts = [[*ids, vocabulary.format.turn_end] for ids in transcripts(vocabulary)]
    samples = [
        Sample(number, "", {"messages": MESSAGES, "tools": [WEATHER]}, stream=stream)
        for number in range(len(scripts))
        for stream in (False, True)
    ]

    async def ask_scripted() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120) as client:
            return await asyncio.gather(
                *(
                    ask(client, sample, model="kimi-k2", max_tokens=300, temperature=1.0,
                        extra_body={"vllm_xargs": OFF | {"script": scripts[sample.number]}})
                    for sample in samples
                )
            )  # fmt: skip

    answers = asyncio.run(ask_scripted())
    for sample, whole, streamed in zip(samples[::2], answers[::2], answers[1::2], strict=True):
        parsed = parse_completion(scripts[sample.number], vocabulary, level="tolerant")
        calls = tuple((call.id, call.name, call.arguments) for call in parsed.tool_calls)
        assert whole.calls == calls, sample.number
        assert whole.content == streamed.content
        assert streamed.calls[: len(calls)] == calls
        assert len(streamed.calls) == len(calls) + len(parsed.cut_calls)  # a stream has shown a call before it is cut


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "attempt",
    ["undeclared", "other_index", "leading_zero", "special_in_string", "wrong_type", "extra_key", "stop_inside", "text_between", "no_call"],
)  # fmt: skip
def test_the_mask_wins_against_whatever_the_model_wants(
    server: VllmServer,
    vocabulary: Vocabulary,
    attempt: str,
    stream: bool,
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

    async def ask_scripted() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120) as client:
            return await ask(
                client, sample, model="kimi-k2", max_tokens=2000, extra_body={"vllm_xargs": {"script": script}}
            )

    result, problems = judged([sample], [asyncio.run(ask_scripted())])
    assert not problems
    assert result.served == 1


def test_indexes_go_on_from_the_history(client: openai.OpenAI) -> None:
    call = {"id": "functions.get_weather:0", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "a", "days": 1}'}}  # fmt: skip
    history = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]},
               {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}, *MESSAGES]  # fmt: skip
    answer = create(client, messages=history, tool_choice="required", parallel_tool_calls=False)
    assert [call.id for call in answer.choices[0].message.tool_calls] == ["functions.get_weather:1"]


def test_several_choices_and_logprobs(client: openai.OpenAI) -> None:
    answer = create(client, n=3, tool_choice="required", logprobs=True, top_logprobs=2, parallel_tool_calls=False)
    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert json.loads(choice.message.tool_calls[0].function.arguments).keys() >= {"city", "days"}
        assert choice.logprobs.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cut_off_by_max_tokens(client: openai.OpenAI, vocabulary: Vocabulary, stream: bool) -> None:
    script = render_tool_calls([GOOD], vocabulary)
    answer = create(client, max_tokens=len(script) - 3, extra_body={"vllm_xargs": {"script": script}}, stream=stream)
    choices = [chunk.choices[0] for chunk in answer if chunk.choices] if stream else answer.choices
    assert choices[-1].finish_reason == "length"
    assert stream or not choices[0].message.tool_calls


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_texts_alone(client: openai.OpenAI, vocabulary: Vocabulary, stream: bool) -> None:
    """Not the reasoning, and no call."""
    markers = vocabulary.format
    thought = [markers.think_begin, *vocabulary.encode("The END is near."), markers.think_end]
    text = [*thought, *vocabulary.encode("It is raining. END of it"), markers.turn_end]
    call = ToolCall("get_weather", 0, '{"city": "END", "days": 3}')
    calling = [
        *thought,
        *vocabulary.encode("It is raining. "),
        *render_tool_calls([call], vocabulary),
        markers.turn_end,
    ]
    for script, reason, calls in ((text, "stop", []), (calling, "tool_calls", [call.arguments])):
        extra = {"vllm_xargs": {"script": script}, "chat_template_kwargs": {"thinking": True}}
        answer = create(client, stop=["END"], extra_body=extra, stream=stream)
        choices = [chunk.choices[0] for chunk in answer if chunk.choices] if stream else answer.choices
        parts = [choice.delta if stream else choice.message for choice in choices]
        assert "".join(getattr(part, "reasoning", None) or "" for part in parts) == "The END is near."
        assert "".join(part.content or "" for part in parts) == "It is raining. "
        written = [made.function.arguments or "" for part in parts for made in part.tool_calls or ()]
        assert "".join(written) == "".join(calls)
        assert choices[-1].finish_reason == reason


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_the_content_beside_calls_alone_is_null(client: openai.OpenAI, vocabulary: Vocabulary, choice: Any) -> None:
    script = [*render_tool_calls([GOOD], vocabulary), vocabulary.format.turn_end]
    answer = create(client, tool_choice=choice, extra_body={"vllm_xargs": {"script": script}})
    message = answer.choices[0].message
    assert [call.id for call in message.tool_calls] == [GOOD.id]
    assert message.content is None


def test_min_tokens_cannot_keep_a_turn_open_behind_its_section(client: openai.OpenAI, vocabulary: Vocabulary) -> None:
    script = render_tool_calls([GOOD], vocabulary)
    answer = create(client, extra_body={"min_tokens": 200, "vllm_xargs": {"script": script}})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens == len(script) + 1


def test_completions_with_the_tools_in_vllm_xargs(client: openai.OpenAI, vocabulary: Vocabulary) -> None:
    body = json.dumps({"tools": [WEATHER], "tool_choice": "required", "first_index": 4})
    answer: Any = client.completions.create(
        model="kimi-k2", prompt="hi", max_tokens=1000,
        extra_body={"vllm_xargs": {"constrained_k2": body}, "return_token_ids": True},
    )  # fmt: skip
    completion = parse_completion(answer.choices[0].token_ids, vocabulary)
    assert completion.tool_calls[0].id == "functions.get_weather:4"
    assert not (completion.content or completion.malformed or completion.cut_calls)


@on("structured_output", only_all=("many_logits_processor",))  # without a reasoning parser
@pytest.mark.parametrize("stream", [False, True])
def test_chat_without_tools_is_as_ever(client: openai.OpenAI, vocabulary: Vocabulary, stream: bool) -> None:
    script = [*vocabulary.encode("Hello there."), vocabulary.format.turn_end]
    extra = {"vllm_xargs": {"script": script}, "tool_choice": None, "tools": None}
    answer = create(client, tools=openai.omit, extra_body=extra, stream=stream)
    if stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices) == "Hello there."
    else:
        assert answer.choices[0].message.content == "Hello there."


@pytest.mark.parametrize("stop", [["}"], ['"city"'], ["functions"], ["<|tool_call_end|>"]])
def test_stops_do_not_cut_a_required_call(client: openai.OpenAI, stop: list[str]) -> None:
    for stream in (False, True):
        answer = create(client, tool_choice="required", parallel_tool_calls=False, stop=stop, stream=stream)
        if stream:
            deltas = [chunk.choices[0].delta for chunk in answer if chunk.choices]
            arguments = "".join(call.function.arguments or "" for delta in deltas for call in delta.tool_calls or ())
        else:
            arguments = answer.choices[0].message.tool_calls[0].function.arguments
        assert json.loads(arguments).keys() >= {"city", "days"}


@pytest.mark.parametrize("limit", [1, 2, 4, 7])
def test_no_marker_leaks_from_a_call_cut_in_its_header(client: openai.OpenAI, limit: int) -> None:
    for stream in (False, True):
        answer = create(client, tool_choice="required", max_tokens=limit, stream=stream)
        choices = [chunk.choices[0] for chunk in answer if chunk.choices] if stream else answer.choices
        text = "".join((choice.delta if stream else choice.message).content or "" for choice in choices)
        assert (text, choices[-1].finish_reason) == ("", "length")


def test_very_many_optional_properties(client: openai.OpenAI, vocabulary: Vocabulary) -> None:
    """With tokens kept for its end: a random model's call would be cut, and nothing of it could be looked at."""
    parameters = {"type": "object", "properties": {f"p{n}": {"type": "boolean"} for n in range(300)},
                  "required": ["p7", "p250"], "additionalProperties": False}  # fmt: skip
    spec = json.dumps(
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
            "tool_choice": "required",
        }
    )
    answer: Any = client.completions.create(
        model="kimi-k2", prompt="hi", max_tokens=1000,
        extra_body={"vllm_xargs": {"constrained_k2": spec, "constrained_k2_finish_reserve": 200}, "return_token_ids": True},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"
    calls = parse_completion(answer.choices[0].token_ids, vocabulary).tool_calls
    assert calls
    for call in calls:
        arguments = json.loads(call.arguments)
        assert arguments.keys() >= {"p7", "p250"}
        jsonschema.validate(arguments, parameters)
