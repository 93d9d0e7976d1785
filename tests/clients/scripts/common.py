"""The model, tools and checks that the scripts of all client libraries share."""

import json
from collections.abc import Callable
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


def check_call(name: str, arguments: str | dict[str, Any]) -> None:
    """Require a declared tool and arguments that its schema accepts."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    jsonschema.validate(found, SCHEMAS[name])


def check_ids(calls: list[tuple[str, str]], first: int = 0) -> None:
    """Require ids that name the tool and count the calls of the whole dialog: each call is ``(id, name)``."""
    expected = [f"functions.{name}:{index}" for index, (_, name) in enumerate(calls, first)]
    assert [call_id for call_id, _ in calls] == expected, calls


def check_calls(calls: list[tuple[str, str, str | dict[str, Any]]], first: int = 0) -> list[str]:
    """Check ``(id, name, arguments)`` of each call and return the tools' names."""
    for _, name, arguments in calls:
        check_call(name, arguments)
    check_ids([(call_id, name) for call_id, name, _ in calls], first)
    return [name for _, name, _ in calls]


def check_both_kinds(ask: Callable[[int], tuple[list[str], Any]]) -> None:
    """Require answers with calls and answers in the form, each as ``(names of calls, parsed)``, of some seeds."""
    kinds = set[bool]()
    for seed in range(48):  # the model has no preference, but may write the same kind some times in a row
        names, parsed = ask(seed)
        assert names or isinstance(parsed, Weather)
        kinds.add(bool(names))
        if len(kinds) == 2:
            return
    raise AssertionError("either only calls or only answers")


class LooseWeather(BaseModel):
    """A report without required parts."""

    city: Literal["Oslo", "Bergen"] | None = None
    degrees: int | None = None
