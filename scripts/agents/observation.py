"""Reduces a request and its answer to names of fields, kinds, counts and statuses; it keeps no text of a prompt."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

GENERATING = ("/v1/messages", "/v1/chat/completions", "/v1/responses")
_KIND = re.compile(r"[a-z][a-z0-9_.-]{0,39}\Z")  # a value of `type` or `role`; anything else could be a user's text
_KINDS = ("type", "role", "phase", "effort", "syntax", "tool_choice", "strict", "stream", "parallel_tool_calls", "ttl")
# What a user or a tool author wrote is below these keys: its keys are not fields of the protocol.
_OPAQUE = ("input_schema", "parameters", "arguments", "input", "metadata", "client_metadata", "schema", "definition")
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentRequired", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples", "required", "description", "title")
_QUOTED = re.compile(r"'input': .*?(?=, 'ctx'|\}\]|\}, \{|$)", re.DOTALL)  # pydantic repeats the refused value


@dataclass
class Exchange:
    """One request of an agent and the server's answer."""

    method: str
    path: str  # without the query
    fields: frozenset[str] = frozenset()  # `tools[].type=function`, `thinking.budget_tokens`
    headers: frozenset[str] = frozenset()  # values of `anthropic-beta` and its like
    keywords: frozenset[str] = frozenset()  # JSON Schema keywords of the tools' parameters
    tools: int = 0
    status: int = 0  # 0: no answer yet
    reason: str = ""  # of an answer of 400 or more
    refused_by: str = ""  # "vLLM" or "this package"
    events: Counter[str] = field(default_factory=Counter)  # kinds of the stream's events
    stop: str = ""  # `stop_reason`, `finish_reason`, or the status of a response
    prompt_tokens: int = 0
    calls: int = 0
    ended: str = "open"  # then "whole", "cut" if the agent closed the connection first, or "broken" by the server
    digest: str = ""  # of the request's bytes, to find repeated ones
    started: float = field(default_factory=time.monotonic)

    def age(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self.started


def fields_of(body: Mapping[str, Any]) -> frozenset[str]:
    """Name every field of a request, and the values of those that name a kind."""
    return frozenset(_fields(body, ""))


def _fields(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _fields(item, f"{path}[]")
    if not isinstance(value, Mapping):
        return
    for key, inner in value.items():
        here = f"{path}.{key}" if path else key
        if key in _KINDS and (isinstance(inner, bool) or (isinstance(inner, str) and _KIND.match(inner))):
            yield f"{here}={str(inner).lower() if isinstance(inner, bool) else inner}"
            continue
        yield here
        # `input` is the conversation of /v1/responses at the top, and a call's arguments elsewhere.
        if key not in _OPAQUE or (key == "input" and not path):
            yield from _fields(inner, here)


def keywords_of(body: Mapping[str, Any]) -> frozenset[str]:
    """Name the JSON Schema keywords that the tools' parameters use."""
    return frozenset(word for tool in tools_of(body) for word in _keywords(_schema_of(tool)))


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


def _schema_of(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function")
    return (function if isinstance(function, Mapping) else tool).get("parameters", tool.get("input_schema"))


def _keywords(schema: Any) -> Iterator[str]:
    for branch in schema if isinstance(schema, list) else ():
        yield from _keywords(branch)
    if isinstance(schema, Mapping):
        for key, inner in schema.items():
            yield key
            if key in _NAMED and isinstance(inner, Mapping):
                for named in inner.values():
                    yield from _keywords(named)
            elif key not in _VALUES:
                yield from _keywords(inner)


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
    exchange.events[kind] += 1
    response = data.get("response")
    response = response if isinstance(response, Mapping) else data
    message = data.get("message")
    for holder in (response, message):
        usage = holder.get("usage") if isinstance(holder, Mapping) else None
        if isinstance(usage, Mapping):
            tokens = usage.get("prompt_tokens") or usage.get("input_tokens") or 0
            exchange.prompt_tokens = max(exchange.prompt_tokens, int(tokens))
    for choice in data.get("choices") or ():
        exchange.stop = choice.get("finish_reason") or exchange.stop
        part = choice.get("delta") or choice.get("message") or {}
        exchange.calls += sum(bool(call.get("id")) for call in part.get("tool_calls") or ())
    delta = data.get("delta")
    stop = (delta if isinstance(delta, Mapping) else data).get("stop_reason")
    exchange.stop = stop or exchange.stop
    blocks = [data.get("content_block")] if kind == "content_block_start" else data.get("content")
    exchange.calls += sum(isinstance(b, Mapping) and b.get("type") == "tool_use" for b in blocks or ())
    if kind in ("response", "response.completed", "response.incomplete", "response.failed"):
        exchange.stop = str(response.get("status", kind))
        exchange.calls += sum(str(item.get("type", "")).endswith("_call") for item in response.get("output") or ())
