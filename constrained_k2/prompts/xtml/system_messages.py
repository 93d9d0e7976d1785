"""Writes the system messages of Kimi K3's encoder: tools, effort, tool choice, response format.

Their words are from the fixtures of lablup/mlxcel and sgl-project/sglang (Apache-2.0). For the two messages that no
fixture shows (``tool_choice`` none, ``json_schema``), they are the words on which the two renderers agree.
"""

import json
from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k3 import MESSAGE
from constrained_k2.prompts.xtml.pieces import Pieces

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
_NEW_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_CHOICE = "The system is invoked with `tool_choice={}`.\nYou {} in the next message."
_CHOICES = {"required": "MUST call tools", "none": "MUST NOT call any tools"}
_FORM = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n"


def write_tools(pieces: Pieces, tools: Any, location: str, *, extend: bool = False) -> None:
    """Write the declaration of tools, or of more tools in the middle of a dialog (``extend``)."""
    _write(pieces, "tool-declare", (_NEW_TOOLS if extend else _TOOLS) + _fenced(tools, location))


def write_effort(pieces: Pieces, effort: str) -> None:
    """Write how much to think."""
    _write(pieces, "thinking-effort", _EFFORT.format(effort))


def write_tool_choice(pieces: Pieces, choice: str) -> None:
    """Write that calls are required, or forbidden."""
    _write(pieces, "tool-choice", _CHOICE.format(choice, _CHOICES[choice]))


def write_response_format(pieces: Pieces, form: Mapping[str, Any]) -> None:
    """Write the response format; any type but ``json_object`` and ``json_schema`` has no message."""
    kind = form.get("type")
    if kind == "json_object":
        _write(pieces, "response-format", _FORM.format(kind))
    elif kind == "json_schema":
        at = "response_format.json_schema"
        _write(pieces, "response-format", _FORM.format(kind) + _SCHEMA + _fenced(_schema_in(form, at), at))


def _schema_in(form: Mapping[str, Any], location: str) -> Any:
    given = form.get("json_schema")
    if not isinstance(given, Mapping):
        raise InvalidRequest("must be an object with a schema", location)
    return given.get("schema", given.get("json_schema", given))


def _write(pieces: Pieces, kind: str, body: str) -> None:
    pieces.open(MESSAGE, (("role", "system"), ("type", kind)))
    pieces.text(body)
    pieces.close(MESSAGE)
    pieces.end_message()


def _fenced(value: Any, location: str) -> str:
    """A value as compact JSON with sorted keys, in a code block."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", location) from error
    return f"```json\n{text}\n```"
