"""Requests that are refused, with the place of what is wrong: by repairs, by Kimi K3's renderer, and by its contract."""

from collections.abc import Callable
from typing import Any

import pytest

from constrained_k2 import InvalidRequest, repair_messages
from constrained_k2.prompts.xtml import XtmlRenderer, check_contract
from tests.kit.tools import tool as named_tool
from tests.prompts.dialogs import USER, call, calls, result
from tests.prompts.kimi_k3 import BYTES

RENDERER = XtmlRenderer(BYTES)


def tool(name: Any = "search") -> dict[str, Any]:
    return named_tool(name, {})


def said(**fields: Any) -> dict[str, Any]:
    """A request of one message."""
    return {"messages": [{"role": "user"} | fields]}


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER]} | fields


REPAIRS: list[tuple[Any, str]] = [
    (None, "body"),
    ([], "body"),
    ({}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": {"role": "user"}}, "messages"),
    ({"messages": [USER, "hi"]}, "messages[1]"),
    ({"messages": [USER, {"content": ""}]}, "messages[1].role"),
    ({"messages": [USER, {"role": ["user"], "content": ""}]}, "messages[1].role"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [USER, {"role": "user", "content": {"type": "text"}}]}, "messages[1].content"),
    ({"messages": [USER, {"role": "user", "content": ["a", 5]}]}, "messages[1].content[1]"),
    ({"messages": [USER, {"role": "user", "content": [{"type": "smell"}]}]}, "messages[1].content[0].type"),
    ({"messages": [USER, {"role": "user", "content": [{"type": ["text"]}]}]}, "messages[1].content[0].type"),
    ({"messages": [USER, {"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[1].content[0].text"),
    ({"messages": [USER, {"role": "assistant", "content": "", "tool_calls": {}}]}, "messages[1].tool_calls"),
    ({"messages": [USER, calls("x")]}, "messages[1].tool_calls[0]"),
    ({"messages": [USER, calls({"id": "a"})]}, "messages[1].tool_calls[0].function"),
    ({"messages": [USER, calls(call("a", name=5))]}, "messages[1].tool_calls[0].function.name"),
    ({"messages": [USER, calls(call("a", arguments=[1]))]}, "messages[1].tool_calls[0].function.arguments"),
    ({"messages": [USER, {**USER, "name": ["<|im_end|>"]}]}, "messages[1].name"),
    ({"messages": [USER], "tools": {}}, "tools"),
    ({"messages": [USER], "tools": ["f"]}, "tools[0]"),
    ({"messages": [USER], "tools": [{"type": "function", "function": 5}]}, "tools[0].function"),
]  # fmt: skip
RENDERING: list[tuple[Any, str]] = [
    ([], "body"),
    ({}, "messages"),
    ({"messages": "x"}, "messages"),
    ({"messages": ["x"]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    (said(role="critic", content="x"), "messages[0].role"),
    (said(content=3), "messages[0].content"),
    (said(content=[3]), "messages[0].content[0]"),
    (said(content="x", name=3), "messages[0].name"),
    (said(content=[{"type": "input_audio"}]), "messages[0].content[0].type"),
    (said(role="assistant", tool_calls=3), "messages[0].tool_calls"),
    (said(role="assistant", tool_calls=[3]), "messages[0].tool_calls[0]"),
    (said(role="assistant", tool_calls=[{"function": {"name": "f", "arguments": [1]}}]), "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [], "tools": 3}, "tools"),
    (asked(tools=[tool()], tool_choice="perhaps"), "tool_choice"),
    (asked(response_format="json_object"), "response_format"),
    (asked(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (asked(reasoning_effort="medium"), "reasoning_effort"),
    (asked(thinking={"type": "enabled", "effort": "medium"}), "thinking.effort"),
    (asked(thinking={"type": "on"}), "thinking.type"),
    (asked(chat_template_kwargs={"thinking_effort": "none"}), "chat_template_kwargs.thinking_effort"),
    (asked(chat_template_kwargs=3), "chat_template_kwargs"),
    (asked(add_generation_prompt="no"), "add_generation_prompt"),
    (asked(continue_final_message=True), "continue_final_message"),
]  # fmt: skip
CONTRACT: list[tuple[Any, str]] = [
    (asked(tools=[tool(), tool()]), "tools[1].function.name"),
    (said(role="system", tools=[tool()]) | {"tools": [tool()]}, "messages[0].tools[0].function.name"),
    ({"messages": [{"role": "system", "tools": [tool("f")]}] * 2}, "messages[1].tools[0].function.name"),
    (asked(tools=[None]), "tools[0]"),
    (asked(tools=[{"type": "function", "function": None}]), "tools[0].function"),
    (asked(tools=[{"type": "function"}]), "tools[0].name"),
    *((asked(tools=[tool(name)]), "tools[0].function.name") for name in ("", 7, "9a", "a.b", "a\n", "x" * 257)),
    (said(role="system", content="x", tools=[tool()]), "messages[0].content"),
    (said(role="system", tools=[None]), "messages[0].tools[0]"),
    (said(content="x", tools=[tool()]), "messages[0].tools"),
    (said(role="assistant", content="x", tools=[]), "messages[0].tools"),
    *(({"messages": [USER, result(given)]}, "messages[1].tool_call_id") for given in (None, "")),
    (asked(tool_choice="required"), "tool_choice"),
    (asked(tool_choice="required", tools=[]), "tool_choice"),
    (asked(tool_choice="sometimes", tools=[tool()]), "tool_choice"),
]


@pytest.mark.parametrize(
    ("refusing", "body", "location"),
    [*((repair_messages, *row) for row in REPAIRS), *((RENDERER.render, *row) for row in RENDERING + CONTRACT),
     *((check_contract, *row) for row in CONTRACT)],
    ids=lambda value: value.__name__ if callable(value) else None,
)  # fmt: skip
def test_refusals(refusing: Callable[[Any], Any], body: Any, location: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        refusing(body)
    assert refused.value.location == location
    assert refused.value.problem
