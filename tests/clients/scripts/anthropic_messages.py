"""Anthropic's client on messages."""

import asyncio
import contextlib
from typing import Any

import anthropic

from tests.clients.scripts.common import (
    KEY,
    MESSAGES_TOOLS,
    MODEL,
    QUESTION,
    TIMEOUT,
    Weather,
    check_both_kinds,
    check_calls,
)

_BUDGET = {"type": "enabled", "budget_tokens": 1024}


def _client(url: str) -> Any:
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT)


def _body(**fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": QUESTION, "tools": MESSAGES_TOOLS, "max_tokens": 600} | fields
    return {name: value for name, value in body.items() if value is not ...}


def _create(url: str, **fields: Any) -> Any:
    return _client(url).messages.create(**_body(**fields))


def _check(message: Any, first: int = 0) -> list[str]:
    """Check the calls of a message and return the tools' names."""
    calls = [block for block in message.content if block.type == "tool_use"]
    assert (message.stop_reason == "tool_use") == bool(calls), message
    return check_calls([(call.id, call.name, call.input) for call in calls], first)


def plain_answer(url: str) -> None:
    message = _create(url, tools=..., system="Be brief.")
    assert message.content[0].text
    assert message.stop_reason == "end_turn"


def streamed_answer(url: str) -> None:
    with _client(url).messages.stream(**_body(tools=...)) as stream:
        written = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert written == "".join(block.text for block in message.content if block.type == "text")


def auto(url: str) -> None:
    for _ in range(4):
        _check(_create(url, tool_choice={"type": "auto"}))


def any_tool(url: str) -> None:
    assert _check(_create(url, tool_choice={"type": "any"}))


def any_tool_streamed(url: str) -> None:
    with _client(url).messages.stream(**_body(tool_choice={"type": "any"})) as stream:
        for _ in stream:
            pass
        assert _check(stream.get_final_message())


def raw_stream(url: str) -> None:
    kinds = [event.type for event in _create(url, tool_choice={"type": "any"}, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")


def one_tool(url: str) -> None:
    assert set(_check(_create(url, tool_choice={"type": "tool", "name": "get_time"}))) == {"get_time"}


def no_tool(url: str) -> None:
    assert not _check(_create(url, tool_choice={"type": "none"}))


def one_call_at_a_time(url: str) -> None:
    for _ in range(3):
        assert len(_check(_create(url, tool_choice={"type": "any", "disable_parallel_tool_use": True}))) == 1


def several_turns(url: str) -> None:
    messages: list[Any] = list(QUESTION)
    called = 0
    for turn in range(3):
        message = _create(url, messages=messages, tool_choice={"type": "any"})
        called += len(_check(message, called))
        contents = ("7 degrees", [{"type": "text", "text": "7 degrees"}], "")
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": contents[turn], "is_error": turn == 2}
            for block in message.content
            if block.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    assert _create(url, messages=messages, tool_choice={"type": "none"}).content


def foreign_ids_and_thinking_in_the_history(url: str) -> None:
    messages = [
        *QUESTION,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_01A", "name": "get_time", "input": {"zone": "UTC"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_01A"},
            {"type": "text", "text": "And the weather?", "cache_control": {"type": "ephemeral"}},
        ]},
    ]  # fmt: skip
    assert _check(_create(url, messages=messages, tool_choice={"type": "any"}), 1)


def thinking_budget(url: str) -> None:
    body = _body(thinking=_BUDGET, max_tokens=2048)
    _check(_client(url).messages.create(**body))
    with _client(url).messages.stream(**body) as stream:
        _check(stream.get_final_message())


def thinking_disabled_and_adaptive(url: str) -> None:
    for kind in ("disabled", "adaptive"):
        _check(_create(url, thinking={"type": kind}))


def counted_tokens(url: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": QUESTION}
    more: dict[str, Any] = {"tools": MESSAGES_TOOLS, "tool_choice": {"type": "auto"}, "system": "s"}
    with_tools = _client(url).messages.count_tokens(**body, **more)
    assert with_tools.input_tokens > _client(url).messages.count_tokens(**body).input_tokens > 0


def counted_tokens_are_those_of_the_answer(url: str) -> None:
    counted = _client(url).messages.count_tokens(model=MODEL, messages=QUESTION, tools=MESSAGES_TOOLS).input_tokens
    assert counted == _create(url).usage.input_tokens


def usual_extras(url: str) -> None:
    """Fields that agents send with every request."""
    fields: dict[str, Any] = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "metadata": {"user_id": "u"},
        "stop_sequences": ["\n\nHuman:"],
        "tools": [tool | {"cache_control": {"type": "ephemeral"}} for tool in MESSAGES_TOOLS],
        "extra_headers": {"anthropic-beta": "interleaved-thinking-2025-05-14"},
        "extra_query": {"beta": "true"},
        "extra_body": {"temperature": 1, "top_k": 40},
    }
    assert _check(_create(url, tool_choice={"type": "any"}, **fields))


def strict_tools(url: str) -> None:
    for strict in (True, False):
        tools = [tool | {"strict": strict} for tool in MESSAGES_TOOLS]
        assert _check(_create(url, tools=tools, tool_choice={"type": "any"}))


def eager_input_streaming(url: str) -> None:
    tools = [tool | {"type": "custom", "eager_input_streaming": True} for tool in MESSAGES_TOOLS]
    assert _check(_create(url, tools=tools, tool_choice={"type": "any"}))


def tools_of_the_clients_own_kinds(url: str) -> None:
    """Tools without a schema, which stock vLLM refuses too: the client gets a bad request and no other error."""
    with contextlib.suppress(anthropic.BadRequestError):
        _create(url, tools=[*MESSAGES_TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}])


def parsed_format(url: str) -> None:
    message = _client(url).messages.parse(**_body(tools=..., output_format=Weather))
    assert isinstance(message.parsed_output, Weather)


def parsed_format_beside_tools(url: str) -> None:
    def ask(_: int) -> tuple[list[str], Any]:
        message = _client(url).messages.parse(**_body(output_format=Weather))
        return _check(message), message.parsed_output

    check_both_kinds(ask)


def tool_runner(url: str) -> None:
    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """Return the weather of a city.

        Args:
            city: Its name.
            days: How many.
        """
        assert isinstance(days, int)
        return f"{city}: 7 degrees"

    runner = _client(url).beta.messages.tool_runner(**_body(tools=[get_weather]), max_iterations=4)
    assert all(message.stop_reason in {"tool_use", "end_turn"} for message in runner)


def beta_messages(url: str) -> None:
    betas = ["interleaved-thinking-2025-05-14"]
    assert _check(_client(url).beta.messages.create(**_body(tool_choice={"type": "any"}), betas=betas))


async def cancelled_stream_and_several_at_once(url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT) as client:
        body: Any = _body(tool_choice={"type": "any"})
        async with client.messages.stream(**body) as stream:
            async for event in stream:
                if event.type == "content_block_delta":
                    break
        for message in await asyncio.gather(*(client.messages.create(**body) for _ in range(4))):
            assert _check(message)


def a_bad_schema_is_a_bad_request(url: str) -> None:
    for stream in (False, True):
        try:
            tool = {"name": "f", "strict": True, "input_schema": {"type": "object", "not": {}}}
            _create(url, tools=[tool], tool_choice={"type": "any"}, stream=stream)
        except anthropic.BadRequestError as error:
            assert "no value satisfies" in str(error), error
        else:
            raise AssertionError("accepted")
