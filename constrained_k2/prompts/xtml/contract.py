"""Refuses Kimi K3 requests that Moonshot's public API answers with status 400.

Source: tests/k3_features of MoonshotAI/Kimi-Vendor-Verifier (MIT), and the public documentation.
"""

import re
from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest, excerpt
from constrained_k2.request.tool_choice import read_tool_choice
from constrained_k2.request.values import array_at, object_at

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,255}")
_SYSTEM = ("system", "developer")


def check_contract(body: object) -> None:
    """Refuse a request that the public API refuses.

    * A tool without a name, or with one that is not a letter or ``_`` followed by up to 255 letters, digits, ``_`` and
      ``-``; a name that is declared twice, also by the tools of a system message.
    * ``tools`` in a message that is not a system message, or beside content.
    * A tool message without ``tool_call_id``.
    * A ``tool_choice`` that asks for a call although no tools are declared, or is unknown.

    Raises:
        InvalidRequest: The first violation; ``location`` is its path.
    """
    given = object_at("body", body)
    declared: dict[str, str] = {}  # name -> location
    _check_tools(given.get("tools"), "tools", declared)
    for number, message in enumerate(array_at("messages", given.get("messages"))):
        _check_message(object_at(f"messages[{number}]", message), f"messages[{number}]", declared)
    read_tool_choice(given.get("tool_choice"), declared)


def _check_message(message: Mapping[str, Any], location: str, declared: dict[str, str]) -> None:
    role, tools, at = message.get("role"), message.get("tools"), f"{location}.tools"
    if tools is not None:
        if role not in _SYSTEM:
            problem = f"a message of the role {excerpt(role)} cannot declare tools"
            raise InvalidRequest(problem, at, "Declare them in a system message, or in the request's tools")
        _check_tools(tools, at, declared)
        if tools and message.get("content"):
            problem = "a message that declares tools has no content in the prompt"
            raise InvalidRequest(problem, f"{location}.content", "Send the content as a message of its own")
    given_id = message.get("tool_call_id")
    if role == "tool" and (not isinstance(given_id, str) or not given_id):
        raise InvalidRequest('missing "tool_call_id"', f"{location}.tool_call_id", "Send the id of the result's call")


def _check_tools(tools: object, location: str, declared: dict[str, str]) -> None:
    for number, entry in enumerate(() if tools is None else array_at(location, tools)):
        here = f"{location}[{number}]"
        tool = object_at(here, entry)
        is_function = tool.get("type", "function") == "function"
        if "function" in tool:  # the responses endpoint has no inner object
            here = f"{here}.function"
            tool = object_at(here, tool["function"])
        name, here = tool.get("name"), f"{here}.name"
        if not isinstance(name, str) or not name:
            raise InvalidRequest('missing "name"', here, "Name the function")
        if is_function and not _NAME.fullmatch(name):
            problem = f"the name {excerpt(name)} is not allowed"
            remedy = "Use a letter or _ first, then letters, digits, _ and -, at most 256 characters in all"
            raise InvalidRequest(problem, here, remedy)
        if name in declared:
            problem = f"a tool named {excerpt(name)} is already declared at {declared[name]}"
            raise InvalidRequest(problem, here, "Rename one of them, or leave one out")
        declared[name] = here
