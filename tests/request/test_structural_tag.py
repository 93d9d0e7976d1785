"""Structural tags of each format's calls: read back into the request that they were built from, whole or not at all."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from constrained_k2 import ToolCallSpec
from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.request.structural_tag import read_structural_tag
from tests.kit.data import data
from tests.kit.tools import tool

xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}  # None too
    for name, parameters in (
        ("get_weather", {"type": "object", "properties": {"z": {"type": "string"}, "a": {"maximum": 2**70}}}),
        ("mcp.files:read", {"type": "object", "required": ["path"], "additionalProperties": False}),
        ("free", None),
    )
]
NAMED = {"type": "function", "function": {"name": "mcp.files:read"}}


FORMATS = {"kimi": KIMI_K2, "kimi_k3": KIMI_K3}
each_format = pytest.mark.parametrize("model", FORMATS)
each_choice = pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])


def built(model: str = "kimi", **fields: Any) -> Any:
    """A tag as xgrammar builds it, decoded."""
    given = {"tools": TOOLS, "tool_choice": "auto", "reasoning": "disabled"} | fields
    return json.loads(xgrammar.get_model_structural_tag(model, **given).model_dump_json())


def spec_of(tag: Any, model: str = "kimi", declared: Any = None) -> ToolCallSpec:
    return ToolCallSpec.from_openai(read_structural_tag(tag, FORMATS[model], declared))


@pytest.mark.parametrize("reasoning", ["disabled", "enabled", "auto"])
@pytest.mark.parametrize("parallel", [True, False])
@each_choice
@each_format
def test_the_request_is_read_back(model: str, choice: Any, parallel: bool, reasoning: str) -> None:
    found = built(model, tool_choice=choice, parallel_tool_calls=parallel, reasoning=reasoning)
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel, "thinking": reasoning != "disabled"}
    for given in (found, json.dumps(found)):
        assert spec_of(given, model) == ToolCallSpec.from_openai(body)


def test_tags_of_the_rust_front_end() -> None:
    """Its requests, beside the tags that it built."""
    cases = json.loads(data("reference/structural_tags_from_rust_front_end.json").read_text("utf-8"))
    tagged = [case for case in cases if case["structural_tag"] is not None]
    assert len(tagged) >= 7
    for case in tagged:
        request = {name: value for name, value in case["request"].items() if name != "vllm_xargs"}
        for entry in request["tools"]:
            entry["function"].pop("strict", None)
            entry.pop("strict", None)
        assert spec_of(case["structural_tag"]) == ToolCallSpec.from_openai(request)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"type": "json_schema", "json_schema": {"type": "array"}}, "json"),
        ({"type": "regex", "pattern": "[0-9]+"}, "regex"),
        ({"type": "grammar", "grammar": 'start: "a"'}, "lark"),
        ({"type": "or", "elements": [{"type": "const_string", "value": text} for text in "ab"]}, "lark"),
    ],
)
@each_format
def test_an_answer_of_a_form_beside_calls(model: str, asked: Any, field: str) -> None:
    def beside(choice: str) -> ToolCallSpec:
        either = {"type": "or", "elements": [built(model, tool_choice=choice)["format"], asked]}
        return spec_of({"type": "structural_tag", "format": either}, model)

    spec = beside("required")
    assert (spec.choice, len(spec.tools)) == ("auto", 3)
    assert spec.answer is not None and spec.answer.kind == field
    if model == "kimi_k3":
        with pytest.raises(InvalidRequest, match="beside any text"):
            beside("auto")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tag, except inside schemas."""
    yield path
    if path and path[-1] == "json_schema" and isinstance(value, dict | bool):
        return
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(below, (*path, key))


def changed(tag: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(tag) if isinstance(tag, dict) else list(tag)
    copy[path[0]] = changed(tag[path[0]], path[1:], value)
    return copy


def check_differences(tag: Any, read: Callable[[Any], dict[str, Any]]) -> None:
    """Replace each value of a tag in turn: what is read says the same, or what the value says, or the tag is refused."""
    before, paths = read(tag), list(places(tag))
    meaning = {"json_schema", "stop_after_first", "begin"}  # schemas, one call only, and names
    harmless = {"any_order", "max_whitespace_cnt"}  # narrower or wider than ours by no token that counts
    others: tuple[Any, ...] = ("other", True, 3, None, [], {}, {"type": "any_text"})
    for path in paths:
        for value in others:
            try:
                found = read(changed(tag, path, value))
            except InvalidRequest:
                continue
            if path[-1] not in meaning | harmless:
                assert found == before, (path, value)
    assert len(paths) > 30


@each_choice
@each_format
def test_a_tag_that_differs_anywhere_is_not_read(model: str, choice: Any) -> None:
    tag = built(model, tool_choice=choice, reasoning="auto")
    check_differences(tag, partial(read_structural_tag, wire_format=FORMATS[model]))


CLOSED = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}


