"""Rewrites a request's history before vLLM validates it, so that vLLM's request models accept it.

vLLM's request models follow OpenAI's types to the letter. A result that is a list of strings, an ``input_text`` part in
a chat message or arguments as an object get HTTP 400; if an answer has several parts, /v1/responses reads only the
first. A value without a meaning stays as it is, for vLLM to refuse.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.prompts.content import MEDIA_PARTS, is_inline_media, reasoning_text, text_of
from constrained_k2.prompts.forms import read_function, read_reasoning
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.prompts.text_repairs import TextRepairs
from constrained_k2.vllm_plugin.shared.server import Server
from constrained_k2.vllm_plugin.shared.settings import OFF, REPAIR_KEY

_INPUT_PARTS = frozenset({"input_text", "input_image", "input_file"})
# Calls of tools that a client runs -> the field with what was asked for.
_CLIENT_CALLS = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}
_CLIENT_OUTPUTS = frozenset(f"{name}_output" for name in _CLIENT_CALLS)
_NO_SPECIALS = SpecialTexts(())  # they are neutralized later, with the tokenizer's own


def accepted(body: dict[str, Any], field: str) -> dict[str, Any]:
    """A body whose history vLLM's models accept: the given body, or a repaired copy if repairs are on and needed.

    ``field`` is the field of the history: ``messages`` for chats, ``input`` for responses.
    """
    xargs = body.get("vllm_xargs")
    switch = xargs.get(REPAIR_KEY) if isinstance(xargs, Mapping) else None
    if switch == OFF or (switch is None and not Server.settings.repair):
        return body
    if isinstance(given := body.get(field), list):
        rewrite = _message if field == "messages" else _items
        body = {**body, field: [new for value in given for new in _rewritten(value, rewrite)]}
    return body


def _rewritten(value: Any, rewrite: Callable[[dict[str, Any]], list[Any]]) -> list[Any]:
    try:
        return rewrite(dict(value)) if isinstance(value, Mapping) else [value]
    except (InvalidRequest, KeyError, TypeError, ValueError, RecursionError):
        return [value]


def _message(new: dict[str, Any]) -> list[Any]:
    role, calls = new.get("role"), new.get("tool_calls")
    if role == "assistant":
        read_reasoning(new, "", TextRepairs(_NO_SPECIALS))
        if isinstance(calls, list):
            new["tool_calls"] = [_call(call) for call in calls]
    content = new.get("content")
    if content is None and role not in {"assistant", "function"}:
        new["content"] = ""
    elif not isinstance(content, str | None) and not _are_chat_parts(content, role):
        new["content"] = text_of(content, str(role), "", calls=bool(calls))
    if isinstance(new.get("tool_call_id"), int):
        new["tool_call_id"] = str(new["tool_call_id"])
    if "name" in new and new["name"] is None:
        del new["name"]
    return [new]


def _are_chat_parts(content: object, role: object) -> bool:
    return isinstance(content, list) and all(_is_chat_part(part, role) for part in content)


def _is_chat_part(part: object, role: object) -> bool:
    if not isinstance(part, Mapping) or (role == "tool" and is_inline_media(part)):
        return False
    kind = part.get("type")
    return isinstance(part.get("text"), str) if kind == "text" else kind in MEDIA_PARTS


def _call(call: Any) -> Any:
    """A call of a chat message: a function's, or a custom tool's as it is."""
    if not isinstance(call, Mapping) or "custom" in call:
        return call
    new = dict(call)
    if new.get("function") is None:
        read_function(new, "", TextRepairs(_NO_SPECIALS))
    if not isinstance(new.get("function"), Mapping):
        return call
    new["function"] = function = dict(new["function"])
    function["arguments"] = _text(function.get("arguments"), "{}")
    if function.get("name") is None:
        function["name"] = ""
    return {**new, "id": _text(new.get("id"), ""), "type": "function"}


def _items(new: dict[str, Any]) -> list[Any]:
    """The items of an item of a responses request: several for an assistant's chat message with calls."""
    kind, role, calls = new.get("type", "message"), new.get("role"), new.pop("tool_calls", None)
    if kind in _CLIENT_CALLS or kind in _CLIENT_OUTPUTS:
        new = _client_item(new, kind)
        kind = new["type"]
    if kind == "function_call":
        new["arguments"] = _text(new.get("arguments"), "{}")
    elif kind in {"function_call_output", "custom_tool_call_output"}:
        new["output"] = _input_content(new.get("output"), "tool")
    elif kind == "reasoning":
        _read_reasoning_item(new)
    elif role == "tool":
        output = _input_content(new.get("content"), "tool")
        new = {"type": "function_call_output", "call_id": _text(new.get("tool_call_id"), ""), "output": output}
    elif role == "assistant":
        if not _is_output(new):
            new["content"] = text_of(new.get("content"), role, "", calls=False)
        if isinstance(calls, list):
            items = [_function_call(call) for call in calls]
            if None in items:  # the message stays as it is: what it means is for vLLM to say
                return [new | {"tool_calls": calls}]
            return [new] * bool(new["content"]) + items
    elif isinstance(role, str):
        new["content"] = _input_content(new.get("content"), role)
    return [new]


def _is_output(item: Mapping[str, Any]) -> bool:
    """True for a message that vLLM reads as it is: a string, or one part of text."""
    content = item.get("content")
    if not isinstance(content, list):
        return isinstance(content, str)
    types = [part.get("type") if isinstance(part, Mapping) else None for part in content]
    return types == ["output_text"] and "type" in item


def _function_call(call: Any) -> dict[str, Any] | None:
    """The item of a chat message's call; None if it is not the call of a function."""
    read = _call(call)
    if not isinstance(read, Mapping) or not isinstance(function := read.get("function"), Mapping):
        return None
    return {"type": "function_call", "call_id": _text(read.get("id"), ""), **function}


def _client_item(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A function's call or result in place of one of a tool that has a type of its own."""
    call_id = _text(item.get("call_id") or item.get("id"), "")
    if kind in _CLIENT_OUTPUTS:
        return {"type": "function_call_output", "call_id": call_id, "output": item.get("output")}
    arguments = item.get(_CLIENT_CALLS[kind])
    return {"type": "function_call", "call_id": call_id, "name": kind.removesuffix("_call"), "arguments": arguments}


def _read_reasoning_item(new: dict[str, Any]) -> None:
    """Put a reasoning item's text into one part: vLLM reads the first. Encrypted reasoning has no text to show."""
    new.pop("encrypted_content", None)
    new["summary"] = (
        [{"type": "summary_text", "text": text}] if (text := reasoning_text(new.get("summary"), "")) else []
    )
    if text := reasoning_text(new.get("content"), ""):
        new["content"] = [{"type": "reasoning_text", "text": text}]


def _input_content(content: Any, role: str) -> Any:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") in _INPUT_PARTS for part in content
    ):
        return content
    return text_of(content, role, "", calls=False)


def _text(value: Any, default: str) -> str:
    if value is None:
        return default
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
