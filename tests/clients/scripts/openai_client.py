"""Chat completions by OpenAI's client, for the modules of scripts."""

from typing import Any

import openai

from tests.clients.scripts.common import CHAT_TOOLS, KEY, MODEL, QUESTION, TIMEOUT, check_calls


def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)


def async_client(url: str) -> Any:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT)


def body(**fields: Any) -> Any:
    """The fields of a chat; one that is ``...`` is left out."""
    given = {"model": MODEL, "messages": QUESTION, "tools": CHAT_TOOLS, "max_tokens": 600} | fields
    return {name: value for name, value in given.items() if value is not ...}


def create(url: str, **fields: Any) -> Any:
    return client(url).chat.completions.create(**body(**fields))


def check(message: Any, first: int = 0) -> list[str]:
    """Check the calls of a message and return the tools' names."""
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return check_calls(calls, first)
