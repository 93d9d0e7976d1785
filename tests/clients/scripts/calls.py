"""Requests for every library of an endpoint.

Each function is a script of every module that imports this one, and runs with all its ``api``.
"""

import asyncio
import json

from tests.clients.scripts.apis import Api
from tests.clients.scripts.common import CHAT_TOOLS, QUESTION, TRIES, Weather, check_calls

_GET_TIME = {"type": "function", "function": {"name": "get_time"}}
_STRICT = [tool | {"function": tool["function"] | {"strict": True}} for tool in CHAT_TOOLS]
_BOTH = (False, True)  # streamed or not


def plain_answer(api: Api) -> None:
    for stream in _BOTH:
        seen = [api.ask(tools=None, stream=stream) for _ in range(TRIES)]
        assert any(each.content for each in seen)
        assert not any(map(api.check, seen))


def auto(api: Api) -> None:
    for number in range(4):
        api.check(api.ask(choice="auto", stream=number % 2 == 1))


def required(api: Api) -> None:
    for stream in _BOTH:
        assert api.check(api.ask(choice="required", stream=stream))


def named(api: Api) -> None:
    for stream in _BOTH:
        seen = api.ask(choice=_GET_TIME, stream=stream)  # its reason is stop, as OpenAI's
        assert set(check_calls(seen.calls)) == {"get_time"}


def none(api: Api) -> None:
    for _ in range(3):
        assert not api.check(api.ask(choice="none"))


def one_call_at_a_time(api: Api) -> None:
    for _ in range(3):
        assert len(api.check(api.ask(choice="required", parallel_tool_calls=False))) == 1


def allowed_tools(api: Api) -> None:
    for mode in () if api.endpoint == "messages" else ("required", "auto"):  # messages have no such choice
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [_GET_TIME]}}
        for _ in range(3):
            names = api.check(api.ask(choice=choice))
            assert set(names) <= {"get_time"}
            assert names or mode == "auto"


def several_turns(api: Api) -> None:
    """The library's own answers go back, with results in each form."""
    field, _ = api.history
    dialog, called = [*api.body()[field]], 0
    text = {"type": "input_text" if api.endpoint == "responses" else "text", "text": "7 degrees"}
    for content in ("7 degrees", [text], ""):
        found = api.functions.create(**api.body(choice="required", native={field: dialog}))
        called += len(api.check(api.read(found), called))
        dialog += api.turn(found, content)
    last = api.ask(choice="none", native={field: dialog})
    assert last.content and not api.check(last)


def foreign_ids_in_the_history(api: Api) -> None:
    field, dialog = api.history
    assert api.check(api.ask(choice="required", native={field: dialog}), 1)


def strict_or_not(api: Api) -> None:
    for strict in (True, False, None):
        tools = [tool | {"function": tool["function"] | {"strict": strict}} for tool in CHAT_TOOLS]
        assert api.check(api.ask(tools=tools, choice="required"))


def usual_extras(api: Api) -> None:
    body = api.body(choice="required", native=api.extras)
    if "max_completion_tokens" in body:
        del body["max_tokens"]
    assert api.check(api.read(api.functions.create(**body)))


def parsed_format(api: Api) -> None:
    history = [
        {"role": "assistant", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": _CALL["id"], "content": "1"},
    ]
    for messages in (QUESTION, [*QUESTION, *history]):
        _, parsed = api.parse(tools=None, messages=messages)
        assert isinstance(parsed, Weather)


_CALL = {
    "id": "functions.get_time:0",
    "type": "function",
    "function": {"name": "get_time", "arguments": '{"zone":"UTC"}'},
}


def parsed_format_beside_tools(api: Api) -> None:
    """Calls and parsed answers come, each within some tries."""
    kinds = set[bool]()
    for _ in range(48):  # the model has no preference, but may write the same kind some times in a row
        seen, parsed = api.parse(tools=_STRICT)
        names = api.check(seen)
        assert names or isinstance(parsed, Weather)
        kinds.add(bool(names))
        if len(kinds) == 2:
            return
    raise AssertionError("either only calls or only answers")


def json_object_beside_tools(api: Api) -> None:
    for _ in range(0 if api.endpoint == "messages" else 4):  # messages have no such form
        seen = api.ask(response_format={"type": "json_object"})
        assert api.check(seen) or isinstance(json.loads(seen.content), dict)


def format_beside_a_required_call(api: Api) -> None:
    schema = {"name": "weather", "schema": Weather.model_json_schema(), "strict": True}
    form = {"type": "json_schema", "json_schema": schema}
    assert api.check(api.ask(choice="required", response_format=form))
    seen = api.ask(choice="none", response_format=form)
    assert not api.check(seen)
    Weather.model_validate_json(seen.content)


def stream_helper(api: Api) -> None:
    kinds, seen, _ = api.helped(tools=_STRICT, choice="required")
    assert api.check(seen)
    assert kinds & {"tool_calls.function.arguments.done", "response.function_call_arguments.done", "input_json"}, kinds
    _, seen, parsed = api.helped(tools=_STRICT, is_parsed=True)
    assert api.check(seen) or isinstance(parsed, Weather)


async def cancelled_stream_and_eight_at_once(api: Api) -> None:
    body = api.body(choice="required")
    stream = await api.later.create(**body, stream=True)
    events = 0
    async for _ in stream:
        events += 1
        if events == 8:  # the call has begun, and is not over
            break
    await stream.close()
    for found in await asyncio.gather(*(api.later.create(**body) for _ in range(8))):
        assert api.check(api.read(found))


def a_bad_schema_is_a_bad_request(api: Api) -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}
    for stream in _BOTH:
        try:
            api.ask(tools=[{"type": "function", "function": function}], choice="required", stream=stream)
        except api.refused as error:
            assert "no value satisfies" in str(error), error
        else:
            raise AssertionError("accepted")
