"""Pydantic AI, each script on chat completions, the Responses API and messages."""

from collections.abc import Iterator
from typing import Any, Literal

import pydantic_ai
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput, UnexpectedModelBehavior
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.clients.scripts.common import KEY, MODEL, Weather

_QUESTION = "How warm is it in Oslo?"
_LIMITS = UsageLimits(request_limit=60)
_SETTINGS: Any = {"max_tokens": 600, "timeout": 60}


def _openai_models(url: str) -> Iterator[Any]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    yield OpenAIChatModel(MODEL, provider=provider)
    yield OpenAIResponsesModel(MODEL, provider=provider)


def _models(url: str) -> Iterator[Any]:
    yield from _openai_models(url)
    yield AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=KEY))


def _native_models(url: str) -> Iterator[Any]:
    """As above; Pydantic AI has to be told that messages of a model that it does not know take an answer's schema."""
    yield from _openai_models(url)
    profile: Any = {"supports_json_schema_output": True}
    yield AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=KEY), profile=profile)


def _get_weather(city: str, units: Literal["celsius", "fahrenheit"]) -> str:
    """Return the weather of a city."""
    assert units in {"celsius", "fahrenheit"}
    return f"{city[:20]}: 7"


def _find(place: str, limit: int = 3) -> list[str]:
    """Find what lies near a place."""
    assert isinstance(limit, int)
    return [place[:20]]


_TOOLS = (_get_weather, _find)


def _agent(model: Any, **fields: Any) -> Any:
    fields = {"retries": 8, "model_settings": _SETTINGS} | fields
    return Agent(model, **fields)


def _calls(result: Any) -> list[Any]:
    return [part for message in result.all_messages() for part in message.parts if part.part_kind == "tool-call"]


def _no_retries(result: Any) -> None:
    """Require that no call was sent back to the model: every one had valid arguments."""
    parts = [part for message in result.all_messages() for part in message.parts if part.part_kind == "retry-prompt"]
    assert not parts, parts


async def plain(url: str) -> None:
    for model in _models(url):
        assert isinstance((await _agent(model).run(_QUESTION)).output, str)


async def tools(url: str) -> None:
    for model in _models(url):
        for _ in range(3):
            result = await _agent(model, tools=_TOOLS).run(_QUESTION, usage_limits=_LIMITS)
            assert isinstance(result.output, str)
            assert not [part for part in _calls(result) if part.tool_name not in {"_get_weather", "_find"}]


async def tool_output(url: str) -> None:
    for model in _models(url):
        result = await _agent(model, output_type=Weather).run(_QUESTION)
        assert isinstance(result.output, Weather)
        _no_retries(result)


async def tool_output_beside_tools(url: str) -> None:
    for model in _models(url):
        result = await _agent(model, output_type=ToolOutput(Weather, strict=True), tools=_TOOLS).run(
            _QUESTION, usage_limits=_LIMITS
        )
        assert isinstance(result.output, Weather)
        _no_retries(result)


async def tool_output_of_several_types(url: str) -> None:
    for model in _models(url):
        result = await _agent(model, output_type=[Weather, int, bool], tools=_TOOLS).run(
            _QUESTION, usage_limits=_LIMITS
        )
        assert isinstance(result.output, (Weather, int, bool))
        _no_retries(result)


async def text_or_tool_output(url: str) -> None:
    for model in _models(url):
        result = await _agent(model, output_type=[str, Weather]).run(_QUESTION)
        assert isinstance(result.output, (str, Weather))


async def native_output(url: str) -> None:
    for model in _native_models(url):
        result = await _agent(model, output_type=NativeOutput(Weather)).run(_QUESTION)
        assert isinstance(result.output, Weather)
        _no_retries(result)


async def native_output_beside_tools(url: str) -> None:
    for model in _native_models(url):
        for _ in range(3):
            result = await _agent(model, output_type=NativeOutput(Weather), tools=_TOOLS).run(
                _QUESTION, usage_limits=_LIMITS
            )
            assert isinstance(result.output, Weather)
            _no_retries(result)


async def prompted_output(url: str) -> None:
    """The model may write any JSON object, so an answer of another form is its own fault, and is asked for again."""
    for model in _models(url):
        for tools_ in ((), _TOOLS):
            try:
                await _agent(model, output_type=PromptedOutput(Weather), tools=tools_, retries=2).run(
                    _QUESTION, usage_limits=_LIMITS
                )
            except UnexpectedModelBehavior as error:
                assert "output" in str(error), error


async def streamed_text(url: str) -> None:
    for model in _models(url):
        async with _agent(model, tools=_TOOLS).run_stream(_QUESTION, usage_limits=_LIMITS) as stream:
            written = [piece async for piece in stream.stream_text(delta=True)]
        assert written


async def streamed_native_output_beside_tools(url: str) -> None:
    for model in _native_models(url):
        async with _agent(model, output_type=NativeOutput(Weather), tools=_TOOLS).run_stream(
            _QUESTION, usage_limits=_LIMITS
        ) as stream:
            async for _ in stream.stream_output():
                pass
            assert isinstance(await stream.get_output(), Weather)


async def streamed_events(url: str) -> None:
    for model in _models(url):
        async with _agent(model, tools=_TOOLS).iter(_QUESTION, usage_limits=_LIMITS) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as events:
                        assert [event async for event in events]
        assert isinstance(run.result.output, str)


async def history(url: str) -> None:
    for model in _models(url):
        agent = _agent(model, tools=_TOOLS)
        first = await agent.run(_QUESTION, usage_limits=_LIMITS)
        second = await agent.run("And in Bergen?", message_history=first.all_messages(), usage_limits=_LIMITS)
        assert isinstance(second.output, str)


async def history_of_one_endpoint_on_another(url: str) -> None:
    messages: Any = []
    for model in [*_models(url), *_models(url)]:
        result = await _agent(model, tools=_TOOLS).run(_QUESTION, message_history=messages, usage_limits=_LIMITS)
        messages = result.all_messages()


async def one_call_at_a_time(url: str) -> None:
    for model in _models(url):
        result = await _agent(model, tools=_TOOLS, model_settings=_SETTINGS | {"parallel_tool_calls": False}).run(
            _QUESTION, usage_limits=_LIMITS
        )
        for message in result.all_messages():
            assert sum(part.part_kind == "tool-call" for part in message.parts) <= 1


async def failing_tool(url: str) -> None:
    async def broken(city: str) -> str:
        """Fail the first time."""
        if not failed:
            failed.append(city)
            raise pydantic_ai.ModelRetry("try again")
        return "7"

    for model in _models(url):
        failed: list[str] = []
        assert isinstance(
            (await _agent(model, tools=[broken], output_type=str).run(_QUESTION, usage_limits=_LIMITS)).output, str
        )


async def thinking(url: str) -> None:
    for model in _models(url):
        settings = _SETTINGS | {
            "max_tokens": 2048,
            "openai_reasoning_effort": "low",
            "anthropic_thinking": {"type": "enabled", "budget_tokens": 1024},
        }
        result = await _agent(model, tools=_TOOLS, model_settings=settings).run(_QUESTION, usage_limits=_LIMITS)
        assert isinstance(result.output, str)
