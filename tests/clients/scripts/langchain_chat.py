"""LangChain's chat models: OpenAI on chat completions and on the Responses API, and Anthropic."""

from collections.abc import Iterator
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.clients.scripts.common import KEY, MODEL, TIMEOUT, TRIES, Weather, find, get_weather

_QUESTION = "How warm is it in Oslo?"
_RECURSION: Any = {"recursion_limit": 80}
_SHARED: Any = {"model": MODEL, "api_key": KEY, "max_retries": 0, "timeout": TIMEOUT, "max_tokens": 600}


_TOOLS = [tool(get_weather), tool(find)]


def _openai_models(url: str) -> Iterator[Any]:
    for responses in (False, True):
        yield ChatOpenAI(**_SHARED, base_url=f"{url}/v1", use_responses_api=responses or None)


def _models(url: str) -> Iterator[Any]:
    yield from _openai_models(url)
    yield ChatAnthropic(**_SHARED, base_url=url)


EACH = {"model": _models, "openai_model": _openai_models}


def _check(message: Any) -> list[str]:
    """Check that calls have the arguments' types and return the tools' names."""
    assert not message.invalid_tool_calls, message.invalid_tool_calls
    for call in message.tool_calls:
        {each.name: each for each in _TOOLS}[call["name"]].invoke(call["args"])
    return [call["name"] for call in message.tool_calls]


def plain_answer(model: Any) -> None:
    question = [SystemMessage("Be brief."), HumanMessage(_QUESTION)]
    assert any(model.invoke(question).text for _ in range(TRIES))
    assert any(chunk.text for _ in range(TRIES) for chunk in model.stream(_QUESTION))


def tool_choices(model: Any) -> None:
    for _ in range(3):
        _check(model.bind_tools(_TOOLS).invoke(_QUESTION))
    assert _check(model.bind_tools(_TOOLS, tool_choice="any").invoke(_QUESTION))
    assert set(_check(model.bind_tools(_TOOLS, tool_choice="find").invoke(_QUESTION))) == {"find"}
    assert len(_check(model.bind_tools(_TOOLS, tool_choice="any", parallel_tool_calls=False).invoke(_QUESTION))) == 1


def openais_tool_choices(openai_model: Any) -> None:
    assert not _check(openai_model.bind_tools(_TOOLS, tool_choice="none").invoke(_QUESTION))
    for strict in (True, False):
        assert _check(openai_model.bind_tools(_TOOLS[:1], tool_choice="any", strict=strict).invoke(_QUESTION))


def streamed_calls(model: Any) -> None:
    whole: Any = None
    for chunk in model.bind_tools(_TOOLS, tool_choice="any").stream(_QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert _check(whole)


def several_turns(model: Any) -> None:
    bound = model.bind_tools(_TOOLS, tool_choice="any")
    messages: list[Any] = [HumanMessage(_QUESTION)]
    for _ in range(3):
        message = bound.invoke(messages)
        assert _check(message)
        messages.append(message)
        messages += [ToolMessage("7 degrees", tool_call_id=call["id"]) for call in message.tool_calls]
    assert model.bind_tools(_TOOLS).invoke(messages) is not None


def structured_output(model: Any) -> None:
    for method in ("function_calling", "json_schema"):
        assert isinstance(model.with_structured_output(Weather, method=method).invoke(_QUESTION), Weather)
    found = model.with_structured_output(Weather, include_raw=True).invoke(_QUESTION)
    assert isinstance(found["parsed"], Weather), found


def structured_output_by_json_mode(openai_model: Any) -> None:
    """The model may write any JSON object: that it parses is all that is required."""
    found = openai_model.with_structured_output(Weather.model_json_schema(), method="json_mode").invoke(_QUESTION)
    assert isinstance(found, dict)


def structured_output_beside_tools(openai_model: Any) -> None:
    """OpenAI's form of an agent with an answer type: each answer is a call, or an instance."""
    beside: Any = {"method": "json_schema", "tools": _TOOLS[:1], "strict": True, "include_raw": True}
    bound = openai_model.with_structured_output(Weather, **beside)
    for _ in range(4):
        found = bound.invoke(_QUESTION)
        assert _check(found["raw"]) or isinstance(found["parsed"], Weather), found


def structured_output_streamed(openai_model: Any) -> None:
    (*_, last) = openai_model.with_structured_output(Weather, method="function_calling").stream(_QUESTION)
    assert isinstance(last, Weather)


async def batches(model: Any) -> None:
    for message in await model.bind_tools(_TOOLS, tool_choice="any").abatch([_QUESTION] * 4):
        assert _check(message)


async def events_of_a_stream(model: Any) -> None:
    kinds = {event["event"] async for event in model.bind_tools(_TOOLS).astream_events(_QUESTION)}
    assert "on_chat_model_end" in kinds


def agent(model: Any) -> None:
    found: Any = create_agent(model, _TOOLS).invoke({"messages": [HumanMessage(_QUESTION)]}, _RECURSION)
    assert not found["messages"][-1].tool_calls


def agent_with_an_answer_type(model: Any) -> None:
    """The answer is a call here: an untrained model may make two of them, or others beside it, and then there is none."""
    agent: Any = create_agent(model, _TOOLS, response_format=Weather)
    answers = (agent.invoke({"messages": [HumanMessage(_QUESTION)]}, _RECURSION) for _ in range(8))
    assert any(isinstance(found["structured_response"], Weather) for found in answers)
