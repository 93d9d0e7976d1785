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

xgrammar = pytest.importorskip("xgrammar", reason="xgrammar is not installed")

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": parameters}}
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
        for tool in request["tools"]:
            tool["function"].pop("strict", None)
            tool.pop("strict", None)
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


@pytest.mark.parametrize(
    "tag",
    [
        "",
        "nothing",
        "[]",
        "null",
        '{"type": "structural_tag"}',
        '{"structures": [], "triggers": []}',
        '{"type": "structural_tag", "format": {"type": "any_text"}}',
        '{"type": "structural_tag", "format": ' + '{"type": "optional", "content": ' * 3000 + "}" * 3001,
        '{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"a": "\ud800"}}}',
        json.dumps(built() | {"more": 1}),
        json.dumps(xgrammar.get_model_structural_tag("qwen_3", tools=TOOLS).model_dump()),
        json.dumps(built(tools=[])),
    ],
    ids=lambda tag: tag[:40],
)
def test_other_tags(tag: str) -> None:
    with pytest.raises(InvalidRequest, match=r"structural_tag: is not Kimi K2's"):
        read_structural_tag(tag)