def built_by_vllm(tools: Any, choice: Any = "required", level: str = "PARAMETER", *, single: bool = False) -> Any:
    """A tag as vLLM's Python front end builds it, decoded."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionNamedToolChoiceParam,
        ChatCompletionToolsParam,
    )
    from vllm.tool_parsers import structural_tag_registry as registry

    read = [ChatCompletionToolsParam.model_validate(entry) for entry in tools]
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


@pytest.mark.parametrize("single", [True, False])
@each_choice
def test_the_tag_of_vllms_python_front_end(choice: Any, single: bool) -> None:
    """Without schemas it is read as it is; a schema that it spells out must be known from elsewhere."""
    free = [{"type": "function", "function": {"name": entry["function"]["name"]}} for entry in TOOLS]
    body = {"tools": free, "tool_choice": choice, "parallel_tool_calls": not single}
    expected = ToolCallSpec.from_openai(body)
    if choice == NAMED and not single:  # vLLM writes a named function as a requirement of calls of it
        expected = ToolCallSpec.from_openai(body | {"tools": free[1:2], "tool_choice": "required"})
    assert spec_of(built_by_vllm(TOOLS, choice, "FUNCTION", single=single), "kimi_k3") == expected
    tag = built_by_vllm(TOOLS, choice, single=single)
    if choice != NAMED:
        with pytest.raises(InvalidRequest, match="spells out the arguments of 'get_weather' without"):
            spec_of(tag, "kimi_k3")
    declared = {tool["function"]["name"]: {"parameters": tool["function"]["parameters"]} for tool in TOOLS}
    known = spec_of(tag, "kimi_k3", declared)
    assert [tool.parameters for tool in known.tools] == [
        declared[tool.name]["parameters"] or {"type": "object"} for tool in expected.tools
    ]
    assert (known.choice, known.parallel) == (expected.choice, expected.parallel)


@pytest.mark.parametrize("schema", [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                                    {"properties": {"a": {"enum": ["x", 1]}}, "required": ["a"]}])  # fmt: skip
def test_arguments_spelled_out_are_no_schema(schema: Any) -> None:
    tools: list[Any] = [tool("f", schema)]
    with pytest.raises(InvalidRequest, match=r"structural_tag: the tag spells out .* adopt: 'prompt'"):
        spec_of(built_by_vllm(tools), "kimi_k3")
    assert spec_of(built_by_vllm(tools, level="FUNCTION"), "kimi_k3").tools[0].parameters == {"type": "object"}
    tools[0]["function"]["parameters"] = {"properties": {"a": {"enum": ["x", 1]}}}  # for which vLLM's tag takes any key
    assert spec_of(built_by_vllm(tools), "kimi_k3").tools[0].parameters == {"type": "object"}


@pytest.mark.parametrize("typed", [{"type": "star", "content": {"type": "const_string", "value": "a"}},
                                   {"type": "sequence", "elements": []}])  # fmt: skip
@pytest.mark.parametrize("must_call", [True, False])
@pytest.mark.parametrize("reasoning", [True, False])
def test_the_form_of_the_rust_front_end(typed: Any, must_call: bool, reasoning: bool) -> None:
    tag = by_rust("a&amp;&quot;b", CLOSED, typed=typed, must_call=must_call, reasoning=reasoning)
    tools = [tool('a&"b', CLOSED)]
    choice = "required" if must_call else "auto"
    assert spec_of(tag, "kimi_k3") == ToolCallSpec.from_openai(
        {"tools": tools, "tool_choice": choice, "thinking": reasoning}
    )


ANY_TEXT = '{"type": "structural_tag", "format": {"type": "any_text"}}'


def nested(depth: int) -> str:
    return '{"type": "structural_tag", "format": ' + '{"type": "optional", "content": ' * depth + "}" * (depth + 1)


@pytest.mark.parametrize(
    ("model", "tag"),
    [
        *(("kimi", tag) for tag in (
            "", "nothing", "[]", "null", '{"type": "structural_tag"}', '{"structures": [], "triggers": []}', ANY_TEXT, nested(3000),
            '{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"a": "\ud800"}}}',
            json.dumps(built() | {"more": 1}), json.dumps(xgrammar.get_model_structural_tag("qwen_3", tools=TOOLS).model_dump()),
            json.dumps(built(tools=[])),
        )),
        *(("kimi_k3", tag) for tag in (
            "", "[]", ANY_TEXT, nested(900), nested(3000), json.dumps(built("kimi")), json.dumps(built("kimi_k3", tools=[])),
            json.dumps(built("kimi_k3")).replace('"excludes": ["<|open|>"', '"excludes": ["a"'),
        )),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_other_tags(model: str, tag: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"structural_tag: is not {FORMATS[model].name}'s"):
        read_structural_tag(tag, FORMATS[model])
