"""``tool_choice`` in all its forms, as a narrower spec."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeGuard

from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.tools import Tool, ToolCallSpec


def with_choice(spec: ToolCallSpec, choice: object) -> ToolCallSpec:
    """The spec narrowed by ``tool_choice``."""
    if choice is None or choice == "auto":
        return spec
    if choice == "none":
        return replace(spec, choice="none")
    if choice == "required":
        return replace(_with_tools(spec), choice="required")
    if not isinstance(choice, Mapping):
        raise InvalidRequest(
            f"{str(choice)[:80]!r} is none of 'auto', 'none', 'required', a named tool or allowed_tools", "tool_choice"
        )
    if choice.get("type") == "allowed_tools":
        return _with_allowed_tools(_with_tools(spec), choice)
    name = _named(choice, "tool_choice")
    tools = _pick(_with_tools(spec).tools, [(name, "tool_choice")])
    return replace(spec, tools=tools, choice="required", parallel=False)


def _with_allowed_tools(spec: ToolCallSpec, choice: Mapping[str, Any]) -> ToolCallSpec:
    place = "tool_choice"
    inner = choice.get("allowed_tools", choice)  # the responses endpoint has no inner object
    if inner is not choice:
        place = "tool_choice.allowed_tools"
    if not isinstance(inner, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(inner)}", place)
    mode = inner.get("mode", "auto")
    if not _is_mode(mode):
        raise InvalidRequest(f"{str(mode)[:80]!r} is neither 'auto' nor 'required'", f"{place}.mode")
    entries = inner.get("tools")
    if not isinstance(entries, list | tuple) or not entries:
        raise InvalidRequest("must be an array of at least one tool", f"{place}.tools")
    names = [(_named(entry, f"{place}.tools[{i}]"), f"{place}.tools[{i}]") for i, entry in enumerate(entries)]
    return replace(spec, tools=_pick(spec.tools, names), choice=mode)


def _is_mode(value: object) -> TypeGuard[Literal["auto", "required"]]:
    return value in ("auto", "required")


def _named(entry: object, place: str) -> str:
    """The name in ``{"type": "function", "function": {"name": …}}`` or its flat form."""
    if not isinstance(entry, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(entry)}", place)
    if entry.get("type", "function") != "function":
        raise InvalidRequest(f"the type {str(entry['type'])[:80]!r} is not 'function'", f"{place}.type")
    function = entry.get("function", entry)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest("names no function", place, 'Write {"type": "function", "function": {"name": "…"}}')
    return name


def _pick(tools: tuple[Tool, ...], names: list[tuple[str, str]]) -> tuple[Tool, ...]:
    """The named tools, in the order of the request."""
    known = {tool.name for tool in tools}
    for name, place in names:
        if name not in known:
            raise InvalidRequest(f"no tool of this request is named {name[:80]!r}", place, "Name one of tools")
    wanted = {name for name, _ in names}
    return tuple(tool for tool in tools if tool.name in wanted)


def _with_tools(spec: ToolCallSpec) -> ToolCallSpec:
    if not spec.tools:
        raise InvalidRequest("asks for a call, but the request has no tools", "tool_choice", "Send tools")
    return spec
