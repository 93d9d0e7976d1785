"""Tools as chat templates declare them: K2's as JSON, those of K2.5 and later in TypeScript."""

from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.rendering.mending import Mending

_TOOL_KEYS = frozenset({"type", "function"})
_FUNCTION_KEYS = frozenset({"name", "description", "parameters"})


def mend_tools(tools: object, mending: Mending) -> list[Any]:
    """The tools with nothing in them but what the model is shown.

    Args:
        tools: Those of the request: in the form of chat completions or of responses.
        mending: Takes note of what is changed.

    Raises:
        InvalidRequest: One is no tool.
    """
    if not isinstance(tools, list | tuple):
        raise InvalidRequest(f"must be an array, not {kind_of_json(tools)}", "tools")
    return [_tool(tool, f"tools[{number}]", mending) for number, tool in enumerate(tools)]


def _tool(tool: object, place: str, mending: Mending) -> Any:
    """A tool as templates declare it."""
    if not isinstance(tool, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(tool)}", place)
    new = dict(tool)
    if "function" not in new and "name" in new:  # the responses endpoint has no inner object
        new = {"type": "function", "function": {key: value for key, value in new.items() if key != "type"}}
        mending.note(place, "shape", before=None, after="function")
    if new.get("type", "function") != "function":
        return mending.clean(new, place)
    if not isinstance(new.get("function"), Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(new.get('function'))}", f"{place}.function")
    if "type" not in new:
        mending.note(f"{place}.type", "tool", before=None, after="function")
        new = {"type": "function", **new}
    new = _only(mending, new, _TOOL_KEYS, place)
    new["function"] = _only(mending, new["function"], _FUNCTION_KEYS, f"{place}.function")
    new = mending.clean(new, place)
    if "parameters" in new["function"]:
        here = f"{place}.function.parameters"
        new["function"]["parameters"] = _without_bracketed(new["function"]["parameters"], here, mending)
    return new


def _without_bracketed(schema: Any, place: str, mending: Mending) -> Any:
    """A schema of which no name becomes a special token between angle brackets.

    In TypeScript an array of ``{"$ref": "#/$defs/think"}`` is ``Array<think>``, and that ends in a special token. Types
    and names of definitions are all that is written so; the rest stands in quotes, in comments or behind a blank.
    """
    if isinstance(schema, list):
        return [_without_bracketed(item, f"{place}[{number}]", mending) for number, item in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    new: dict[str, Any] = {}
    for key, value in schema.items():
        here = f"{place}.{key}"
        if key == "type" and isinstance(value, str):
            new[key] = mending.clean_bracketed(value, here)
        elif key == "$ref" and isinstance(value, str):
            *path, name = value.split("/")
            new[key] = "/".join([*path, mending.clean_bracketed(name, here)])
        elif key == "$defs" and isinstance(value, dict):
            new[key] = {
                mending.clean_bracketed(name, f"{here} key"): _without_bracketed(item, f"{here}.{name}", mending)
                for name, item in value.items()
            }
        else:
            new[key] = _without_bracketed(value, here, mending)
    return new


def _only(mending: Mending, value: Mapping[str, Any], keys: frozenset[str], place: str) -> dict[str, Any]:
    """The keys that are part of a prompt and hold something."""
    for key, item in value.items():
        if key not in keys or item is None:
            mending.note(f"{place}.{key}", "tool", before=item, after=None)
    return {key: item for key, item in value.items() if key in keys and item is not None}
