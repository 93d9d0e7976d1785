"""The OpenAI Agents SDK, each script on chat completions and on the Responses API."""

from collections.abc import Iterator
from typing import Any

import agents
from pydantic import BaseModel

from tests.clients.scripts.apis import async_client
from tests.clients.scripts.common import MODEL, Weather, get_weather

_TURNS = 40  # the untrained model calls a tool in two of three turns
_QUESTION = "How warm is it in Oslo?"


class _Place(BaseModel):
    city: str
    country: str | None = None


_get_weather = agents.function_tool(get_weather)


@agents.function_tool(strict_mode=False)
def _find(place: _Place, limit: int = 3) -> str:
    """Find what lies near a place."""
    assert isinstance(place, _Place)
    assert isinstance(limit, int)
    return "nothing"


_TOOLS = [_get_weather, _find]


def _models(url: str) -> Iterator[Any]:
    agents.set_tracing_disabled(disabled=True)
    client = async_client(url)
    yield agents.OpenAIChatCompletionsModel(MODEL, client)
    yield agents.OpenAIResponsesModel(MODEL, client)


EACH: Any = {"model": _models, "responses_model": lambda url: [*_models(url)][1:]}


def _agent(model: Any, **fields: Any) -> Any:
    settings = agents.ModelSettings(**{"max_tokens": 500} | fields.pop("settings", {}))
    return agents.Agent(**{"name": "a", "model": model, "model_settings": settings} | fields)


async def _run(model: Any, **fields: Any) -> Any:
    return await agents.Runner.run(_agent(model, instructions="Be brief.", **fields), _QUESTION, max_turns=_TURNS)


def _calls(result: Any) -> int:
    return sum(item.type == "tool_call_item" for item in result.new_items)


async def plain_and_tools(model: Any) -> None:
    for tools in ([], _TOOLS, _TOOLS, _TOOLS):
        assert isinstance((await _run(model, tools=tools)).final_output, str)


async def required_and_named_tools(model: Any) -> None:
    for choice in ("required", "get_weather"):
        assert _calls(await _run(model, tools=[_get_weather], settings={"tool_choice": choice}))


async def one_call_at_a_time(model: Any) -> None:
    result = await _run(model, tools=_TOOLS, settings={"parallel_tool_calls": False, "tool_choice": "required"})
    for response in result.raw_responses:
        assert sum(item.type == "function_call" for item in response.output) <= 1


async def stop_on_first_tool(model: Any) -> None:
    required = {"tool_choice": "required"}
    result = await _run(model, tools=[_get_weather], tool_use_behavior="stop_on_first_tool", settings=required)
    assert str(result.final_output).endswith(": 7")


async def output_type(model: Any) -> None:
    assert isinstance((await _run(model, output_type=Weather)).final_output, Weather)
    loose = agents.AgentOutputSchema(_Place, strict_json_schema=False)
    assert isinstance((await _run(model, output_type=loose, tools=_TOOLS)).final_output, _Place)


async def output_type_beside_tools(url: str) -> None:
    results = [await _run(model, output_type=Weather, tools=_TOOLS) for model in _models(url) for _ in range(3)]
    assert all(isinstance(result.final_output, Weather) for result in results)
    assert any(map(_calls, results))


async def streamed(model: Any) -> None:
    for output in (str, Weather):
        agent = _agent(model, tools=_TOOLS, output_type=None if output is str else output)
        result = agents.Runner.run_streamed(agent, _QUESTION, max_turns=_TURNS)
        assert "raw_response_event" in {event.type async for event in result.stream_events()}
        assert isinstance(result.final_output, output)
    result = agents.Runner.run_streamed(agent, _QUESTION, max_turns=_TURNS)
    async for _ in result.stream_events():
        result.cancel()
    assert isinstance((await _run(model, tools=_TOOLS)).final_output, str)


async def handoffs_and_agents_as_tools(model: Any) -> None:
    other = _agent(model, name="other", settings={"max_tokens": 200})
    result = await _run(model, handoffs=[other], settings={"tool_choice": "required"})
    assert isinstance(result.final_output, str)
    assert result.last_agent.name == "other"
    tool = other.as_tool(tool_name="ask_other", tool_description="Ask.")
    assert _calls(await _run(model, tools=[tool], settings={"tool_choice": "required"}))


async def history_of_a_session(model: Any) -> None:
    agent = _agent(model, tools=_TOOLS, settings={"max_tokens": 300})
    session = agents.SQLiteSession("s")
    for question in (_QUESTION, "And in Bergen?"):
        result = await agents.Runner.run(agent, question, session=session, max_turns=_TURNS)
        assert isinstance(result.final_output, str)
    items = await session.get_items()
    assert isinstance((await agents.Runner.run(agent, items, max_turns=_TURNS)).final_output, str)


async def reasoning_and_extras(model: Any) -> None:
    settings = {
        "reasoning": {"effort": "low"}, "verbosity": "low", "store": False, "temperature": 0.8, "top_p": 0.9,
        "metadata": {"a": "b"}, "include_usage": True,
    }  # fmt: skip
    assert isinstance((await _run(model, tools=_TOOLS, settings=settings)).final_output, str)


async def hosted_tool_beside_functions(responses_model: Any) -> None:
    """Only the Responses API has hosted tools; the SDK refuses them on chat completions itself."""
    result = await _run(responses_model, tools=[_get_weather, agents.WebSearchTool()])
    assert isinstance(result.final_output, str)


async def conversation_by_previous_response(responses_model: Any) -> None:
    agent = _agent(responses_model, tools=[_get_weather], settings={"max_tokens": 300, "store": True})
    first = await agents.Runner.run(agent, _QUESTION, max_turns=_TURNS, auto_previous_response_id=True)
    second = await agents.Runner.run(agent, "And?", previous_response_id=first.last_response_id, max_turns=_TURNS)
    assert isinstance(second.final_output, str)
