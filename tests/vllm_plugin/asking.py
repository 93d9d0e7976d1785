"""A chat request to a test's server."""

from typing import Any

import openai

from scripts.bundled_samples.ordinary import TOOLS

MESSAGES = [{"role": "user", "content": "What's the weather like?"}]
WEATHER = TOOLS[0]


def create(client: openai.OpenAI, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "model": "kimi-k2",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "max_tokens": 1000,
        "temperature": 1.0,
    }
    return client.chat.completions.create(**(defaults | fields))
