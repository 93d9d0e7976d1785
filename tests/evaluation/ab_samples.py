"""Samples for the tests of the A/B evaluation."""

import json
from pathlib import Path
from typing import Any

from tests.kit.tools import tool

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["c", "f"]}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["city"], "additionalProperties": False}
WEATHER = tool("get_weather", SCHEMA)


def body(text: str = "Weather in Oslo?", **fields: Any) -> dict[str, Any]:
    """A request that may call ``get_weather``."""
    return {"messages": [{"role": "user", "content": text}], "tools": [WEATHER], **fields}


def write_lines(path: Path, values: Any) -> Path:
    """A file of one JSON value a line; text is written as it is."""
    lines = (value if isinstance(value, str) else json.dumps(value) for value in values)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
