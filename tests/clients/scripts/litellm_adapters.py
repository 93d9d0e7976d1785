"""LiteLLM: completion, responses and the messages adapter, over its providers for OpenAI's form, for vLLM and for Anthropic's."""

import os
from types import SimpleNamespace
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read on import, which downloads prices without it
import jsonschema
import litellm

from tests.clients.scripts import calls  # noqa: F401 - scripts of this module too
from tests.clients.scripts.apis import Api
from tests.clients.scripts.common import (
    CHAT_TOOLS,
    KEY,
    MESSAGES_TOOLS,
    MODEL,
    QUESTION,
    RESPONSES_TOOLS,
    SCHEMAS,
    TIMEOUT,
    Weather,
    check_calls,
)

litellm.suppress_debug_info = True
WITHOUT = {
    "a_bad_schema_is_a_bad_request", "allowed_tools", "cancelled_stream_and_eight_at_once", "foreign_ids_in_the_history", "stream_helper", "strict_or_not", "usual_extras",
}  # fmt: skip
_RESPONSE: Any = {"input": "Weather?", "tools": RESPONSES_TOOLS, "tool_choice": "required", "max_output_tokens": 500}
_MESSAGE: Any = {"messages": QUESTION, "tools": MESSAGES_TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 500}


def _endpoints(url: str) -> list[dict[str, str]]:
    """The server, by LiteLLM's providers for OpenAI's form and for vLLM."""
    models = (f"openai/{MODEL}", f"hosted_vllm/{MODEL}")
    return [{"model": model, "api_base": f"{url}/v1", "api_key": KEY} for model in models]


def _parsed(found: Any) -> Weather | None:
    content = found.choices[0].message.content
    return Weather.model_validate_json(content) if content else None


def _apis(url: str) -> list[Api]:
    functions = SimpleNamespace(create=litellm.completion, parse=litellm.completion)
    more: dict[str, Any] = {"num_retries": 0, "timeout": TIMEOUT}
    return [Api("chat", functions, ("response_format", _parsed), more=endpoint | more) for endpoint in _endpoints(url)]


EACH: Any = {"api": _apis, "endpoint": _endpoints, "openai_endpoint": lambda url: _endpoints(url)[:1]}


async def asynchronous(api: Api) -> None:
    assert api.check(api.read(await litellm.acompletion(**api.body(choice="required"))))


def joined_stream(api: Api) -> None:
    chunks = [*litellm.completion(**api.body(choice="required"), stream=True, stream_options={"include_usage": True})]
    assert api.check(api.read(litellm.stream_chunk_builder(chunks, messages=QUESTION)))


def extra_body(api: Api) -> None:
    extra = {"vllm_xargs": {"constrained_k2_finish_reserve": 60}}
    assert api.check(api.ask(choice="required", native={"extra_body": extra}))


def text_completion(openai_endpoint: Any) -> None:
    endpoint = openai_endpoint | {"model": f"text-completion-openai/{MODEL}"}
    answer: Any = litellm.text_completion(**endpoint, prompt="Oslo is", max_tokens=20)
    assert answer.choices[0].text


def responses(endpoint: Any) -> None:
    answer: Any = litellm.responses(**endpoint, **_RESPONSE)
    found = [item for item in answer.output if item.type == "function_call"]
    assert check_calls([(item.call_id, item.name, item.arguments) for item in found])


def responses_streamed(openai_endpoint: Any) -> None:
    events: Any = litellm.responses(**openai_endpoint, **_RESPONSE, stream=True)
    assert [event.type for event in events][-1] == "response.completed"


async def messages_adapter(endpoint: Any) -> None:
    """A proxy for Claude Code does this: messages in, chat completions to the server."""
    answer: Any = await litellm.anthropic.messages.acreate(**endpoint, **_MESSAGE)
    found = [block for block in answer["content"] if block["type"] == "tool_use"]
    ids = [block["id"].replace(".", "_").replace(":", "_") for block in found]  # LiteLLM respells some
    assert ids == [f"functions_{block['name']}_{at}" for at, block in enumerate(found)]
    for block in found:
        jsonschema.validate(block["input"], SCHEMAS[block["name"]])
    assert found


async def messages_adapter_streamed(openai_endpoint: Any) -> None:
    events: Any = await litellm.anthropic.messages.acreate(**openai_endpoint, **_MESSAGE, stream=True)
    received = [event async for event in events]
    assert b"message_stop" in b"".join(event if isinstance(event, bytes) else str(event).encode() for event in received)


def anthropic_provider(url: str) -> None:
    endpoint = {"model": f"anthropic/{MODEL}", "api_base": url, "api_key": KEY}
    fields: Any = {"messages": QUESTION, "tools": CHAT_TOOLS, "tool_choice": "required", "max_tokens": 500}
    (choice,) = litellm.completion(**endpoint, **fields).choices
    found = choice.message.tool_calls
    assert check_calls([(call.id, call.function.name, call.function.arguments) for call in found])
