"""Requests of the table as bodies of the four endpoints."""

import json
import zlib
from collections.abc import Callable
from typing import Any

from tests.clients.table import LEFT_OUT, Row

Body = dict[str, Any]
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completions": "/v1/completions",
}


def body(endpoint: str, row: Row, *, stream: bool, max_tokens: int) -> Body:
    """The body of a row's request."""
    fields = {"max_tokens": max_tokens, "stream": stream} | row.fields
    body_of, fields_of = _FORMS[endpoint]
    return {"model": "kimi-k2"} | body_of(row) | fields_of(fields)


def _chat(row: Row) -> Body:
    return {"messages": row.messages, "seed": _seed(row)} | _given(tools=row.tools, tool_choice=_choice(row))


def _responses(row: Row) -> Body:
    items: list[dict[str, Any]] = []
    for message in row.messages:
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": _text(message)})
            continue
        if message.get("reasoning_content"):
            content = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
            items.append({"type": "reasoning", "id": "r", "summary": [], "content": content})
        if message.get("content") is not None:
            items.append({"role": message["role"], "content": _text(message)})
        calls = message.get("tool_calls", ())
        items += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
    tools = row.tools and [{"strict": None} | _flat(tool) if "function" in tool else tool for tool in row.tools]
    choice = _choice(row)
    if isinstance(choice, dict) and (allowed := choice.get("allowed_tools")):
        choice = {"type": "allowed_tools", "mode": allowed["mode"], "tools": [_flat(each) for each in allowed["tools"]]}
    elif isinstance(choice, dict):
        choice = _flat(choice)
    return {"input": items, "seed": _seed(row)} | _given(tools=tools, tool_choice=choice)


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """A function in the words of the Responses API."""
    return {"type": tool["type"], **tool["function"]}


def _messages(row: Row) -> Body:
    messages: list[dict[str, Any]] = []
    system: Any = LEFT_OUT
    for message in row.messages:
        if message["role"] in {"system", "developer"}:
            system = _text(message)
            continue
        blocks: list[dict[str, Any]] = []
        if message["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            messages.append({"role": "user", "content": [result]})
            continue
        if message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": "s"})
        blocks.append({"type": "text", "text": _text(message)})
        for call in message.get("tool_calls", ()):
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": arguments})
        messages.append({"role": message["role"], "content": blocks})
    tools = row.tools and [
        _renamed({"parameters": {}} | tool["function"], parameters="input_schema") for tool in row.tools
    ]
    choice = _choice(row)
    if isinstance(choice, dict) and "allowed_tools" in choice:
        choice = choice["allowed_tools"]["mode"]  # of no form here: what comes closest
    if isinstance(choice, str):
        choice = {"type": {"required": "any"}.get(choice, choice)}
    elif isinstance(choice, dict):
        choice = {"type": "tool", "name": choice["function"]["name"]}
    if isinstance(choice, dict) and row.fields.get("parallel_tool_calls") is False:
        choice["disable_parallel_tool_use"] = True
    return {"messages": messages, "temperature": 0} | _given(tools=tools, tool_choice=choice, system=system)


def _completions(row: Row) -> Body:
    made: dict[str, Any] = {"prompt": "How warm is it in Oslo?", "seed": _seed(row)}
    if row.tools is not None:
        made["vllm_xargs"] = {"constrained_k2": json.dumps(_given(tools=row.tools, tool_choice=_choice(row)))}
    return made


def _seed(row: Row) -> int:
    return zlib.crc32(row.name.encode())


def _choice(row: Row) -> Any:
    return row.choice if row.tools is not None or row.choice is not LEFT_OUT else LEFT_OUT


def _given(**fields: Any) -> Body:
    left_out = {name for name, value in fields.items() if value is LEFT_OUT or (name == "tools" and value is None)}
    return {name: value for name, value in fields.items() if name not in left_out}


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def _renamed(fields: Body, **names: str) -> Body:
    return {names.get(name, name): value for name, value in fields.items()}


def _responses_fields(fields: Body) -> Body:
    fields = _renamed(fields, max_tokens="max_output_tokens")
    fields.pop("logprobs", None)
    if effort := fields.pop("reasoning_effort", None):
        fields["reasoning"] = {"effort": effort}
    if wanted := fields.pop("response_format", None):
        fields["text"] = {"format": {"type": wanted["type"], **wanted.get("json_schema", {})}}
    return fields


def _messages_fields(fields: Body) -> Body:
    fields = _renamed(fields, stop="stop_sequences")
    if budget := fields.pop("thinking_token_budget", None):
        fields |= {"thinking": {"type": "enabled", "budget_tokens": budget}, "max_tokens": 1100}
    fields.pop("parallel_tool_calls", None)
    if wanted := fields.pop("response_format", None):
        schema = wanted.get("json_schema", {}).get("schema", {"type": "object"})
        fields["output_config"] = {"format": {"type": wanted["type"], "schema": schema}}
    return fields


def _completions_fields(fields: Body) -> Body:
    if fields.pop("logprobs", None):
        fields["logprobs"] = fields.pop("top_logprobs")
    return fields


_FORMS: dict[str, tuple[Callable[[Row], Body], Callable[[Body], Body]]] = {
    "chat": (_chat, dict),
    "responses": (_responses, _responses_fields),
    "messages": (_messages, _messages_fields),
    "completions": (_completions, _completions_fields),
}
"""Endpoint -> what writes a row as its request body, and what writes the row's further fields."""
