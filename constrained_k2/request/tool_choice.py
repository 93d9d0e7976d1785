"""Reads ``tool_choice``: a mode, a named tool, or ``allowed_tools``."""

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from constrained_k2.errors import InvalidRequest, excerpt
from constrained_k2.request.values import object_at

Choice = Literal["auto", "none", "required"]


class ToolChoice(NamedTuple):
    """The calls that a ``tool_choice`` allows or demands."""

    mode: Choice
    names: frozenset[str] | None = None  # the functions that may be called; None for all functions of the request
    is_single: bool = False  # at most one call is allowed


def read_tool_choice(choice: object, declared: Collection[str]) -> ToolChoice:
    """Read a decoded ``tool_choice``, None for the default; ``declared`` are the names of the request's functions."""
    if choice is None or choice == "auto":
        return ToolChoice("auto")
    if choice == "none":
        return ToolChoice("none")
    if choice != "required" and not isinstance(choice, Mapping):
        remedy = "Use 'auto', 'none', 'required', a named tool or allowed_tools"
        raise InvalidRequest(f"unknown tool_choice {excerpt(choice)}", "tool_choice", remedy)
    if not declared:
        problem = "asks for a call, but the request has no tools that can be called"
        raise InvalidRequest(problem, "tool_choice", "Send tools, or 'auto'")
    if not isinstance(choice, Mapping):
        return ToolChoice("required")
    if choice.get("type") == "allowed_tools":
        return _allowed_tools(choice, declared)
    return ToolChoice("required", frozenset({_name(choice, "tool_choice", declared)}), is_single=True)


def _allowed_tools(choice: Mapping[str, Any], declared: Collection[str]) -> ToolChoice:
    location = "tool_choice.allowed_tools" if "allowed_tools" in choice else "tool_choice"
    inner = object_at(location, choice.get("allowed_tools", choice))  # the responses endpoint has no inner object
    mode = inner.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"unknown mode {excerpt(mode)}", f"{location}.mode", "Use 'auto' or 'required'")
    entries = inner.get("tools")
    if not isinstance(entries, list | tuple) or not entries:
        raise InvalidRequest("must be an array of at least one tool", f"{location}.tools")
    names = (_name(entry, f"{location}.tools[{number}]", declared) for number, entry in enumerate(entries))
    return ToolChoice(mode, frozenset(names))


def _name(entry: object, location: str, declared: Collection[str]) -> str:
    """The declared name in ``{"type": "function", "function": {"name": …}}``, its flat form, or a custom tool."""
    choice = object_at(location, entry)
    if choice.get("type", "function") not in ("function", "custom"):
        problem = f"the type is {excerpt(choice['type'])}, not 'function' or 'custom'"
        raise InvalidRequest(problem, f"{location}.type", "Name a function of tools")
    function = choice.get(choice.get("type", "function"), choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest('missing "name"', location, 'Write {"type": "function", "function": {"name": "…"}}')
    if name not in declared:
        raise InvalidRequest(f"no tool of this request is named {excerpt(name)}", location, "Name one of tools")
    return name
