"""LangChain's chat models: OpenAI on chat completions and on the Responses API, and Anthropic."""

from collections.abc import Iterator
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.clients.scripts.common import KEY, MODEL, TIMEOUT, TRIES, Weather

_QUESTION = "How warm is it in Oslo?"
_RECURSION: Any = {"recursion_limit": 80}


@tool("get_weather")
def _get_weather(city: str, units: Literal["celsius", "fahrenheit"]) -> str:
    """Return the weather of a city."""
    assert units in {"celsius", "fahrenheit"}
    return f"{city[:20]}: 7"


@tool("find")
def _find(place: str, limit: int = 3) -> str:
    """Find what lies near a place."""
    assert isinstance(limit, int)
    return "nothing"


_TOOLS = [_get_weather, _find]


def _openai_models(url: str, **fields: Any) -> Iterator[Any]:
    shared: Any = {
        "model": MODEL, "base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0, "timeout": TIMEOUT,
        "max_tokens": 600,
    }  # fmt: skip
    yield ChatOpenAI(**shared | fields)
    yield ChatOpenAI(**shared | fields, use_responses_api=True)


def _models(url: str, **fields: Any) -> Iterator[Any]:
    yield from _openai_models(url, **fields)
    shared: Any = {
        "model": MODEL, "base_url": url, "api_key": KEY, "max_retries": 0, "timeout": TIMEOUT, "max_tokens": 600,
    }  # fmt: skip
    yield ChatAnthropic(**shared | fields)


def _check(message: Any) -> list[str]:
    """Check that calls have the arguments' types and return the tools' names."""
    assert not message.invalid_tool_calls, message.invalid_tool_calls
    for call in message.tool_calls:
        {"get_weather": _get_weather, "find": _find}[call["name"]].invoke(call["args"])
    return [call["name"] for call in message.tool_calls]


def invoke(url: str) -> None:
    for model in _models(url):
        question = [SystemMessage("Be brief."), HumanMessage(_QUESTION)]
        assert any(model.invoke(question).text for _ in range(TRIES))


def stream(url: str) -> None:
    for model in _models(url):
        assert any(chunk.text for _ in range(TRIES) for chunk in model.stream(_QUESTION))


def tools_auto(url: str) -> None:
    for model in _models(url):
        for _ in range(3):
            _check(model.bind_tools(_TOOLS).invoke(_QUESTION))


def tools_required(url: str) -> None:
    for model in _models(url):
        assert _check(model.bind_tools(_TOOLS, tool_choice="any").invoke(_QUESTION))


def tools_named(url: str) -> None:
    for model in _models(url):
        assert set(_check(model.bind_tools(_TOOLS, tool_choice="find").invoke(_QUESTION))) == {"find"}


def tools_none(url: str) -> None:
    for model in _openai_models(url):
        assert not _check(model.bind_tools(_TOOLS, tool_choice="none").invoke(_QUESTION))


def tools_strict(url: str) -> None:
    for strict in (True, False):
        for model in _openai_models(url):
            assert _check(model.bind_tools([_get_weather], tool_choice="any", strict=strict).invoke(_QUESTION))


def one_call_at_a_time(url: str) -> None:
    for model in _models(url):
        assert (
            len(_check(model.bind_tools(_TOOLS, tool_choice="any", parallel_tool_calls=False).invoke(_QUESTION))) == 1
        )


def streamed_calls(url: str) -> None:
    for model in _models(url):
        whole: Any = None
        for chunk in model.bind_tools(_TOOLS, tool_choice="any").stream(_QUESTION):
            whole = chunk if whole is None else whole + chunk
        assert _check(whole)


def several_turns(url: str) -> None:
    for model in _models(url):
        bound = model.bind_tools(_TOOLS, tool_choice="any")
        messages: list[Any] = [HumanMessage(_QUESTION)]
        for _ in range(3):
            message = bound.invoke(messages)
            assert _check(message)
            messages.append(message)
            messages += [ToolMessage("7 degrees", tool_call_id=call["id"]) for call in message.tool_calls]
        assert model.bind_tools(_TOOLS).invoke(messages) is not None


def structured_output_by_function_calling(url: str) -> None:
    for model in _models(url):
        assert isinstance(model.with_structured_output(Weather, method="function_calling").invoke(_QUESTION), Weather)


def structured_output_by_json_schema(url: str) -> None:
    for model in _models(url):
        assert isinstance(model.with_structured_output(Weather, method="json_schema").invoke(_QUESTION), Weather)


def structured_output_by_json_mode(url: str) -> None:
    """The model may write any JSON object: that it parses is all that is required."""
    for model in _openai_models(url):
        found = model.with_structured_output(Weather.model_json_schema(), method="json_mode").invoke(_QUESTION)
        assert isinstance(found, dict)


def structured_output_with_the_raw_message(url: str) -> None:
    for model in _models(url):
        found = model.with_structured_output(Weather, include_raw=True).invoke(_QUESTION)
        assert isinstance(found["parsed"], Weather), found


def structured_output_beside_tools(url: str) -> None:
    """OpenAI's form of an agent with an answer type: each answer is a call, or an instance."""
    for model in _openai_models(url):
        bound = model.with_structured_output(
            Weather, method="json_schema", tools=[_get_weather], strict=True, include_raw=True
        )
        for _ in range(4):
            found = bound.invoke(_QUESTION)
            assert _check(found["raw"]) or isinstance(found["parsed"], Weather), found


def structured_output_streamed(url: str) -> None:
    for model in _openai_models(url):
        (*_, last) = model.with_structured_output(Weather, method="function_calling").stream(_QUESTION)
        assert isinstance(last, Weather)


async def batches(url: str) -> None:
    for model in _models(url):
        for message in await model.bind_tools(_TOOLS, tool_choice="any").abatch([_QUESTION] * 4):
            assert _check(message)


async def events_of_a_stream(url: str) -> None:
    for model in _models(url):
        kinds = {event["event"] async for event in model.bind_tools(_TOOLS).astream_events(_QUESTION)}
        assert "on_chat_model_end" in kinds


def agent(url: str) -> None:
    for model in _models(url):
        found: Any = create_agent(model, _TOOLS).invoke({"messages": [HumanMessage(_QUESTION)]}, _RECURSION)
        assert not found["messages"][-1].tool_calls


def agent_with_an_answer_type(url: str) -> None:
    """The answer is a call here: an untrained model may make two of them, or others beside it, and then there is none."""
    for model in _models(url):
        agent: Any = create_agent(model, _TOOLS, response_format=Weather)
        answers = (agent.invoke({"messages": [HumanMessage(_QUESTION)]}, _RECURSION) for _ in range(8))
        assert any(isinstance(found["structured_response"], Weather) for found in answers)


def thinking(url: str) -> None:
    model: Any = ChatAnthropic(
        model=MODEL, base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT, max_tokens=2048,
        thinking={"type": "enabled", "budget_tokens": 1024},
    )  # fmt: skip
    _check(model.bind_tools(_TOOLS).invoke(_QUESTION))
