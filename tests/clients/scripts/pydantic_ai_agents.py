"""Pydantic AI, each script on chat completions, the Responses API and messages."""

from collections.abc import Iterator
from typing import Any

import pydantic_ai
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput, UnexpectedModelBehavior
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.clients.scripts.common import KEY, MODEL, TRIES, Weather, find, get_weather

_QUESTION = "How warm is it in Oslo?"
_LIMITS = UsageLimits(request_limit=60)
_SETTINGS: Any = {"max_tokens": 600, "timeout": 60}


def _models(url: str) -> Iterator[Any]:
    """Pydantic AI has to be told that messages of a model that it does not know take an answer's schema."""
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    yield OpenAIChatModel(MODEL, provider=provider)
    yield OpenAIResponsesModel(MODEL, provider=provider)
    profile: Any = {"supports_json_schema_output": True}
    yield AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=KEY), profile=profile)


EACH = {"model": _models}


_TOOLS = (get_weather, find)


def _agent(model: Any, **fields: Any) -> Any:
    fields = {"retries": 8, "model_settings": _SETTINGS} | fields
    return Agent(model, **fields)


async def _run(model: Any, question: str = _QUESTION, history: Any = None, **fields: Any) -> Any:
    return await _agent(model, **fields).run(question, message_history=history, usage_limits=_LIMITS)


def _parts(result: Any, kind: str) -> list[Any]:
    return [part for message in result.all_messages() for part in message.parts if part.part_kind == kind]


async def plain_and_tools(model: Any) -> None:
    for tools in ((), _TOOLS, _TOOLS, _TOOLS):
        result = await _run(model, tools=tools)
        assert isinstance(result.output, str)
        assert {part.tool_name for part in _parts(result, "tool-call")} <= {"get_weather", "find"}


_OUTPUTS: list[tuple[Any, Any, tuple[type, ...]]] = [
    (Weather, (), (Weather,)),
    (ToolOutput(Weather, strict=True), _TOOLS, (Weather,)),
    ([Weather, int, bool], _TOOLS, (Weather, int, bool)),
    ([str, Weather], (), (str, Weather)),
    (NativeOutput(Weather), (), (Weather,)),
    *[(NativeOutput(Weather), _TOOLS, (Weather,))] * 3,
]


async def output(model: Any) -> None:
    """No call is sent back to the model: each one has valid arguments."""
    for output_type, tools, types in _OUTPUTS:
        result = await _run(model, output_type=output_type, tools=tools)
        assert isinstance(result.output, types)
        if str not in types:  # an empty text is asked for again
            assert not _parts(result, "retry-prompt"), result.all_messages()


async def prompted_output(model: Any) -> None:
    """The model may write any JSON object, so an answer of another form is its own fault, and is asked for again."""
    for tools_ in ((), _TOOLS):
        try:
            await _run(model, output_type=PromptedOutput(Weather), tools=tools_, retries=2)
        except UnexpectedModelBehavior as error:
            assert "output" in str(error), error


async def streamed_text(model: Any) -> None:
    written: list[str] = []
    for _ in range(TRIES):
        async with _agent(model, tools=_TOOLS).run_stream(_QUESTION, usage_limits=_LIMITS) as stream:
            written += [piece async for piece in stream.stream_text(delta=True)]
    assert written


async def streamed_native_output_beside_tools(model: Any) -> None:
    async with _agent(model, output_type=NativeOutput(Weather), tools=_TOOLS).run_stream(
        _QUESTION, usage_limits=_LIMITS
    ) as stream:
        async for _ in stream.stream_output():
            pass
        assert isinstance(await stream.get_output(), Weather)


async def streamed_events(model: Any) -> None:
    seen: list[Any] = []  # a turn that ends with its first token has no events, and Pydantic AI asks again
    async with _agent(model, tools=_TOOLS).iter(_QUESTION, usage_limits=_LIMITS) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    seen += [event async for event in events]
    assert seen
    assert isinstance(run.result.output, str)


async def history(url: str) -> None:
    """On one endpoint, and from each on the next."""
    messages: Any = []
    for model in _models(url):
        first = await _run(model, tools=_TOOLS)
        second = await _run(model, "And in Bergen?", first.all_messages(), tools=_TOOLS)
        assert isinstance(second.output, str)
    for model in [*_models(url), *_models(url)]:
        messages = (await _run(model, history=messages, tools=_TOOLS)).all_messages()


async def one_call_at_a_time(model: Any) -> None:
    result = await _run(model, tools=_TOOLS, model_settings=_SETTINGS | {"parallel_tool_calls": False})
    for message in result.all_messages():
        assert sum(part.part_kind == "tool-call" for part in message.parts) <= 1


async def failing_tool(model: Any) -> None:
    async def broken(city: str) -> str:
        """Fail the first time."""
        if not failed:
            failed.append(city)
            raise pydantic_ai.ModelRetry("try again")
        return "7"

    failed: list[str] = []
    assert isinstance((await _run(model, tools=[broken], output_type=str)).output, str)
