"""Reads the tools that vLLM shows the model, and the ``tool_choice`` among them, from a request."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm.tool_parsers.utils import build_responses_tool_call_name_map, get_function_tools

from constrained_k2.errors import InvalidRequest
from constrained_k2.request.tools import Tool
from constrained_k2.threads.interruptible import yield_gil
from constrained_k2.vllm_plugin.api_server.refusals import refusal
from constrained_k2.vllm_plugin.shared.log import warn_once
from constrained_k2.vllm_plugin.shared.settings import ALLOWED_TOOLS_KEY, TEXT_FORMATS_KEY

_SHOWN = ("function", "custom", "namespace")
"""The types of tools that vLLM shows the model: a custom tool as a function of one string, a namespace as its functions
under the names ``NAMESPACE__FUNCTION``."""


_CHOSEN = ("function", "custom")
"""The types of a ``tool_choice`` of one tool that the model is shown."""


def field_of(request: Any, name: str) -> Any:
    """A field of a vLLM request; None if its model declares no such field, even if the client sent one."""
    return getattr(request, name) if name in type(request).model_fields else None


def set_fields(request: Any, **values: Any) -> None:
    """Set the fields that the model of a vLLM request has: chats, responses and completions differ."""
    for name, value in values.items():
        if name in type(request).model_fields:
            setattr(request, name, value)


def functions_of(request: Any) -> list[Any]:
    """The functions in the prompt of a chat or responses request, as vLLM's objects."""
    return list(get_function_tools(request.tools or ()))


def declared_tools(request: Any) -> list[dict[str, Any]]:
    """The decoded functions, with the grammars of custom tools. Raises as :func:`text_formats`."""
    formats, decoded = text_formats(request.vllm_xargs), list[dict[str, Any]]()
    for number, tool in enumerate(request.tools or ()):
        for function in get_function_tools([tool]):
            yield_gil()
            shown: dict[str, Any] = function.model_dump()
            form = formats.get(number)
            custom = {"type": "custom", "name": shown.get("function", shown)["name"], "format": form}
            decoded.append(shown if form is None else custom)
    return decoded


def text_formats(extra_args: Mapping[str, Any] | None) -> dict[int, Any]:
    """The grammars that our middleware has taken off custom tools, by the tools' numbers.

    Raises:
        InvalidRequest: A client has written the middleware's field itself, and wrongly.
    """
    try:
        return {
            int(number): form for number, form in json.loads((extra_args or {}).get(TEXT_FORMATS_KEY, "{}")).items()
        }
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            "must be formats by the numbers of their tools", f"vllm_xargs.{TEXT_FORMATS_KEY}"
        ) from error


def declared_in(functions: Sequence[Any]) -> list[Tool]:
    """The functions by their names alone."""
    return [Tool(getattr(function, "function", function).name) for function in functions]


def report_left_out(request: Any) -> None:
    """Log, once a type, the tools of a request that are not in its prompt, so that no call of them is allowed."""
    for kind in _left_out(request.tools or ()):
        warn_once("not in the prompt and not callable", f"tools of type {kind}")


def set_default_choice(request: Any) -> None:
    """Make a ``tool_choice`` of null beside tools ``auto``, which it means; vLLM drops the calls from such answers."""
    if getattr(request, "tools", None) and getattr(request, "tool_choice", "") is None:
        request.tool_choice = "auto"


def choice_of(request: Any, functions: Sequence[Any]) -> Any:
    """The decoded ``tool_choice``, without the tools that are not in the prompt.

    Raises:
        InvalidRequest: It demands a call of such a tool.
    """
    choice = request.tool_choice
    if hasattr(choice, "model_dump"):
        choice = choice.model_dump()
    allowed = (request.vllm_xargs or {}).get(ALLOWED_TOOLS_KEY)
    if allowed is not None:  # written by our middleware, or by a client in its place
        try:
            return json.loads(allowed)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest("must be a tool_choice as JSON", f"vllm_xargs.{ALLOWED_TOOLS_KEY}") from error
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        is_shown = not isinstance(choice, Mapping) or choice.get("type") in _CHOSEN
        if not is_shown or (choice == "required" and not functions):
            raise refusal("tool_choice")
        return choice
    left_out = set(_left_out(request.tools))
    tools = [_flattened(entry, request.tools) for entry in choice["tools"] if entry.get("type") not in left_out]
    if tools or not choice["tools"]:
        return {**choice, "tools": tools}
    if choice["mode"] == "required":
        raise refusal("tool_choice")
    return "none"


def _flattened(entry: Mapping[str, Any], tools: Sequence[Any]) -> Mapping[str, Any]:
    """An allowed tool, with the name of a function in a namespace as the model sees it."""
    name = entry.get("name")
    names = [flat for flat, call in build_responses_tool_call_name_map(list(tools)).items() if call.name == name]
    is_declared = any(getattr(tool, "name", None) == name for tool in tools)
    return {**entry, "name": names[0]} if len(names) == 1 and not is_declared else entry


def _left_out(tools: Sequence[Any]) -> Iterator[str]:
    for tool in tools:
        if tool.type not in _SHOWN:
            yield tool.type
        elif tool.type == "namespace":
            yield from (f"{inner.type} in a namespace" for inner in tool.tools if inner.type != "function")
