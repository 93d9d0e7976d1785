"""OpenAI's JSON of a function tool."""

from typing import Any


def tool(name: str, parameters: Any = None, **fields: Any) -> dict[str, Any]:
    """Return a function tool; ``fields`` go into ``function``: ``strict``, ``description``."""
    schema = {"type": "object"} if parameters is None else parameters
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}
