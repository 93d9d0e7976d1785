"""Chat completions by OpenAI's client, for the modules of scripts."""

from typing import Any

import openai

from tests.clients.scripts.common import CHAT_TOOLS, KEY, MODEL, QUESTION, TIMEOUT, check_calls


def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)


def async_client(url: str) -> Any:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)


def create(url: str, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": QUESTION, "tools": CHAT_TOOLS, "max_tokens": 500} | fields
    return client(url).chat.completions.create(**{name: value for name, value in body.items() if value is not ...})


def check(message: Any, first: int = 0) -> list[str]:
    """Check the calls of a message and return the tools' names."""
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return check_calls(calls, first)
