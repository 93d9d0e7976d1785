"""The requests that engines answer, and the verdict on their answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from constrained_k2 import ToolCallSpec, Vocabulary, parse_completion
from constrained_k2.evaluation.bundled import HELD_OUT, bundled_bodies
from constrained_k2.vllm_plugin.settings import FINISH_RESERVE_KEY

JUDGED = 48
MAX_TOKENS = 320
_RESERVE = 160  # tokens in which the longest of the bundled tools' calls ends
_ITEM = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "label": {"type": "string"},
        "state": {"enum": ["open", "closed", "merged"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["id", "label", "state", "tags"],
    "additionalProperties": False,
}
_ITEMS = 512  # more than a timed request can write, so that it stays inside the call
LONG_CALL: dict[str, Any] = {
    "messages": [{"role": "user", "content": "List everything."}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "report",
                "parameters": {
                    "type": "object",
                    "properties": {"items": {"type": "array", "items": _ITEM, "minItems": _ITEMS}},
                    "required": ["items"],
                    "additionalProperties": False,
                },
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "report"}},
}
"""A request whose answer is one call that does not end before any limit of this benchmark."""


def judged_bodies(count: int = JUDGED) -> list[dict[str, Any]]:
    """Return requests over the bundled tools: every third one may answer in text, the others must call."""
    choices = ("required", "required", "auto")
    return [
        {"messages": body["messages"], "tools": body["tools"], "tool_choice": choices[number % 3]}
        for number, body in enumerate(bundled_bodies(HELD_OUT, count))
    ]


def extra_args(body: Mapping[str, Any], *, ends: bool) -> dict[str, Any]:
    """Return what constrains a request offline; with ``ends`` it keeps tokens to end its last call."""
    constraint: dict[str, Any] = {"constrained_k2": ToolCallSpec.from_openai(dict(body)).to_json()}
    return constraint | {FINISH_RESERVE_KEY: _RESERVE} if ends else constraint


def problem(body: Mapping[str, Any], ids: Sequence[int], vocabulary: Vocabulary) -> str | None:
    """Return what is wrong with an answer, None for nothing: undeclared, malformed, cut or invalid calls."""
    completion = parse_completion(ids, vocabulary)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in body["tools"]}
    if completion.malformed or completion.cut_calls:
        return f"a call that is cut or malformed: {(completion.malformed or completion.cut_calls)[0]}"
    if not completion.tool_calls and body["tool_choice"] != "auto":
        return "no call, although one is required"
    first = _calls_before(body)
    for position, call in enumerate(completion.tool_calls):
        if call.name not in schemas:
            return f"a call of {call.name!r}, which is not declared"
        if call.index != first + position:
            return f"call {position} has the index {call.index}, expected {first + position}"
        try:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        except (ValueError, jsonschema.ValidationError) as error:
            return f"arguments of {call.name!r}: {str(error).splitlines()[0]}"
    return None


def _calls_before(body: Mapping[str, Any]) -> int:
    return sum(len(message.get("tool_calls") or ()) for message in body["messages"])
