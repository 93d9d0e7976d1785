"""Requests to try a server with: real-looking tools, every tool choice, streaming and not, with and without history."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

UNCONSTRAINED = {"vllm_xargs": {"constrained_k2": "off"}}
"""What a request's body says besides to ask our server not to constrain it."""


def _tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TEXT = {"type": "string", "maxLength": 60}
_DATE = {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"}

TOOLS: tuple[dict[str, Any], ...] = (
    _tool(
        "get_weather",
        "Weather forecast of a city.",
        ["city", "days"],
        city=_TEXT,
        days={"type": "integer", "minimum": 1, "maximum": 14},
        unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
    ),
    _tool(
        "search-flights",
        "Find flights between two airports.",
        ["origin", "destination", "depart"],
        origin={"type": "string", "pattern": "^[A-Z]{3}$"},
        destination={"type": "string", "pattern": "^[A-Z]{3}$"},
        depart=_DATE,
        cabin={"enum": ["economy", "premium", "business", "first"]},
        nonstop={"type": "boolean"},
    ),
    _tool(
        "calendar.create_event",
        "Put an event into the calendar.",
        ["title", "start", "attendees"],
        title=_TEXT,
        start=_DATE,
        attendees={
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"name": _TEXT, "optional": {"type": "boolean"}},
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        reminder_minutes={"anyOf": [{"type": "integer", "minimum": 0, "maximum": 10080}, {"type": "null"}]},
    ),
    _tool(
        "run_query",
        "Run a query on the warehouse.",
        ["table", "filters"],
        table={"enum": ["orders", "customers", "refunds"]},
        filters={
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "column": {"enum": ["id", "country", "total"]},
                    "op": {"enum": ["=", "<", ">", "in"]},
                    "value": {"type": ["string", "number"], "maxLength": 40},
                },
                "required": ["column", "op", "value"],
                "additionalProperties": False,
            },
        },
        limit={"type": "integer", "minimum": 1, "maximum": 1000},
    ),
    _tool(
        "convert_currency",
        "Convert an amount.",
        ["amount", "source", "target"],
        amount={"type": "number", "minimum": 0, "maximum": 1000000},
        source={"enum": ["EUR", "USD", "CNY", "JPY"]},
        target={"enum": ["EUR", "USD", "CNY", "JPY"]},
    ),
    {"type": "function", "function": {"name": "list_open_tabs", "description": "List the open browser tabs."}},
)

_ASKS = (
    "What's the weather like in Beijing this week?",
    "Find me a morning flight from Berlin to Tokyo.",
    "Set up the design review with Ana and 李雷.",
    "How many orders came from Norway last month?",
    "How much is 250 euros in yen?",
    "Which tabs do I have open?",
)
_CALL = {
    "id": "functions.list_open_tabs:0",
    "type": "function",
    "function": {"name": "list_open_tabs", "arguments": "{}"},
}
_HISTORY: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "Which tabs do I have open?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": _CALL["id"], "content": '["mail", "news"]'},
    {"role": "assistant", "content": "Mail and news."},
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request to send, to each arm alike.

    Attributes:
        number: Its number in the set.
        choice: ``auto``, ``required``, ``named`` or ``none``.
        body: The chat-completions body, without model and sampling parameters.
        stream: Whether to ask for a stream.
        first_index: The index that the answer's first call must have.
    """

    number: int
    choice: str
    body: dict[str, Any] = field(repr=False)
    stream: bool
    first_index: int

    @property
    def max_calls(self) -> int | None:
        """How many calls the answer may hold; None for any number."""
        if self.choice == "none":
            return 0
        return 1 if self.choice == "named" or self.body.get("parallel_tool_calls") is False else None


def built_in_samples(count: int, seed: int = 0) -> Iterator[Sample]:
    """A set that covers every tool choice evenly, streaming and not, single and parallel, with and without history.

    Args:
        count: How many.
        seed: Which tools stand in which request.
    """
    chance = random.Random(seed)  # noqa: S311 - choosing samples
    kinds = itertools.cycle(itertools.product(("required", "named", "auto", "required", "none"), (False, True)))
    for number, (choice, stream) in zip(range(count), kinds, strict=False):
        tools = chance.sample(TOOLS, chance.randint(2, len(TOOLS)))
        has_history = chance.random() < 0.3
        messages = [*(_HISTORY if has_history else ()), {"role": "user", "content": chance.choice(_ASKS)}]
        body: dict[str, Any] = {"messages": messages, "tools": tools, "tool_choice": choice}
        if choice == "named":
            name = chance.choice(tools)["function"]["name"]
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif chance.random() < 0.3:
            body["parallel_tool_calls"] = False
        yield Sample(number, choice, body, stream, first_index=1 if has_history else 0)
