"""The model, tools and checks that the scripts of all client libraries share."""

import json
from collections.abc import Sequence
from typing import Any, Literal

import jsonschema
from pydantic import BaseModel

MODEL = "kimi-k2"
TRIES = 4
"""Answers to ask for where one has to hold text: a random model may end one with its first token."""
KEY = "none"
TIMEOUT = 60
QUESTION = [{"role": "user", "content": "How warm is it in Oslo?"}]

WEATHER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "units": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "units"],
    "additionalProperties": False,
}
CLOCK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER_SCHEMA, "get_time": CLOCK_SCHEMA}
CHAT_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
RESPONSES_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": name, "description": "A tool.", "parameters": schema, "strict": True}
    for name, schema in SCHEMAS.items()
]
MESSAGES_TOOLS: list[dict[str, Any]] = [
    {"name": name, "description": "A tool.", "input_schema": schema} for name, schema in SCHEMAS.items()
]


class Weather(BaseModel):
    """A report that an answer is parsed into; without bounds, which Anthropic's client leaves out of the schema."""

    city: Literal["Oslo", "Bergen"]
    degrees: int


def check_calls(calls: Sequence[tuple[str, str, str | dict[str, Any]]], first: int = 0) -> list[str]:
    """Check ``(id, name, arguments)`` of each call, and return the tools' names.

    An id names the tool and counts the calls of the whole dialog.
    """
    for index, (call_id, name, arguments) in enumerate(calls, first):
        assert call_id == f"functions.{name}:{index}", calls
        jsonschema.validate(json.loads(arguments) if isinstance(arguments, str) else arguments, SCHEMAS[name])
    return [name for _, name, _ in calls]


class LooseWeather(BaseModel):
    """A report without required parts."""

    city: Literal["Oslo", "Bergen"] | None = None
    degrees: int | None = None


def get_weather(city: str, units: Literal["celsius", "fahrenheit"]) -> str:
    """Return the weather of a city."""
    assert units in {"celsius", "fahrenheit"}
    return f"{city[:20]}: 7"


def find(place: str, limit: int = 3) -> str:
    """Find what lies near a place."""
    assert isinstance(limit, int)
    return place[:20]
