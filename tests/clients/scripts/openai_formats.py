"""OpenAI's client on chat completions: structured answers, alone and beside tools, and its typed helpers."""

import json
from typing import Any

import openai

from tests.clients.scripts.common import CHAT_TOOLS, QUESTION, Weather, check_both_kinds
from tests.clients.scripts.openai_client import body, check, client, create


def parsed_format(url: str) -> None:
    answer = client(url).chat.completions.parse(**body(tools=..., response_format=Weather))
    assert isinstance(answer.choices[0].message.parsed, Weather)


def parsed_format_beside_tools(url: str) -> None:
    def ask(seed: int) -> tuple[list[str], Any]:
        fields = body(tools=_strict()[:1], response_format=Weather, seed=seed)
        message = client(url).chat.completions.parse(**fields).choices[0].message
        return check(message), message.parsed

    check_both_kinds(ask)


def parsed_format_after_a_result(url: str) -> None:
    function = {"name": "get_time", "arguments": '{"zone":"UTC"}'}
    call = {"id": "functions.get_time:0", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
    messages = [*QUESTION, {"role": "assistant", "tool_calls": [call]}, result]
    answer = client(url).chat.completions.parse(**body(tools=..., messages=messages, response_format=Weather))
    assert isinstance(answer.choices[0].message.parsed, Weather)


def json_object_beside_tools(url: str) -> None:
    for seed in range(4):
        message = create(url, response_format={"type": "json_object"}, seed=seed).choices[0].message
        assert check(message) or isinstance(json.loads(message.content), dict)


def format_beside_a_required_call(url: str) -> None:
    schema = {"name": "weather", "schema": Weather.model_json_schema(), "strict": True}
    shape = {"type": "json_schema", "json_schema": schema}
    assert check(create(url, response_format=shape, tool_choice="required").choices[0].message)
    message = create(url, response_format=shape, tool_choice="none").choices[0].message
    assert not message.tool_calls
    Weather.model_validate_json(message.content)


def format_streamed_beside_tools(url: str) -> None:
    with client(url).chat.completions.stream(**body(tools=_strict(), response_format=Weather, seed=1)) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert check(message) or isinstance(message.parsed, Weather)


def _strict() -> list[dict[str, Any]]:
    return [tool | {"function": tool["function"] | {"strict": True}} for tool in CHAT_TOOLS]


def strict_pydantic_tool(url: str) -> None:
    tools = [openai.pydantic_function_tool(Weather)]
    answer = client(url).chat.completions.parse(**body(tools=tools, tool_choice="required"))
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Weather)


def stream_helper(url: str) -> None:
    with client(url).chat.completions.stream(**body(tools=_strict(), tool_choice="required")) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert check(message)
