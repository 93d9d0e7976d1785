"""OpenAI's client on chat completions."""

import asyncio
import json
from typing import Any

import openai

from tests.clients.scripts.common import CHAT_TOOLS, MODEL, QUESTION, TRIES, WEATHER_SCHEMA, check_call, check_ids
from tests.clients.scripts.openai_client import async_client, body, check, client, create

_REQUIRED = body(tool_choice="required")


def plain_answer(url: str) -> None:
    answers = [create(url, tools=...) for _ in range(TRIES)]
    assert any(answer.choices[0].message.content for answer in answers)
    for answer in answers:
        assert not answer.choices[0].message.tool_calls
        assert answer.usage.completion_tokens > 0


def streamed_answer_with_usage(url: str) -> None:
    fields = {"tools": ..., "stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk for _ in range(TRIES) for chunk in create(url, **fields)]
    assert any(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)
    assert chunks[-1].usage.completion_tokens > 0


def auto(url: str) -> None:
    for seed in range(4):
        choice = create(url, seed=seed, tool_choice="auto").choices[0]
        names = check(choice.message)
        assert choice.finish_reason == ("tool_calls" if names else "stop"), choice


def required(url: str) -> None:
    choice = create(url, tool_choice="required").choices[0]
    assert check(choice.message)
    assert choice.finish_reason == "tool_calls"


def required_streamed(url: str) -> None:
    calls: dict[int, list[str]] = {}
    for chunk in create(url, tool_choice="required", stream=True):
        for delta in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            call = calls.setdefault(delta.index, ["", "", ""])
            call[0] += delta.id or ""
            call[1] += delta.function.name or ""
            call[2] += delta.function.arguments or ""
    assert calls
    check_ids([(call[0], call[1]) for call in calls.values()])
    for _, name, arguments in calls.values():
        check_call(name, arguments)


def named(url: str) -> None:
    choice = create(url, tool_choice={"type": "function", "function": {"name": "get_time"}}).choices[0]
    assert set(check(choice.message)) == {"get_time"}


def none(url: str) -> None:
    for seed in range(3):
        message = create(url, tool_choice="none", seed=seed).choices[0].message
        assert not message.tool_calls
        assert "<|tool_call" not in (message.content or "")


def null(url: str) -> None:
    for seed in range(4):
        choice = create(url, tool_choice=None, seed=seed).choices[0]
        assert choice.finish_reason == ("tool_calls" if check(choice.message) else "stop"), choice
        assert "<|tool_call" not in (choice.message.content or "")


def allowed_tools(url: str) -> None:
    allowed = [{"type": "function", "function": {"name": "get_time"}}]
    for mode in ("required", "auto"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
        for seed in range(3):
            names = check(create(url, tool_choice=choice, seed=seed).choices[0].message)
            assert set(names) <= {"get_time"}
            assert names or mode == "auto"


def one_call_at_a_time(url: str) -> None:
    for seed in range(3):
        answer = create(url, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(check(answer.choices[0].message)) == 1


def several_turns(url: str) -> None:
    messages: list[Any] = list(QUESTION)
    called = 0
    for turn in range(3):
        message = create(url, messages=messages, tool_choice="required", seed=turn).choices[0].message
        names = check(message, called)
        called += len(names)
        messages.append(message)
        content = [{"type": "text", "text": "7 degrees"}]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": content} for call in message.tool_calls]
    answer = create(url, messages=messages, tool_choice="none").choices[0]
    assert answer.message.content


def foreign_ids_in_the_history(url: str) -> None:
    call = {"id": "call_abc", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_abc", "content": "noon"},
    ]
    assert check(create(url, messages=messages, tool_choice="required").choices[0].message, 1)


def strict_false(url: str) -> None:
    tools = [tool | {"function": tool["function"] | {"strict": False}} for tool in CHAT_TOOLS]
    assert check(create(url, tools=tools, tool_choice="required").choices[0].message)


def strict_null_and_no_description(url: str) -> None:
    function = {"name": "get_weather", "description": None, "parameters": WEATHER_SCHEMA, "strict": None}
    tools = [{"type": "function", "function": function}]
    assert check(create(url, tools=tools, tool_choice="required").choices[0].message)


def tools_without_parameters(url: str) -> None:
    tools = [{"type": "function", "function": {"name": "ping"}}]
    (call, *_) = create(url, tools=tools, tool_choice="required").choices[0].message.tool_calls
    assert isinstance(json.loads(call.function.arguments), dict)


def legacy_functions(url: str) -> None:
    functions = [tool["function"] for tool in CHAT_TOOLS]
    assert create(url, tools=..., functions=functions, function_call="auto").choices[0].message.content is not None
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "function_call": {"name": "get_time", "arguments": "{}"}},
        {"role": "function", "name": "get_time", "content": "noon"},
    ]
    assert create(url, messages=messages).choices[0].finish_reason


def several_choices(url: str) -> None:
    choices = create(url, n=3, tool_choice="required", logprobs=True, top_logprobs=2).choices
    assert len(choices) == 3
    for choice in choices:
        assert check(choice.message)
        assert choice.logprobs.content


async def eight_at_once(url: str) -> None:
    async with async_client(url) as opened:
        answers = await asyncio.gather(*(opened.chat.completions.create(**_REQUIRED, seed=seed) for seed in range(8)))
    for answer in answers:
        assert check(answer.choices[0].message)


async def cancelled_stream(url: str) -> None:
    async with async_client(url) as opened:
        stream = await opened.chat.completions.create(**_REQUIRED, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.tool_calls:
                break
        await stream.close()
        answer = await opened.chat.completions.create(**_REQUIRED)
        assert check(answer.choices[0].message)


def raw_response(url: str) -> None:
    raw = client(url).chat.completions.with_raw_response.create(**_REQUIRED)
    assert raw.status_code == 200
    assert check(raw.parse().choices[0].message)


def usual_extras(url: str) -> None:
    """Fields that agents send with every request."""
    fields: dict[str, Any] = {
        "max_tokens": ..., "max_completion_tokens": 500, "temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.1,
        "frequency_penalty": 0.1, "user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto",
        "reasoning_effort": "low", "verbosity": "low", "stop": ["\n\nHuman:"], "prompt_cache_key": "k",
        "safety_identifier": "s",
    }  # fmt: skip
    assert check(create(url, tool_choice="required", **fields).choices[0].message)


def sampling_fields(url: str) -> None:
    sampling = {"min_p": 0.01, "top_k": 40, "repetition_penalty": 1.1}
    for extra in ({"bad_words": ["Oslo"]}, {"thinking_token_budget": 20}, sampling):
        assert check(create(url, tool_choice="required", extra_body=extra).choices[0].message), extra
    assert check(create(url, tool_choice="required", logit_bias={"5": -100, "6": 100}).choices[0].message)


def a_bad_schema_is_a_bad_request(url: str) -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}
    try:
        create(url, tools=[{"type": "function", "function": function}], tool_choice="required")
    except openai.BadRequestError as error:
        assert "no value satisfies" in error.message, error.message
    else:
        raise AssertionError("accepted")


def completions(url: str) -> None:
    create_text = client(url).completions.create
    answers = (create_text(model=MODEL, prompt="Oslo is", max_tokens=20) for _ in range(TRIES))
    assert any(answer.choices[0].text for answer in answers)
    stream = client(url).completions.create(model=MODEL, prompt=["a", "b"], max_tokens=20, stream=True, echo=False)
    assert {chunk.choices[0].index for chunk in stream if chunk.choices} == {0, 1}


def models(url: str) -> None:
    assert MODEL in {model.id for model in client(url).models.list()}
