"""Messages of the dialogs that the tests repair."""

from typing import Any

F0, F1, F2 = "functions.search:0", "functions.search:1", "functions.search:2"
USER = {"role": "user", "content": "go"}


def call(given: Any, name: Any = "search", arguments: Any = '{"q": "x"}') -> dict[str, Any]:
    made = {"id": given, "type": "function", "function": {"name": name, "arguments": arguments}}
    return made if given is not None else {key: made[key] for key in ("type", "function")}


def calls(*made: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def result(given: Any, content: Any = "r", **more: Any) -> dict[str, Any]:
    message = {"role": "tool", "tool_call_id": given, "content": content} | more
    return message if given is not None else {key: message[key] for key in message if key != "tool_call_id"}
