"""Tools whose schemas no server has seen, made of given ones."""

import random
import re
import string
from collections.abc import Sequence
from typing import Any

_LETTERS = 5
_MAX_NAME = 48  # characters of a name that are kept
_BELOW_PROPERTIES = re.compile(r"(?<=/properties/)[^/]+")  # in a JSON pointer
_VALUES = frozenset(("enum", "const", "default", "examples"))


def renewed(tools: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return OpenAI tools in which functions, properties and descriptions are named anew: no part of them is known.

    Args:
        tools: OpenAI tools with distinct names.
        seed: Equal seeds give equal tools.
    """
    words = random.Random(seed)  # noqa: S311 - no secret
    found: list[dict[str, Any]] = []
    for tool in tools:
        name, parameters, word = tool["function"]["name"], tool["function"]["parameters"], _word(words)
        function = {"name": f"{name[:_MAX_NAME]}_{word}", "parameters": _renamed(parameters, word)}
        found.append({"type": "function", "function": function})
    return found


def extended(tools: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return OpenAI tools with one more optional property each: a trained model calls them as it calls the given ones.

    Args:
        tools: OpenAI tools.
        seed: Equal seeds give equal tools.
    """
    words = random.Random(seed)  # noqa: S311 - no secret
    found: list[dict[str, Any]] = []
    for tool in tools:
        parameters = tool["function"]["parameters"]
        properties = parameters.get("properties", {}) | {f"x_{_word(words)}": {"type": "string"}}
        function = tool["function"] | {"parameters": parameters | {"properties": properties}}
        found.append(tool | {"function": function})
    return found


def _word(source: random.Random) -> str:
    return "".join(source.choices(string.ascii_lowercase, k=_LETTERS))


def _renamed(schema: Any, word: str) -> Any:
    """Return a schema with this word behind the name of every property and in the descriptions."""
    if isinstance(schema, list):
        return [_renamed(each, word) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: value if name in _VALUES else _renamed(value, word) for name, value in schema.items()}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        changed["properties"] = {f"{name}_{word}": _renamed(value, word) for name, value in properties.items()}
        if isinstance(required := schema.get("required"), list):
            changed["required"] = [f"{name}_{word}" if name in properties else name for name in required]
    if isinstance(description := schema.get("description"), str):
        changed["description"] = f"{description} ({word})"
    if isinstance(reference := schema.get("$ref"), str):
        changed["$ref"] = _BELOW_PROPERTIES.sub(rf"\g<0>_{word}", reference)
    return changed
