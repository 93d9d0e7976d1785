"""OpenAI's client on the Responses API."""

import asyncio
import json
from typing import Any

import openai

from tests.clients.scripts.common import MODEL, RESPONSES_TOOLS, Weather, check_both_kinds, check_call, check_ids
from tests.clients.scripts.openai_client import async_client, client

_OTHER_KINDS: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "local_shell"},
    {"type": "custom", "name": "apply_patch", "description": "A patch.", "format": {"type": "text"}},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
]


def _body(**fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": "How warm is it?", "tools": RESPONSES_TOOLS, "max_output_tokens": 600} | fields
    return {name: value for name, value in body.items() if value is not ...}


def _create(url: str, **fields: Any) -> Any:
    return client(url).responses.create(**_body(**fields))


def _check(response: Any, first: int = 0) -> list[str]:
    """Check the calls of a response and return the tools' names."""
    calls = [item for item in response.output if item.type in {"function_call", "custom_tool_call"}]
    for call in calls:
        if call.type == "function_call":
            check_call(call.name, call.arguments)
    check_ids([(call.call_id, call.name) for call in calls], first)
    return [call.name for call in calls]


def _results(response: Any) -> list[dict[str, Any]]:
    """A result of each call."""
    calls = (item for item in response.output if item.type == "function_call")
    return [{"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"} for call in calls]


def plain_answer(url: str) -> None:
    response = _create(url, tools=..., instructions="Be brief.")
    assert response.status == "completed"
    assert response.output_text


def streamed_answer(url: str) -> None:
    events = list(_create(url, tools=..., stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    written = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert written == events[-1].response.output_text


def auto(url: str) -> None:
    for _ in range(4):
        response = _create(url)
        assert _check(response) or response.output_text is not None


def required(url: str) -> None:
    assert _check(_create(url, tool_choice="required"))


def required_streamed(url: str) -> None:
    events = list(_create(url, tool_choice="required", stream=True))
    assert _check(events[-1].response)
    written: dict[str, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            written[event.item_id] = written.get(event.item_id, "") + event.delta
    items = (event.item for event in events if event.type == "response.output_item.done")
    done = [item for item in items if item.type == "function_call"]
    assert [written[item.id] for item in done] == [item.arguments for item in done]


def named(url: str) -> None:
    assert set(_check(_create(url, tool_choice={"type": "function", "name": "get_time"}))) == {"get_time"}


def none(url: str) -> None:
    for _ in range(3):
        response = _create(url, tool_choice="none")
        assert not _check(response)
        assert "<|tool_call" not in response.output_text


def allowed_tools(url: str) -> None:
    for mode in ("required", "auto"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "get_time"}]}
        names = _check(_create(url, tool_choice=choice))
        assert set(names) <= {"get_time"}
        assert names or mode == "auto"


def one_call_at_a_time(url: str) -> None:
    for _ in range(3):
        assert len(_check(_create(url, tool_choice="required", parallel_tool_calls=False))) == 1


def several_turns(url: str) -> None:
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "How warm is it?"}]}]
    called = 0
    for _ in range(3):
        response = _create(url, input=items, tool_choice="required")
        called += len(_check(response, called))
        items += [*response.output, *_results(response)]
    assert _create(url, input=items, tool_choice="none").output_text


def items_of_a_history(url: str) -> None:
    """Items as agents send them back, with identifiers of another form and results in parts."""
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "How warm is it?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": None},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_time", "arguments": '{"zone": "UTC"}', "status": "completed"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "noon"}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Noon.", "annotations": []}]},
        {"role": "user", "content": "And the weather?"},
    ]  # fmt: skip
    assert _check(_create(url, input=items, tool_choice="required"), 1)


def previous_response(url: str) -> None:
    first = _create(url, tool_choice="required", store=True)
    called = len(_check(first))
    second = _create(url, input=_results(first), previous_response_id=first.id, tool_choice="required", store=True)
    assert _check(second, called)


def parsed_format(url: str) -> None:
    response = client(url).responses.parse(**_body(tools=..., text_format=Weather))
    assert isinstance(response.output_parsed, Weather)


def parsed_format_beside_tools(url: str) -> None:
    def ask(_: int) -> tuple[list[str], Any]:
        response = client(url).responses.parse(**_body(text_format=Weather))
        return _check(response), response.output_parsed

    check_both_kinds(ask)


def json_object_beside_tools(url: str) -> None:
    for _ in range(4):
        response = _create(url, text={"format": {"type": "json_object"}})
        assert _check(response) or isinstance(json.loads(response.output_text), dict)


def strict_pydantic_tool(url: str) -> None:
    tool = openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}
    response = client(url).responses.parse(**_body(tools=[tool], tool_choice="required"))
    for item in response.output:
        if item.type == "function_call":
            assert Weather.model_validate(item.parsed_arguments)


def strict_false(url: str) -> None:
    tools = [tool | {"strict": False} for tool in RESPONSES_TOOLS]
    for _ in range(3):
        assert _check(_create(url, tools=tools, tool_choice="required"))


def other_kinds_of_tools(url: str) -> None:
    for _ in range(3):
        _check(_create(url, tools=[*RESPONSES_TOOLS, *_OTHER_KINDS]))
    for kind in _OTHER_KINDS:
        called = {item.type for item in _create(url, tools=[*RESPONSES_TOOLS, kind], tool_choice="required").output}
        assert called & {"function_call", "custom_tool_call"}


def only_other_kinds_of_tools(url: str) -> None:
    assert _create(url, tools=[{"type": "web_search"}]).status == "completed"


def namespaces(url: str) -> None:
    clock = {"type": "function", "name": "get_time", "parameters": RESPONSES_TOOLS[1]["parameters"], "strict": False}
    namespace = {"type": "namespace", "name": "mcp__clock", "description": "Clocks.", "tools": [clock]}
    assert _create(url, tools=[RESPONSES_TOOLS[0], namespace]).status == "completed"


def stream_helper(url: str) -> None:
    with client(url).responses.stream(**_body(tool_choice="required")) as stream:
        kinds = {event.type for event in stream}
        response = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds, kinds
    assert _check(response)


def stream_helper_with_a_format(url: str) -> None:
    with client(url).responses.stream(**_body(text_format=Weather)) as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    assert _check(response) or isinstance(response.output_parsed, Weather)


async def cancelled_stream_and_several_at_once(url: str) -> None:
    async with async_client(url) as opened:
        fields = _body(tool_choice="required")
        stream = await opened.responses.create(**fields, stream=True)
        async for event in stream:
            if event.type == "response.function_call_arguments.delta":
                break
        await stream.close()
        for response in await asyncio.gather(*(opened.responses.create(**fields) for _ in range(4))):
            assert _check(response)


def usual_extras(url: str) -> None:
    """Fields that agents send with every request."""
    fields: dict[str, Any] = {
        "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False,
        "metadata": {"a": "b"}, "temperature": 0.7, "top_p": 0.9, "truncation": "disabled", "prompt_cache_key": "k",
        "text": {"verbosity": "low"}, "user": "u",
    }  # fmt: skip
    assert _check(_create(url, tool_choice="required", **fields))


def a_bad_schema_is_a_bad_request(url: str) -> None:
    tool = {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}
    try:
        _create(url, tools=[tool], tool_choice="required")
    except openai.BadRequestError as error:
        assert "no value satisfies" in error.message, error.message
    else:
        raise AssertionError("accepted")
