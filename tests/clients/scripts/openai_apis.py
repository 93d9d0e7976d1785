"""OpenAI's client on chat completions, on the Responses API and on completions."""

import json
from collections.abc import Iterator
from typing import Any

import openai

from tests.clients.scripts import calls  # noqa: F401 - scripts of this module too
from tests.clients.scripts.apis import Api, chat, client, responses
from tests.clients.scripts.common import CHAT_TOOLS, MODEL, QUESTION, RESPONSES_TOOLS, TRIES, WEATHER_SCHEMA, Weather
from tests.kit.answers import whole


def _apis(url: str) -> Iterator[Api]:
    yield chat(url)
    yield responses(url)


EACH: Any = {
    "api": _apis,
    "chat_api": lambda url: [chat(url)],
    "responses_api": lambda url: [responses(url)],
}
_OTHER_KINDS: list[dict[str, Any]] = [
    {"type": "web_search"},
    {"type": "local_shell"},
    {"type": "custom", "name": "apply_patch", "description": "A patch.", "format": {"type": "text"}},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
]


def strict_pydantic_tool(api: Api) -> None:
    answer = api.functions.parse(**api.body(tools=[openai.pydantic_function_tool(Weather)], choice="required"))
    if api.endpoint == "chat":
        made = [call.function.parsed_arguments for call in answer.choices[0].message.tool_calls]
        assert all(isinstance(each, Weather) for each in made)
    else:
        made = [item.parsed_arguments for item in answer.output if item.type == "function_call"]
        assert all(Weather.model_validate(each) for each in made)
    assert made


def usage(chat_api: Api) -> None:
    assert chat_api.functions.create(**chat_api.body(tools=None)).usage.completion_tokens > 0
    options = {"include_usage": True}
    *_, last = chat_api.functions.create(**chat_api.body(tools=None), stream=True, stream_options=options)
    assert last.usage.completion_tokens > 0


def null_choice(chat_api: Api) -> None:
    for _ in range(4):
        chat_api.check(chat_api.ask(choice=None))


def tools_without_parameters_or_description(chat_api: Api) -> None:
    tools = [{"type": "function", "function": {"name": "ping"}}]
    (_, _, arguments), *_ = chat_api.ask(tools=tools, choice="required").calls
    assert isinstance(json.loads(arguments), dict)
    function = {"name": "get_weather", "description": None, "parameters": WEATHER_SCHEMA, "strict": None}
    assert chat_api.check(chat_api.ask(tools=[{"type": "function", "function": function}], choice="required"))


def legacy_functions(chat_api: Api) -> None:
    functions = [tool["function"] for tool in CHAT_TOOLS]
    create = chat_api.functions.create
    answer = create(**chat_api.body(tools=None), functions=functions, function_call="auto")
    assert answer.choices[0].message.content is not None
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "function_call": {"name": "get_time", "arguments": "{}"}},
        {"role": "function", "name": "get_time", "content": "noon"},
    ]
    assert create(**chat_api.body(messages=messages)).choices[0].finish_reason


def several_choices(chat_api: Api) -> None:
    answer = chat_api.functions.create(**chat_api.body(choice="required", n=3, logprobs=True, top_logprobs=2))
    assert [bool(chat_api.check(seen)) for seen in whole("chat", answer.model_dump())] == [True] * 3
    assert all(choice.logprobs.content for choice in answer.choices)


def raw_response(chat_api: Api) -> None:
    raw = chat_api.functions.with_raw_response.create(**chat_api.body(choice="required"))
    assert raw.status_code == 200
    assert chat_api.check(chat_api.read(raw.parse()))


def sampling_fields(chat_api: Api) -> None:
    sampling = {"min_p": 0.01, "top_k": 40, "repetition_penalty": 1.1}
    for extra in ({"bad_words": ["Oslo"]}, {"thinking_token_budget": 20}, sampling):
        assert chat_api.check(chat_api.ask(choice="required", extra_body=extra)), extra
    assert chat_api.check(chat_api.ask(choice="required", logit_bias={"5": -100, "6": 100}))


def events_of_a_stream(responses_api: Api) -> None:
    """The pieces of texts and of arguments add up to those of the last event."""
    for choice in ("none", "required"):
        events = list(responses_api.functions.create(**responses_api.body(choice=choice), stream=True))
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        written: dict[str, str] = {}
        for event in events:
            if event.type in {"response.output_text.delta", "response.function_call_arguments.delta"}:
                written[event.item_id] = written.get(event.item_id, "") + event.delta
        items = [event.item for event in events if event.type == "response.output_item.done"]
        expected = {item.id: item.arguments for item in items if item.type == "function_call"}
        expected |= {item.id: item.content[0].text for item in items if item.type == "message"}
        assert written == expected
        assert [item.id for item in events[-1].response.output] == [item.id for item in items]


def previous_response(responses_api: Api) -> None:
    create, body = responses_api.functions.create, responses_api.body(choice="required")
    first = create(**body, store=True)
    called = len(responses_api.check(responses_api.read(first)))
    results = [item for item in responses_api.turn(first, "7 degrees") if isinstance(item, dict)]
    second = create(**body | {"input": results}, previous_response_id=first.id, store=True)
    assert responses_api.check(responses_api.read(second), called)


def other_kinds_of_tools(responses_api: Api) -> None:
    create, body = responses_api.functions.create, responses_api.body()
    for _ in range(3):
        called = responses_api.read(create(**body | {"tools": [*RESPONSES_TOOLS, *_OTHER_KINDS]})).calls
        assert [call[0] for call in called] == [f"functions.{call[1]}:{at}" for at, call in enumerate(called)]
    for kind in _OTHER_KINDS:
        answer = create(**body | {"tools": [*RESPONSES_TOOLS, kind]}, tool_choice="required")
        assert {item.type for item in answer.output} & {"function_call", "custom_tool_call"}
    assert create(**body | {"tools": [{"type": "web_search"}]}).status == "completed"


def namespaces(responses_api: Api) -> None:
    clock = {"type": "function", "name": "get_time", "parameters": RESPONSES_TOOLS[1]["parameters"], "strict": False}
    namespace = {"type": "namespace", "name": "mcp__clock", "description": "Clocks.", "tools": [clock]}
    body = responses_api.body() | {"tools": [RESPONSES_TOOLS[0], namespace]}
    assert responses_api.functions.create(**body).status == "completed"


def completions(url: str) -> None:
    create = client(url).completions.create
    answers = (create(model=MODEL, prompt="Oslo is", max_tokens=20) for _ in range(TRIES))
    assert any(answer.choices[0].text for answer in answers)
    stream = create(model=MODEL, prompt=["a", "b"], max_tokens=20, stream=True, echo=False)
    assert {chunk.choices[0].index for chunk in stream if chunk.choices} == {0, 1}


def models(url: str) -> None:
    assert MODEL in {model.id for model in client(url).models.list()}
