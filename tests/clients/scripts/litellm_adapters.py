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
)
from tests.clients.scripts.openai_client import check

litellm.suppress_debug_info = True
_CALL: Any = {"tools": CHAT_TOOLS, "tool_choice": "required"}
_RESPONSE: Any = {"input": "Weather?", "tools": RESPONSES_TOOLS, "tool_choice": "required", "max_output_tokens": 500}
_MESSAGE: Any = {"messages": QUESTION, "tools": MESSAGES_TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 500}


def _endpoints(url: str) -> list[dict[str, str]]:
    """The server, by LiteLLM's providers for OpenAI's form and for vLLM."""
    models = (f"openai/{MODEL}", f"hosted_vllm/{MODEL}")
    return [{"model": model, "api_base": f"{url}/v1", "api_key": KEY} for model in models]


EACH: Any = {"endpoint": _endpoints, "openai_endpoint": lambda url: _endpoints(url)[:1]}


def _create(endpoint: dict[str, str], **fields: Any) -> Any:
    body: dict[str, Any] = {"messages": QUESTION, "max_tokens": 500, "num_retries": 0, "timeout": TIMEOUT}
    return litellm.completion(**endpoint, **body | fields)


def completion(endpoint: Any) -> None:
    assert any(_create(endpoint).choices[0].message.content for _ in range(TRIES))


def stream(endpoint: Any) -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [chunk for _ in range(TRIES) for chunk in _create(endpoint, **fields)]
    assert any(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)


def tools(endpoint: Any) -> None:
    for choice in ("auto", "required", "none", {"type": "function", "function": {"name": "get_time"}}):
        names = check(_create(endpoint, tools=CHAT_TOOLS, tool_choice=choice).choices[0].message)
        assert names or choice in {"auto", "none"} if isinstance(choice, str) else set(names) == {"get_time"}


def streamed_tools(endpoint: Any) -> None:
    built: Any = litellm.stream_chunk_builder(list(_create(endpoint, **_CALL, stream=True)), messages=QUESTION)
    assert check(built.choices[0].message)


def one_call_at_a_time(endpoint: Any) -> None:
    assert len(check(_create(endpoint, **_CALL, parallel_tool_calls=False).choices[0].message)) == 1


def several_turns(endpoint: Any) -> None:
    message = _create(endpoint, **_CALL).choices[0].message
    assert check(message)
    result = {"role": "tool", "content": "7"}
    calls = message.tool_calls
    results = [result | {"tool_call_id": call.id, "name": call.function.name} for call in calls]
    messages = [*QUESTION, message.model_dump(), *results]
    answer = _create(endpoint, messages=messages, tools=CHAT_TOOLS, tool_choice="none")
    assert answer.choices[0].message.content


def response_format(endpoint: Any) -> None:
    Weather.model_validate_json(_create(endpoint, response_format=Weather).choices[0].message.content)


def response_format_beside_tools(endpoint: Any) -> None:
    for _ in range(3):
        message = _create(endpoint, response_format=Weather, tools=CHAT_TOOLS).choices[0].message
        assert check(message) or Weather.model_validate_json(message.content)


async def asynchronous(endpoint: Any) -> None:
    answer: Any = await litellm.acompletion(**endpoint, messages=QUESTION, max_tokens=500, **_CALL)
    assert check(answer.choices[0].message)


def text_completion(openai_endpoint: Any) -> None:
    endpoint = openai_endpoint | {"model": f"text-completion-openai/{MODEL}"}
    answer: Any = litellm.text_completion(**endpoint, prompt="Oslo is", max_tokens=20)
    assert answer.choices[0].text


def responses(endpoint: Any) -> None:
    answer: Any = litellm.responses(**endpoint, **_RESPONSE)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls
    for call in calls:
        check_call(call.name, call.arguments)


def responses_streamed(openai_endpoint: Any) -> None:
    events: Any = litellm.responses(**openai_endpoint, **_RESPONSE, stream=True)
    assert [event.type for event in events][-1] == "response.completed"


async def messages_adapter(endpoint: Any) -> None:
    """A proxy for Claude Code does this: messages in, chat completions to the server."""
    answer: Any = await litellm.anthropic.messages.acreate(**endpoint, **_MESSAGE)
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert calls
    for call in calls:
        check_call(call["name"], call["input"])


async def messages_adapter_streamed(openai_endpoint: Any) -> None:
    events: Any = await litellm.anthropic.messages.acreate(**openai_endpoint, **_MESSAGE, stream=True)
    received = [event async for event in events]
    assert b"message_stop" in b"".join(event if isinstance(event, bytes) else str(event).encode() for event in received)


def anthropic_provider(url: str) -> None:
    endpoint = {"model": f"anthropic/{MODEL}", "api_base": url, "api_key": KEY}
    answer: Any = litellm.completion(**endpoint, messages=QUESTION, max_tokens=500, **_CALL)
    assert check(answer.choices[0].message)


def extra_body(endpoint: Any) -> None:
    extra = {"vllm_xargs": {"constrained_k2_finish_reserve": 60}}
    assert check(_create(endpoint, **_CALL, extra_body=extra).choices[0].message)
