"""An MCP server on standard input and output with many tools, for agents that must send a long list of them.

`python mcp_tools.py 60` serves 60 tools; each answers with the names of the arguments that it was given.
"""

import json
import sys
from typing import Any

_NOUNS = ("invoice", "shipment", "customer", "contract", "ticket", "sensor", "warehouse", "payment", "device", "report")
_VERBS = ("create", "update", "search", "archive", "export", "validate")


def tools(count: int) -> list[dict[str, Any]]:
    """Return this many tool definitions, with the keywords that public MCP servers use."""
    return [_tool(number) for number in range(count)]


def _tool(number: int) -> dict[str, Any]:
    noun, verb = _NOUNS[number % len(_NOUNS)], _VERBS[number // len(_NOUNS) % len(_VERBS)]
    page = {"type": "integer", "minimum": 1, "maximum": 100, "default": 20, "description": "Entries on a page."}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "id": {"type": "string", "minLength": 1, "description": f"Identifier of the {noun}, as the list shows it."},
            "state": {"type": "string", "enum": ["open", "closed", "waiting"], "description": f"State of the {noun}."},
            "since": {"type": "string", "format": "date-time", "description": "Only what changed after this moment."},
            "amount": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}], "default": None},
            "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
            "filter": {"$ref": "#/$defs/filter"},
            "page": page,
        },
        "required": ["id", "state"],
        "additionalProperties": False,
        "$defs": {"filter": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
    }
    description = (
        f"{verb.capitalize()} a {noun} of the accounting system. Use it when the user names one {noun}; for several, "
        f"call it once each. The answer lists what changed. Never guess the identifier: look it up first."
    )
    return {"name": f"{verb}_{noun}_{number}", "description": description, "inputSchema": schema}


def answer(method: str, parameters: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the result of one MCP request."""
    if method == "initialize":
        version = parameters.get("protocolVersion", "2025-06-18")
        server = {"name": "many", "version": "1.0.0"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": tools(count)}
    if method == "tools/call":
        given = ", ".join(sorted(parameters.get("arguments") or {}))
        return {"content": [{"type": "text", "text": f"done with {given}"}], "isError": False}
    return {}


def main() -> None:
    """Answer one JSON-RPC message a line until the input ends."""
    count = int(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params") or {}, count)
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
