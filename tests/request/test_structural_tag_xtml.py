"""Structural tags of Kimi K3's calls as vLLM's front ends build them, and what is none of them."""

import json
from functools import partial
from typing import Any

import pytest

from constrained_k2 import ToolCallSpec
from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.request.structural_tag import read_structural_tag
from tests.request.test_structural_tag import NAMED, TOOLS, built, each_choice
from tests.request.test_structural_tag import spec_of as read

CLOSED = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}


def built_by_vllm(tools: Any, choice: Any = "required", level: str = "PARAMETER", *, single: bool = False) -> Any:
    """A tag as vLLM's Python front end builds it, decoded."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionNamedToolChoiceParam,
        ChatCompletionToolsParam,
    )
    from vllm.tool_parsers import structural_tag_registry as registry

    read = [ChatCompletionToolsParam.model_validate(tool) for tool in tools]
    named = choice if isinstance(choice, str) else ChatCompletionNamedToolChoiceParam.model_validate(choice)
    tag = registry.get_model_structural_tag(
        "kimi_k3", read, named, reasoning=False, strict_level=registry.ToolStrictLevel[level]
    )
    assert tag is not None
    return (registry.limit_to_single_tool_call(tag) if single else tag).model_dump()


def by_rust(name: str, schema: Any, *, typed: Any, must_call: bool = True, reasoning: bool = False) -> Any:
    """A tag in the form of vLLM's Rust front end: the arguments one by one, or as a block of JSON."""
    argument = {"type": "json_schema", "json_schema": schema, "style": "json"}
    block = {"type": "tag", "begin": '<|open|>json type="object"<|sep|>', "content": argument,
             "end": "<|close|>json<|sep|>"}  # fmt: skip
    header = [{"type": "regex", "pattern": "[1-9][0-9]*"}, {"type": "const_string", "value": '"<|sep|>'}]
    body = {"type": "or", "elements": [typed, block]}
    call = {"type": "tag", "begin": f'<|open|>call tool="{name}" index="',
            "content": {"type": "sequence", "elements": [*header, body]}, "end": "<|close|>call<|sep|>"}  # fmt: skip
    calls = {"type": "tags_with_separator", "tags": [call], "separator": "", "at_least_one": True}
    section = {"type": "tag", "begin": "<|open|>tools<|sep|>", "content": calls, "end": "<|close|>tools<|sep|>"}
    opened: dict[str, Any] = {"type": "const_string", "value": "<|open|>response<|sep|>"}
    think = {"type": "tag", "begin": "", "end": "<|close|>think<|sep|>",
             "content": {"type": "any_text", "excludes": ["<|close|>think<|sep|>", "<|end_of_msg|>"]}}  # fmt: skip
    text = {"type": "any_text", "excludes": ["<|open|>tools<|sep|>", "<|end_of_msg|>"]}
    elements = [
        *([think, opened] if reasoning else [{"type": "optional", "content": opened}]),
        {"type": "tag", "begin": "", "content": text, "end": "<|close|>response<|sep|>"},
        section if must_call else {"type": "optional", "content": section},
        {"type": "optional", "content": {"type": "const_string", "value": "<|close|>message<|sep|>"}},
    ]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}


spec_of = partial(read, model="kimi_k3")


@pytest.mark.parametrize("single", [True, False])
@each_choice
def test_the_tag_of_vllms_python_front_end(choice: Any, single: bool) -> None:
    """Without schemas it is read as it is; a schema that it spells out must be known from elsewhere."""
    free = [{"type": "function", "function": {"name": tool["function"]["name"]}} for tool in TOOLS]
    body = {"tools": free, "tool_choice": choice, "parallel_tool_calls": not single}
    expected = ToolCallSpec.from_openai(body)
    if choice == NAMED and not single:  # vLLM writes a named function as a requirement of calls of it
        expected = ToolCallSpec.from_openai(body | {"tools": free[1:2], "tool_choice": "required"})
    assert spec_of(built_by_vllm(TOOLS, choice, "FUNCTION", single=single)) == expected
    tag = built_by_vllm(TOOLS, choice, single=single)
    if choice != NAMED:
        with pytest.raises(InvalidRequest, match="spells out the arguments of 'get_weather' without"):
            spec_of(tag)
    declared = {tool["function"]["name"]: {"parameters": tool["function"]["parameters"]} for tool in TOOLS}
    known = spec_of(tag, declared=declared)
    assert [tool.parameters for tool in known.tools] == [
        declared[tool.name]["parameters"] or {"type": "object"} for tool in expected.tools
    ]
    assert (known.choice, known.parallel) == (expected.choice, expected.parallel)


@pytest.mark.parametrize("schema", [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                                    {"properties": {"a": {"enum": ["x", 1]}}, "required": ["a"]}])  # fmt: skip
def test_arguments_spelled_out_are_no_schema(schema: Any) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(InvalidRequest, match=r"structural_tag: the tag spells out .* adopt: 'prompt'"):
        spec_of(built_by_vllm(tools))
    assert spec_of(built_by_vllm(tools, level="FUNCTION")).tools[0].parameters == {"type": "object"}
    tools[0]["function"]["parameters"] = {"properties": {"a": {"enum": ["x", 1]}}}  # for which vLLM's tag takes any key
    assert spec_of(built_by_vllm(tools)).tools[0].parameters == {"type": "object"}


@pytest.mark.parametrize("typed", [{"type": "star", "content": {"type": "const_string", "value": "a"}},
                                   {"type": "sequence", "elements": []}])  # fmt: skip
@pytest.mark.parametrize("must_call", [True, False])
@pytest.mark.parametrize("reasoning", [True, False])
def test_the_form_of_the_rust_front_end(typed: Any, must_call: bool, reasoning: bool) -> None:
    tag = by_rust("a&amp;&quot;b", CLOSED, typed=typed, must_call=must_call, reasoning=reasoning)
    tools = [{"type": "function", "function": {"name": 'a&"b', "parameters": CLOSED}}]
    choice = "required" if must_call else "auto"
    assert spec_of(tag) == ToolCallSpec.from_openai({"tools": tools, "tool_choice": choice, "thinking": reasoning})


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "[]",
        '{"type": "structural_tag", "format": {"type": "any_text"}}',
        '{"type": "structural_tag", "format": ' + '{"type": "optional", "content": ' * 900 + "}" * 901,
        '{"type": "structural_tag", "format": ' + '{"type": "optional", "content": ' * 3000 + "}" * 3001,
        json.dumps(built("kimi")),
        json.dumps(built("kimi_k3", tools=[])),
        json.dumps(built("kimi_k3")).replace('"excludes": ["<|open|>"', '"excludes": ["a"'),
    ],
    ids=lambda tag: tag[:40],
)
def test_other_tags(tag: str) -> None:
    with pytest.raises(InvalidRequest, match=r"structural_tag: is not Kimi K3's"):
        read_structural_tag(tag, KIMI_K3)
