"""Converts messages and calls of older and other APIs to today's chat-completions format.

Sources: OpenAI's chat completions (``developer``, ``function`` and ``function_call``, custom tools);
OpenRouter's ``reasoning_details``, LiteLLM's ``thinking_blocks`` and Ollama's ``thinking``.
"""

import json
from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.prompts.content import is_reasoning, reasoning_text
from constrained_k2.prompts.text_repairs import TextRepairs
from constrained_k2.request.values import object_at

IPYTHON = "ipython"
"""Llama's role of a tool's output, which names neither call nor function."""

_ROLES = {"developer": "system", "function": "tool"}
_REASONING_FIELDS = ("reasoning", "reasoning_content", "thinking", "thinking_blocks", "reasoning_details")
_ARGUMENTS_FIELDS = ("arguments", "args", "input")
UNKNOWN = "unknown"
"""The name that a function gets if neither its call nor its result has one."""


def message_form(message: object, location: str, repairs: TextRepairs) -> dict[str, Any]:
    """Copy a message, with a role that templates know; an assistant's calls and reasoning move to one field each.

    Any other role stays as it is, without special tokens: templates write it as the turn's name.
    """
    new = object_at(location, message)
    role, at = new.get("role"), f"{location}.role"
    if not isinstance(role, str):
        raise InvalidRequest(f"unknown role {excerpt(role)}", at, "Use assistant, system, tool or user")
    if role in _ROLES:
        new["role"] = repairs.change(at, "role", before=role, after=_ROLES[role])
    elif role == "assistant":
        _read_legacy_call(new, location, repairs)
        read_reasoning(new, location, repairs)
    else:
        new["role"] = repairs.clean(role, at)
    if role != "assistant" and new.get("tool_calls") is not None:
        repairs.change(f"{location}.tool_calls", "shape", before=new.pop("tool_calls"), after=None)
    return new


def call_form(given: object, location: str, only_name: str | None, repairs: TextRepairs) -> dict[str, Any]:
    """Copy a call in OpenAI's form with its arguments repaired.

    The input of a custom tool becomes the argument ``input``, as vLLM declares such a tool. A call without a name gets
    the name of the only tool declared, or ``unknown``.
    """
    call = object_at(location, given)
    inner = f"{location}.function"
    if call.get("function") is None:
        read_function(call, location, repairs)
    if call.get("type", "function") != "function":
        call["type"] = repairs.change(f"{location}.type", "shape", before=call["type"], after="function")
    call["function"] = function = object_at(inner, call.get("function"))
    function["name"] = _function_name(function.get("name"), call.get("id"), f"{inner}.name", only_name, repairs)
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        function["arguments"] = repairs.change(f"{inner}.arguments", "shape", before=arguments, after="{}")
    elif isinstance(arguments, str | Mapping):
        function["arguments"] = repairs.clean(arguments, f"{inner}.arguments")
    else:
        problem = f"must be a JSON object or its text, not {kind_of_json(arguments)}"
        raise InvalidRequest(problem, f"{inner}.arguments")
    return call


def name_in(call_id: str | None) -> str | None:
    """Return the function's name in ``functions.NAME:INDEX`` or ``NAME:INDEX``."""
    name, colon, index = (call_id or "").strip().rpartition(":")
    return name.removeprefix("functions.") if colon and index.isdecimal() else None


def usable_name(*candidates: str | None) -> str:
    """The first name that a call can have; ``unknown`` if there is none."""
    return next((name for name in candidates if name and not KIMI_K2.name_problem(name)), UNKNOWN)


def _read_legacy_call(new: dict[str, Any], location: str, repairs: TextRepairs) -> None:
    legacy = new.get("function_call")
    if legacy is None or new.get("tool_calls"):
        return
    here = f"{location}.function_call"
    call = {"type": "function", "function": object_at(here, legacy)}
    new["tool_calls"] = repairs.change(here, "shape", before=legacy, after=[call])


def read_reasoning(new: dict[str, Any], location: str, repairs: TextRepairs) -> None:
    """Put reasoning of any form into ``reasoning_content``, which Kimi's templates read, and a given ``reasoning``."""
    texts = (reasoning_text(new[name], f"{location}.{name}") for name in _REASONING_FIELDS if new.get(name))
    text = next(filter(None, texts), "")
    content = new.get("content")
    if isinstance(content, list | tuple) and (thoughts := [part for part in content if is_reasoning(part)]):
        at = f"{location}.content"
        more = reasoning_text(thoughts, at)
        text = text if more in text else text + more  # some clients send both
        rest = [part for part in content if not is_reasoning(part)]
        new["content"] = repairs.change(at, "content", before=content, after=rest)
    for name in ("reasoning_content", "reasoning"):
        given = new.get(name)
        is_needed = given is not None or (name == "reasoning_content" and text)
        if given != text and is_needed:
            new[name] = repairs.change(f"{location}.{name}", "reasoning", before=given, after=text)


def read_function(call: dict[str, Any], location: str, repairs: TextRepairs) -> None:
    """Move the name and arguments of a custom call, or of a flat one, to its ``function`` object."""
    before = dict(call)
    custom = call.pop("custom", None)
    if isinstance(custom, Mapping):
        text = custom.get("input")
        if not isinstance(text, str | None):
            raise InvalidRequest(f"must be a string, not {kind_of_json(text)}", f"{location}.custom.input")
        arguments = json.dumps({"input": text or ""}, ensure_ascii=False)
        call["function"] = {"name": custom.get("name"), "arguments": arguments}
    elif "name" in call:
        found = next((key for key in _ARGUMENTS_FIELDS if key in call), None)
        call["function"] = {"name": call.pop("name")} | ({"arguments": call.pop(found)} if found else {})
    if "function" in call:
        repairs.change(location, "shape", before=before, after=dict(call))


def _function_name(name: object, call_id: object, location: str, only_name: str | None, repairs: TextRepairs) -> str:
    if not isinstance(name, str | None):
        raise InvalidRequest("must be a string", location, "Name the function that was called")
    cleaned = repairs.clean(name, location)
    if cleaned and not KIMI_K2.name_problem(cleaned):
        return str(cleaned)
    used = usable_name(name_in(call_id) if isinstance(call_id, str) else None, only_name)
    return str(repairs.change(location, "shape", before=name, after=used))
