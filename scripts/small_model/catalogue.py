"""The small model's tools: their arguments, how requests ask for them, and their variant names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_STRING: Mapping[str, Any] = {"type": "string"}
_BOOLEAN: Mapping[str, Any] = {"type": "boolean"}
_DATE: Mapping[str, Any] = {"type": "string", "format": "date"}
_TIME: Mapping[str, Any] = {"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"}
_AIRPORT: Mapping[str, Any] = {"type": "string", "pattern": "^[A-Z]{3}$"}
_CURRENCIES = {"euros": "EUR", "dollars": "USD", "yen": "JPY", "pounds": "GBP", "francs": "CHF"}
_CURRENCY: Mapping[str, Any] = {"enum": list(_CURRENCIES.values())}
_CUISINES = {"Italian": "italian", "Thai": "thai", "Indian": "indian", "Greek": "greek"}


def _whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _enum(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


def _array(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


def _object(required: list[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a tool."""

    keys: tuple[str, ...]  # its name in each variant of the tool; the last one is used for further variants
    schema: Mapping[str, Any]  # of its value
    kind: str  # of its values; see :class:`scripts.small_model.values.Draw`
    options: Mapping[str, Any] = field(default_factory=dict)  # of the kind
    phrase: str = ""  # of a request that mentions an optional argument; ``{}`` is the value

    def key(self, variant: int) -> str:
        """Return its name in a variant."""
        return self.keys[min(variant, len(self.keys) - 1)]


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool, in variants that differ by a name or a key."""

    names: tuple[str, ...]  # in each variant
    description: str  # the same in all variants
    asks: tuple[str, ...]  # sentences that ask for it; ``{0}`` is the first required argument's value
    required: tuple[Argument, ...] = ()  # every request names them
    optional: tuple[Argument, ...] = ()  # some requests name them

    def declaration(self, variant: int) -> dict[str, Any]:
        """Return the tool as a request declares it, always with `parameters`: K2VV counts calls of others as wrong."""
        function: dict[str, Any] = {"name": self.names[variant], "description": self.description}
        arguments = {argument.key(variant): dict(argument.schema) for argument in self.required + self.optional}
        function["parameters"] = _object([argument.key(variant) for argument in self.required], **arguments)
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Declared:
    """A tool as one dialog declares it."""

    tool: Tool
    variant: int

    @property
    def name(self) -> str:
        """The declared name."""
        return self.tool.names[self.variant]


def _flag(*keys: str, phrase: str) -> Argument:
    return Argument(keys, _BOOLEAN, "said", {"words": {"": True}}, phrase)


def _number(keys: tuple[str, ...], least: int, most: int, phrase: str = "") -> Argument:
    return Argument(keys, _whole(least, most), "whole", {"least": least, "most": most}, phrase)


def _choice(keys: tuple[str, ...], words: Mapping[str, str], phrase: str = "") -> Argument:
    return Argument(keys, _enum(*words.values()), "said", {"words": words}, phrase)


def _words(*words: str) -> dict[str, str]:
    return {word: word for word in words}


TOOLS: tuple[Tool, ...] = (
    Tool(
        ("get_weather", "get-weather"),
        "Weather forecast of a city.",
        (
            "What's the weather in {0} for {1} days?",
            "Give me the forecast for {0}, {1} days.",
            "Will it rain in {0} in the next {1} days?",
        ),
        (Argument(("city", "location"), _STRING, "city"), _number(("days", "num_days"), 2, 14)),
        (_choice(("unit", "units"), _words("celsius", "fahrenheit"), "in {}"),),
    ),
    Tool(
        ("search-flights", "search_flights"),
        "Find flights between two airports.",
        (
            "Find flights from {0} to {1} on {2}.",
            "I need to fly from {0} to {1} on {2}.",
            "Search for a flight to {1} from {0} on {2}.",
        ),
        (
            Argument(("origin", "from"), _AIRPORT, "airport"),
            Argument(("destination", "to"), _AIRPORT, "airport"),
            Argument(("depart", "date"), _DATE, "date"),
        ),
        (
            _choice(("cabin",), _words("economy", "premium", "business"), "in {} class"),
            _flag("nonstop", "direct", phrase="without stops"),
            _number(("passengers", "adults"), 2, 9, "for {} people"),
        ),
    ),
    Tool(
        ("calendar.create_event", "calendar.create-event"),
        "Put an event into the calendar.",
        ("Set up the {0} with {2} on {1}.", "Put the {0} on {1} into my calendar, with {2}."),
        (
            Argument(("title", "summary"), _STRING, "title"),
            Argument(("start", "date"), _DATE, "date"),
            Argument(("attendees",), _array(_object(["name"], name=_STRING, optional=_BOOLEAN)), "people"),
        ),
        (
            Argument(("time", "start_time"), _TIME, "time", {}, "at {}"),
            _number(("reminder_minutes",), 5, 90, "with a reminder {} minutes before"),
        ),
    ),
    Tool(
        ("convert_currency", "currency.convert"),
        "Convert an amount of money.",
        ("How much is {0} {1} in {2}?", "Convert {0} {1} to {2}."),
        (
            Argument(("amount",), {"type": "number", "minimum": 0}, "amount"),
            Argument(("source", "from"), _CURRENCY, "said", {"words": _CURRENCIES}),
            Argument(("target", "to"), _CURRENCY, "said", {"words": _CURRENCIES}),
        ),
    ),
    Tool(
        ("send_email", "email.send"),
        "Send an email.",
        ("Send an email to {0} about the {1}.", "Write to {0}, the subject is {1}."),
        (
            Argument(("to", "recipient"), {"type": "string", "pattern": "^[^@ ]+@[^@ ]+$"}, "email"),
            Argument(("subject",), _STRING, "title"),
        ),
        (
            _choice(("priority", "importance"), _words("low", "normal", "urgent"), "with {} priority"),
            Argument(("send_at",), _DATE, "date", {}, "to go out on {}"),
        ),
    ),
    Tool(
        ("hotels.book", "book_hotel"),
        "Book a hotel.",
        ("Book a hotel in {0} from {1} for {2} nights.", "I want to stay {2} nights in {0} from {1}."),
        (
            Argument(("city", "place"), _STRING, "city"),
            Argument(("check_in", "arrival"), _DATE, "date"),
            _number(("nights",), 2, 30),
        ),
        (_number(("rooms",), 2, 5, "with {} rooms"), _flag("breakfast", phrase="with breakfast")),
    ),
    Tool(
        ("create_ticket", "tickets.create"),
        "Open a ticket.",
        ("Open a {1} ticket about the {0}.", "File a ticket for the {0}, severity {1}."),
        (
            Argument(("title", "summary"), _STRING, "title"),
            _choice(("severity", "level"), _words("minor", "major", "critical")),
        ),
        (
            Argument(("assignee", "owner"), _STRING, "name", {}, "assigned to {}"),
            _choice(("component",), _words("backend", "frontend", "billing"), "in the {}"),
        ),
    ),
    Tool(
        ("orders.create", "create_order"),
        "Place an order.",
        ("Order {0}, deliver to {1}.", "Please send {0} to {1}."),
        (
            Argument(
                ("items", "lines"),
                _array(_object(["sku", "quantity"], sku=_STRING, quantity={"type": "integer", "minimum": 1})),
                "items",
            ),
            Argument(("address", "ship_to"), _object(["street", "city"], street=_STRING, city=_STRING), "address"),
        ),
        (_flag("express", phrase="by express"),),
    ),
    Tool(
        ("find_restaurants", "restaurants.find"),
        "Find restaurants in a city.",
        ("Where can I eat {1} food in {0}?", "Find {1} restaurants in {0}."),
        (Argument(("city", "location"), _STRING, "city"), _choice(("cuisine", "kitchen"), _CUISINES)),
        (
            _number(("people", "seats"), 2, 12, "for {} people"),
            _choice(("price",), {"cheap": "low", "affordable": "medium", "fancy": "high"}, "something {}"),
        ),
    ),
    Tool(
        ("list_open_tabs", "list-open-tabs"),
        "List the open browser tabs.",
        ("Which tabs do I have open?", "List my open tabs."),
    ),
    Tool(
        ("set_thermostat", "home.set_temperature"),
        "Set the temperature of a room.",
        ("Set the {0} to {1} degrees.", "Make it {1} degrees in the {0}."),
        (_choice(("room",), _words("bedroom", "bathroom", "hallway")), _number(("temperature", "degrees"), 5, 30)),
        (_choice(("mode",), _words("heat", "cool", "auto"), "in {} mode"),),
    ),
    Tool(
        ("files.search", "search_files"),
        "Search files.",
        ("Search my files for {0}.", "Find files that mention {0}."),
        (Argument(("query", "text"), _STRING, "word"),),
        (
            Argument(("folder", "path"), _STRING, "word", {}, "in the folder {}"),
            _choice(("extension", "type"), _words("pdf", "txt", "csv"), "only {} files"),
            Argument(("modified_after", "since"), _DATE, "date", {}, "changed after {}"),
            _number(("max_results", "limit"), 1, 50, "at most {} results"),
            _flag("case_sensitive", phrase="with exact case"),
        ),
    ),
)
"""Flat and nested, with enums, ranges, patterns, optional arguments, hyphens and dots."""
