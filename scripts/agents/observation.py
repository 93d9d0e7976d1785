"""Reduces a request and its answer to counts and statuses; it keeps no text of a prompt."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GENERATING = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
_QUOTED = re.compile(r"'input': .*?(?=, 'ctx'|\}\]|\}, \{|$)", re.DOTALL)  # pydantic repeats the refused value


@dataclass
class Exchange:
    """One request of an agent and the server's answer."""

    path: str  # without the query
    is_streamed: bool = False
    tools: int = 0
    status: int = 0  # 0: no answer yet
    reason: str = ""  # of an answer of 400 or more
    refused_by: str = ""  # "vLLM" or "this package"
    events: int = 0  # of the stream
    stop: str = ""  # `stop_reason`, `finish_reason`, or the status of a response
    prompt_tokens: int = 0
    ended: str = "open"  # then "whole", "cut" if the agent closed the connection first, or "broken" by the server
    digest: str = ""  # of the request's bytes, to find repeated ones
    started: float = field(default_factory=time.monotonic)


def tools_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the tools, with those of a namespace of /v1/responses instead of the namespace."""
    found: list[Mapping[str, Any]] = []
    for tool in body.get("tools") or []:
        inner = tool.get("tools")
        found += inner if isinstance(inner, list) else [tool]
    return found


def tool_names(body: Mapping[str, Any]) -> list[str]:
    """List the names that the model may call; vLLM shows a namespace's tools as ``NAMESPACE__NAME``."""
    names = []
    for tool in body.get("tools") or []:
        if isinstance(tool.get("tools"), list):
            names += [f"{tool['name']}__{inner['name']}" for inner in tool["tools"]]
        else:
            names.append((tool.get("function") or tool).get("name"))
    return [name for name in names if name]


def calls_in_history(body: Mapping[str, Any]) -> int:
    """Count the tool calls of the conversation so far: the index of the next one."""
    count = 0
    for message in body.get("messages") or ():
        count += len(message.get("tool_calls") or ())
        content = message.get("content")
        count += sum(part.get("type") == "tool_use" for part in content) if isinstance(content, list) else 0
    items = body.get("input")
    kinds = ("function_call", "custom_tool_call", "local_shell_call")
    return count + (sum(item.get("type") in kinds for item in items) if isinstance(items, list) else 0)


def reason_of(text: str) -> str:
    """Shorten an error answer to its message, without what it repeats of the request."""
    try:
        error = json.loads(text)
    except ValueError:
        return text[:200]
    error = error.get("error", error) if isinstance(error, dict) else error
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return " ".join(_QUOTED.sub("'input': ...", str(message)).split())[:600]


def observe_event(exchange: Exchange, kind: str, data: Mapping[str, Any]) -> None:
    """Count an event of a stream (`kind` is empty on chat completions), or a whole answer, into its exchange."""
    kind = kind or str(data.get("type") or data.get("object") or "error")
    exchange.events += 1
    response = data.get("response")
    response = response if isinstance(response, Mapping) else data
    for holder in (response, data.get("message")):
        usage = holder.get("usage") if isinstance(holder, Mapping) else None
        if isinstance(usage, Mapping):
            tokens = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
            exchange.prompt_tokens = max(exchange.prompt_tokens, int(tokens))
    for choice in data.get("choices") or ():
        exchange.stop = choice.get("finish_reason") or exchange.stop
    delta = data.get("delta")
    stop = (delta if isinstance(delta, Mapping) else data).get("stop_reason")
    exchange.stop = stop or exchange.stop
    if kind in ("response", "response.completed", "response.incomplete", "response.failed"):
        exchange.stop = str(response.get("status", kind))
