"""LiteLLM: completion, responses and the messages adapter, over its providers for OpenAI's form and for vLLM."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import, which downloads prices without it
import litellm

from tests.clients.scripts.common import (
    CHAT_TOOLS,
    KEY,
    MESSAGES_TOOLS,
    MODEL,
    QUESTION,
    RESPONSES_TOOLS,
    TIMEOUT,
    TRIES,
    Weather,
    check_call,
    check_calls,
)

litellm.suppress_debug_info = True
_REQUIRED: Any = {
    "api_key": KEY,
    "messages": QUESTION,
    "tools": CHAT_TOOLS,
    "tool_choice": "required",
    "max_tokens": 500,
}
_PROVIDERS = (f"openai/{MODEL}", f"hosted_vllm/{MODEL}")


def _create(url: str, model: str, **fields: Any) -> Any:
    body: dict[str, Any] = {"messages": QUESTION, "max_tokens": 500, "num_retries": 0, "timeout": TIMEOUT}
    return litellm.completion(model=model, api_base=f"{url}/v1", api_key=KEY, **body | fields)


def _check(message: Any) -> list[str]:
    """Check the calls of a message and return the tools' names."""
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return check_calls(calls)


def completion(url: str) -> None:
    for model in _PROVIDERS:
        assert any(_create(url, model).choices[0].message.content for _ in range(TRIES))


def stream(url: str) -> None:
    for model in _PROVIDERS:
        fields = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [chunk for _ in range(TRIES) for chunk in _create(url, model, **fields)]
        assert any(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)


def tools(url: str) -> None:
    for model in _PROVIDERS:
        for choice in ("auto", "required", "none", {"type": "function", "function": {"name": "get_time"}}):
            names = _check(_create(url, model, tools=CHAT_TOOLS, tool_choice=choice).choices[0].message)
            assert names or choice in {"auto", "none"} if isinstance(choice, str) else set(names) == {"get_time"}


def streamed_tools(url: str) -> None:
    for model in _PROVIDERS:
        chunks = list(_create(url, model, tools=CHAT_TOOLS, tool_choice="required", stream=True))
        built: Any = litellm.stream_chunk_builder(chunks, messages=QUESTION)
        assert _check(built.choices[0].message)


def one_call_at_a_time(url: str) -> None:
    for model in _PROVIDERS:
        answer = _create(url, model, tools=CHAT_TOOLS, tool_choice="required", parallel_tool_calls=False)
        assert len(_check(answer.choices[0].message)) == 1


def several_turns(url: str) -> None:
    for model in _PROVIDERS:
        message = _create(url, model, tools=CHAT_TOOLS, tool_choice="required").choices[0].message
        assert _check(message)
        results = [
            {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "7"}
            for call in message.tool_calls
        ]
        messages = [*QUESTION, message.model_dump(), *results]
        assert _create(url, model, messages=messages, tools=CHAT_TOOLS, tool_choice="none").choices[0].message.content


def response_format(url: str) -> None:
    for model in _PROVIDERS:
        answer = _create(url, model, response_format=Weather)
        Weather.model_validate_json(answer.choices[0].message.content)


def response_format_beside_tools(url: str) -> None:
    for model in _PROVIDERS:
        for _ in range(3):
            message = _create(url, model, response_format=Weather, tools=CHAT_TOOLS).choices[0].message
            assert _check(message) or Weather.model_validate_json(message.content)


async def asynchronous(url: str) -> None:
    for model in _PROVIDERS:
        answer: Any = await litellm.acompletion(model=model, api_base=f"{url}/v1", **_REQUIRED)
        assert _check(answer.choices[0].message)


def text_completion(url: str) -> None:
    answer: Any = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", api_base=f"{url}/v1", api_key=KEY, prompt="Oslo is", max_tokens=20
    )
    assert answer.choices[0].text


def responses(url: str) -> None:
    for model in _PROVIDERS:
        answer: Any = litellm.responses(
            model=model, api_base=f"{url}/v1", api_key=KEY, input="Weather?", tools=RESPONSES_TOOLS,
            tool_choice="required", max_output_tokens=500,
        )  # fmt: skip
        calls = [item for item in answer.output if item.type == "function_call"]
        assert calls
        for call in calls:
            check_call(call.name, call.arguments)


def responses_streamed(url: str) -> None:
    events: Any = litellm.responses(
        model=_PROVIDERS[0], api_base=f"{url}/v1", api_key=KEY, input="Weather?", tools=RESPONSES_TOOLS,
        tool_choice="required", max_output_tokens=500, stream=True,
    )  # fmt: skip
    assert [event.type for event in events][-1] == "response.completed"


async def messages_adapter(url: str) -> None:
    """A proxy for Claude Code does this: messages in, chat completions to the server."""
    for model in _PROVIDERS:
        answer: Any = await litellm.anthropic.messages.acreate(
            model=model, api_base=f"{url}/v1", api_key=KEY, messages=QUESTION, tools=MESSAGES_TOOLS,
            tool_choice={"type": "any"}, max_tokens=500,
        )  # fmt: skip
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        assert calls
        for call in calls:
            check_call(call["name"], call["input"])


async def messages_adapter_streamed(url: str) -> None:
    events: Any = await litellm.anthropic.messages.acreate(
        model=_PROVIDERS[0], api_base=f"{url}/v1", api_key=KEY, messages=QUESTION, tools=MESSAGES_TOOLS,
        tool_choice={"type": "any"}, max_tokens=500, stream=True,
    )  # fmt: skip
    received = [event async for event in events]
    assert b"message_stop" in b"".join(event if isinstance(event, bytes) else str(event).encode() for event in received)


def anthropic_provider(url: str) -> None:
    answer: Any = litellm.completion(model=f"anthropic/{MODEL}", api_base=url, **_REQUIRED)
    assert _check(answer.choices[0].message)


def extra_body(url: str) -> None:
    for model in _PROVIDERS:
        extra = {"vllm_xargs": {"constrained_k2_finish_reserve": 60}}
        assert _check(
            _create(url, model, tools=CHAT_TOOLS, tool_choice="required", extra_body=extra).choices[0].message
        )
