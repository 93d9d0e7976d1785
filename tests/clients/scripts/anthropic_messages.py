"""Anthropic's client on messages."""

import contextlib
from typing import Any

import anthropic

from tests.clients.scripts import calls  # noqa: F401 - scripts of this module too
from tests.clients.scripts.apis import Api, messages
from tests.clients.scripts.common import MESSAGES_TOOLS

_ANY = {"tool_choice": {"type": "any"}}
EACH: Any = {"api": lambda url: [messages(url)]}


def texts_of_a_stream(api: Api) -> None:
    with api.functions.stream(**api.body(tools=None)) as stream:
        written = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert written == "".join(block.text for block in message.content if block.type == "text")


def events_of_a_stream(api: Api) -> None:
    kinds = [event.type for event in api.functions.create(**api.body(choice="required"), stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")


def thinking(api: Api) -> None:
    for kind in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}):
        native = {"thinking": kind, "max_tokens": 2048}
        for stream in (False, True):
            api.check(api.ask(stream=stream, native=native))


def counted_tokens(api: Api) -> None:
    body = api.body(tools=None)
    del body["max_tokens"]
    without = api.functions.count_tokens(**body).input_tokens
    counted = api.functions.count_tokens(**body, tools=MESSAGES_TOOLS).input_tokens
    assert counted == api.functions.create(**api.body()).usage.input_tokens > without > 0
    more: Any = {"tools": MESSAGES_TOOLS, "tool_choice": {"type": "auto"}, "system": "s"}
    assert api.functions.count_tokens(**body, **more).input_tokens > without


def fields_of_tools(api: Api) -> None:
    for more in ({"cache_control": {"type": "ephemeral"}}, {"type": "custom", "eager_input_streaming": True}):
        tools = [tool | more for tool in MESSAGES_TOOLS]
        assert api.check(api.ask(native={"tools": tools} | _ANY))


def tools_of_the_clients_own_kinds(api: Api) -> None:
    """Tools without a schema, which stock vLLM refuses too: the client gets a bad request and no other error."""
    web = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    with contextlib.suppress(anthropic.BadRequestError):
        api.ask(native={"tools": [*MESSAGES_TOOLS, web]})


def _beta(url: str) -> Any:
    return messages(url).functions._client.beta.messages


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

    body = messages(url).body(native={"tools": [get_weather]})
    runner = _beta(url).tool_runner(**body, max_iterations=4)
    assert all(message.stop_reason in {"tool_use", "end_turn"} for message in runner)


def beta_messages(url: str) -> None:
    api = messages(url)
    found = _beta(url).create(**api.body(choice="required"), betas=["interleaved-thinking-2025-05-14"])
    assert api.check(api.read(found))
