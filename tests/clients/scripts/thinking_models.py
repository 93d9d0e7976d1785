"""Clients of a thinking model, on a server with a reasoning parser: budgets, reasoning in answers and in histories."""

from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.clients.scripts import calls  # noqa: F401 - scripts of this module too
from tests.clients.scripts.apis import Api, chat, messages, responses
from tests.clients.scripts.common import KEY, MODEL, TIMEOUT, Weather, get_weather

WITHOUT = {"plain_answer"}  # all text of an untrained model is reasoning
_BUDGET: Any = {"type": "enabled", "budget_tokens": 1024}


def _apis(url: str) -> list[Api]:
    return [
        chat(url),
        chat(url, extra_body={"thinking_token_budget": 16}),
        responses(url, reasoning={"effort": "low"}),
        responses(url, reasoning={"effort": "high"}),
        messages(url, thinking=_BUDGET, max_tokens=2048),
    ]


EACH: Any = {"api": _apis}


def without_tools(api: Api) -> None:
    assert api.ask(tools=None).reason


def events_of_a_stream(url: str) -> None:
    api = messages(url, thinking=_BUDGET, max_tokens=2048)
    with api.functions.stream(**api.body()) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_message().stop_reason in {"end_turn", "tool_use"}
    assert "content_block_stop" in kinds


def langchain_budget(url: str) -> None:
    fields: Any = {"model": MODEL, "base_url": url, "api_key": KEY, "max_retries": 0, "timeout": TIMEOUT}
    model: Any = ChatAnthropic(**fields, max_tokens=2048, thinking=_BUDGET)
    message = model.bind_tools([tool("get_weather")(get_weather)]).invoke("How warm is it?")
    assert not message.invalid_tool_calls


async def pydantic_ai_agents(url: str) -> None:
    settings: Any = {
        "max_tokens": 2048,
        "timeout": TIMEOUT,
        "anthropic_thinking": _BUDGET,
        "openai_reasoning_effort": "low",
    }
    on_chat = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
    on_messages = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=KEY))
    # Beside thinking, Pydantic AI asks messages for an answer's type in the prompt alone, which no server enforces.
    for model, output in ((on_chat, Weather), (on_messages, str)):
        agent: Any = Agent(model, tools=[get_weather], output_type=output, retries=8, model_settings=settings)
        result = await agent.run("How warm is it?", usage_limits=UsageLimits(request_limit=60))
        assert isinstance(result.output, output)
