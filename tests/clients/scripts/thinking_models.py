"""Clients of a thinking model, on a server with a reasoning parser: budgets, reasoning in answers and in histories."""

from typing import Any, Literal

import anthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.clients.scripts.common import (
    KEY,
    MESSAGES_TOOLS,
    MODEL,
    QUESTION,
    RESPONSES_TOOLS,
    TIMEOUT,
    Weather,
    check_call,
)
from tests.clients.scripts.openai_client import body, check, client, create

_BUDGET: Any = {"type": "enabled", "budget_tokens": 1024}
_SHORT = {"thinking_token_budget": 16}


def _anthropic(url: str) -> Any:
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT)


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": QUESTION, "tools": MESSAGES_TOOLS, "max_tokens": 2048} | fields


def _get_weather(city: str, units: Literal["celsius", "fahrenheit"]) -> str:
    """Return the weather of a city."""
    assert units in {"celsius", "fahrenheit"}
    return f"{city[:20]}: 7"


def chat_auto_and_required(url: str) -> None:
    for seed in range(3):
        check(create(url, seed=seed).choices[0].message)
        assert check(create(url, seed=seed, tool_choice="required").choices[0].message)


def chat_budget(url: str) -> None:
    for seed in range(3):
        check(create(url, seed=seed, extra_body=_SHORT).choices[0].message)
        assert check(create(url, seed=seed, extra_body=_SHORT, tool_choice="required").choices[0].message)
        assert create(url, seed=seed, extra_body=_SHORT, tools=...).choices[0].finish_reason


def chat_budget_and_a_format_beside_tools(url: str) -> None:
    for seed in range(4):
        fields = body(tools=_strict_tools(), response_format=Weather, seed=seed, extra_body=_SHORT)
        answer = client(url).chat.completions.parse(**fields)
        message = answer.choices[0].message
        assert check(message) or isinstance(message.parsed, Weather)


def _strict_tools() -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {name: value for name, value in tool_.items() if name != "type"}}
        for tool_ in RESPONSES_TOOLS
    ]


def responses_effort(url: str) -> None:
    for effort in ("low", "high"):
        fields: Any = {"tools": RESPONSES_TOOLS, "tool_choice": "required", "reasoning": {"effort": effort}}
        response = client(url).responses.create(model=MODEL, input="?", max_output_tokens=600, **fields)
        calls = [item for item in response.output if item.type == "function_call"]
        assert calls
        for call in calls:
            check_call(call.name, call.arguments)


def messages_budget(url: str) -> None:
    for choice in ("auto", "any"):
        message = _anthropic(url).messages.create(**_body(thinking=_BUDGET, tool_choice={"type": choice}))
        calls = [block for block in message.content if block.type == "tool_use"]
        assert calls or choice == "auto"
        for call in calls:
            check_call(call.name, call.input)


def messages_budget_streamed(url: str) -> None:
    with _anthropic(url).messages.stream(**_body(thinking=_BUDGET)) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_message().stop_reason in {"end_turn", "tool_use"}
    assert "content_block_stop" in kinds


def messages_budget_without_tools(url: str) -> None:
    answer = _anthropic(url).messages.create(model=MODEL, messages=QUESTION, max_tokens=2048, thinking=_BUDGET)
    assert answer.stop_reason


def messages_turns(url: str) -> None:
    """Thinking blocks go back with the calls that they led to."""
    messages: list[Any] = list(QUESTION)
    for _ in range(3):
        fields = _body(messages=messages, thinking=_BUDGET, tool_choice={"type": "any"})
        message = _anthropic(url).messages.create(**fields)
        calls = [block for block in message.content if block.type == "tool_use"]
        assert calls
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "7"} for call in calls]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


def langchain_budget(url: str) -> None:
    fields: Any = {"model": MODEL, "base_url": url, "api_key": KEY, "max_retries": 0, "timeout": TIMEOUT}
    model: Any = ChatAnthropic(**fields, max_tokens=2048, thinking=_BUDGET)
    message = model.bind_tools([tool("get_weather")(_get_weather)]).invoke("How warm is it?")
    assert not message.invalid_tool_calls


async def pydantic_ai_agents(url: str) -> None:
    settings: Any = {
        "max_tokens": 2048,
        "timeout": TIMEOUT,
        "anthropic_thinking": _BUDGET,
        "openai_reasoning_effort": "low",
    }
    chat = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
    messages = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=KEY))
    # Beside thinking, Pydantic AI asks messages for an answer's type in the prompt alone, which no server enforces.
    for model, output in ((chat, Weather), (messages, str)):
        agent: Any = Agent(model, tools=[_get_weather], output_type=output, retries=8, model_settings=settings)
        result = await agent.run("How warm is it?", usage_limits=UsageLimits(request_limit=60))
        assert isinstance(result.output, output)
