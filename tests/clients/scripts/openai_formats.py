"""OpenAI's client on chat completions: structured answers, alone and beside tools, and its typed helpers."""

import json
from typing import Any

import openai

from tests.clients.scripts.common import CHAT_TOOLS, MODEL, QUESTION, Weather
from tests.clients.scripts.openai_client import check, client, create


def parsed_format(url: str) -> None:
    answer = client(url).chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Weather, max_tokens=600)
    assert isinstance(answer.choices[0].message.parsed, Weather)


def parsed_format_beside_tools(url: str) -> None:
    tools = [{"type": "function", "function": CHAT_TOOLS[0]["function"] | {"strict": True}}]
    kinds = set[bool]()
    for seed in range(48):  # the model has no preference, but may write the same kind some times in a row
        answer = client(url).chat.completions.parse(
            model=MODEL, messages=QUESTION, tools=tools, response_format=Weather, max_tokens=600, seed=seed
        )
        message = answer.choices[0].message
        called = bool(check(message))
        assert called or isinstance(message.parsed, Weather)
        kinds.add(called)
        if len(kinds) == 2:
            return
    raise AssertionError("either only calls or only answers")


def parsed_format_after_a_result(url: str) -> None:
    call = {
        "id": "functions.get_time:0",
        "type": "function",
        "function": {"name": "get_time", "arguments": '{"zone":"UTC"}'},
    }
    messages = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "1"},
    ]
    answer = client(url).chat.completions.parse(model=MODEL, messages=messages, response_format=Weather, max_tokens=600)
    assert isinstance(answer.choices[0].message.parsed, Weather)


def json_object_beside_tools(url: str) -> None:
    for seed in range(4):
        message = create(url, response_format={"type": "json_object"}, seed=seed).choices[0].message
        assert check(message) or isinstance(json.loads(message.content), dict)


def format_beside_a_required_call(url: str) -> None:
    shape = {
        "type": "json_schema",
        "json_schema": {"name": "weather", "schema": Weather.model_json_schema(), "strict": True},
    }
    assert check(create(url, response_format=shape, tool_choice="required").choices[0].message)
    message = create(url, response_format=shape, tool_choice="none").choices[0].message
    assert not message.tool_calls
    Weather.model_validate_json(message.content)


def format_streamed_beside_tools(url: str) -> None:
    with client(url).chat.completions.stream(
        model=MODEL, messages=QUESTION, tools=_strict(), response_format=Weather, max_tokens=600, seed=1
    ) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert check(message) or isinstance(message.parsed, Weather)


def _strict() -> list[dict[str, Any]]:
    return [tool | {"function": tool["function"] | {"strict": True}} for tool in CHAT_TOOLS]


def strict_pydantic_tool(url: str) -> None:
    answer = client(url).chat.completions.parse(
        model=MODEL,
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        max_tokens=600,
    )
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Weather)


def stream_helper(url: str) -> None:
    with client(url).chat.completions.stream(
        model=MODEL, messages=QUESTION, tools=_strict(), tool_choice="required", max_tokens=500
    ) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert check(message)
