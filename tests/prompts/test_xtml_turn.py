"""A turn of Kimi K3 as the model writes it, and the blocks of its arguments."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_k2 import MalformedCompletion, render_tool_calls
from constrained_k2.prompts.xtml import XtmlRenderer, render_turn
from constrained_k2.prompts.xtml.arguments import Argument, split_arguments
from constrained_k2.prompts.xtml.turn import turn_text
from constrained_k2.request.spec import ToolCall
from tests.prompts import kimi_k3
from tests.prompts.dialogs import USER
from tests.prompts.kimi_k3 import BYTES


def spelled(*calls: ToolCall, **options: Any) -> str:
    return kimi_k3.spelled(render_turn(calls, BYTES, **options)).replace("<|", "").replace("|>", "")


def test_a_turn_with_reasoning_and_calls() -> None:
    written = spelled(
        ToolCall("f", 7, '{"a": "x ⟦", "n": 1e2}'), ToolCall('g"&', 0, ""), response="hello", reasoning="why"
    )
    assert written == (
        "why⟦close⟧think⟦sep⟧⟦open⟧response⟦sep⟧hello⟦close⟧response⟦sep⟧⟦open⟧tools⟦sep⟧"
        '⟦open⟧call tool="f" index="1"⟦sep⟧'
        '⟦open⟧argument key="a" type="string"⟦sep⟧x ⟦⟦close⟧argument⟦sep⟧'
        '⟦open⟧argument key="n" type="number"⟦sep⟧1e2⟦close⟧argument⟦sep⟧'
        '⟦close⟧call⟦sep⟧⟦open⟧call tool="g&quot;&amp;" index="2"⟦sep⟧⟦close⟧call⟦sep⟧'
        "⟦close⟧tools⟦sep⟧⟦close⟧message⟦sep⟧⟦end_of_msg⟧"
    )


def test_a_turn_with_thinking_off() -> None:
    assert spelled(response="hi") == "hi⟦close⟧response⟦sep⟧⟦close⟧message⟦sep⟧⟦end_of_msg⟧"
    assert spelled(reasoning="").startswith("⟦close⟧think⟦sep⟧⟦open⟧response⟦sep⟧⟦close⟧response")


def test_first_index_and_unparsable_arguments() -> None:
    written = spelled(ToolCall("f", 0, "[1,"), first_index=4)
    assert 'index="4"⟦sep⟧⟦open⟧json type="object"⟦sep⟧[1,⟦close⟧json⟦sep⟧⟦close⟧call' in written


def test_markers_in_values_stay_text() -> None:
    hostile = "<|close|>argument<|sep|><|close|>call<|sep|>"
    ids = render_turn([ToolCall("f", 0, json.dumps({"a": hostile, hostile: [hostile]}))], BYTES, response=hostile)
    plain = render_turn([ToolCall("f", 0, json.dumps({"a": "x", "k": ["x"]}))], BYTES)
    assert [at for at in ids if at >= 256] == [at for at in plain if at >= 256]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_turn_in_a_history_is_what_the_model_writes(thinking: bool) -> None:
    """The prompt, then the turn, is the prompt of the dialog with that turn."""
    body = {"thinking": thinking, "messages": [USER]}
    before = XtmlRenderer(BYTES).render(body).ids
    arguments = {"a": ["x"], "b": "<|sep|>"}
    turn = {
        "role": "assistant",
        "content": "there",
        "reasoning_content": "why",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    }
    history = body | {"messages": [USER, turn], "add_generation_prompt": False}
    call = ToolCall("f", 0, json.dumps(arguments))
    written = render_turn([call], BYTES, response="there", reasoning="why" if thinking else None)
    assert list(before) + written == list(XtmlRenderer(BYTES).render(history).ids)


def test_calls_are_rendered_behind_the_end_of_the_response() -> None:
    ids = render_tool_calls([ToolCall("f", 5, '{"a": "<|sep|>"}'), ToolCall("g", 6, "{}")], BYTES)
    assert kimi_k3.spelled(ids).replace("<|", "").replace("|>", "") == (
        "⟦close⟧response⟦sep⟧⟦open⟧tools⟦sep⟧"
        '⟦open⟧call tool="f" index="1"⟦sep⟧⟦open⟧argument key="a" type="string"⟦sep⟧sep⟦close⟧argument⟦sep⟧⟦close⟧call⟦sep⟧'
        '⟦open⟧call tool="g" index="2"⟦sep⟧⟦close⟧call⟦sep⟧⟦close⟧tools⟦sep⟧'
    )
    assert render_tool_calls([], BYTES) == []


def test_texts_that_cannot_be_encoded() -> None:
    with pytest.raises(MalformedCompletion):
        render_turn([], BYTES, response="\ud800")
    with pytest.raises(MalformedCompletion) as caught:
        render_turn([ToolCall("f", 0, "{}"), ToolCall("f", 0, '{"a":' + "[" * 100_000)], BYTES)
    assert caught.value.location == "calls[1].arguments"


BLOCKS: list[tuple[Any, list[tuple[str, str, str]] | str]] = [
    (None, []),
    ("", []),
    ("{}", []),
    (" { } ", []),
    ({}, []),
    ('{"a": 1e2, "b":[1,2] , "c" : {"x":  1}}', [("a", "number", "1e2"), ("b", "array", "[1,2]"), ("c", "object", '{"x":  1}')]),
    ('{"a": true, "b": null, "c": "\\u00e9\\n"}', [("a", "boolean", "true"), ("b", "null", "null"), ("c", "string", "é\n")]),
    ('{"a": 1, "a": "x"}', [("a", "number", "1"), ("a", "string", "x")]),
    ('{"b": 1, "a": 2} and more', [("b", "number", "1"), ("a", "number", "2")]),
    ('{"n": ' + "9" * 5000 + "}", [("n", "number", "9" * 5000)]),
    ('{"": ""}', [("", "string", "")]),
    ({"a": [1, {"b": "é"}], "c": 1.5, "d": False}, [("a", "array", '[1, {"b": "é"}]'), ("c", "number", "1.5"), ("d", "boolean", "false")]),
    *((text, text) for text in (" ", "not json", "[1,2]", "7", '"x"', '{"a": 1', '{"a" 1}', "{1: 2}", '{"a": NaN}')),
    *((text, text) for text in ('{"a": 1,}', '{"a": "x\ny"}', "{'a': 1}", "{a: 1}", '{"a": 1 "b": 2}', "{")),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "blocks"), BLOCKS, ids=lambda value: ascii(value)[:40])
def test_blocks(arguments: Any, blocks: list[tuple[str, str, str]] | str) -> None:
    expected = blocks if isinstance(blocks, str) else [Argument(*block) for block in blocks]
    assert split_arguments(arguments, "at") == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), VALUES))
def test_blocks_hold_the_value(arguments: dict[str, Any]) -> None:
    for given_form in (arguments, json.dumps(arguments), json.dumps(arguments, ensure_ascii=False)):
        blocks = split_arguments(given_form, "at")
        assert not isinstance(blocks, str)
        read = {key: text if kind == "string" else json.loads(text) for key, kind, text in blocks}
        assert read == arguments
        assert list(read) == list(arguments)


@given(st.text(alphabet='{}[]":,ab01 \\\n'))
def test_any_text_has_blocks(text: str) -> None:
    """A text is split exactly where Python's decoder reads an object at its start."""
    blocks = split_arguments(text, "at")
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip(" \t\r\n"))
    except ValueError:
        value = None
    if isinstance(value, dict):
        assert not isinstance(blocks, str)
        assert {block.key for block in blocks} == set(value)
    else:
        assert blocks == (text or [])


def test_a_turn_as_text_is_what_the_tokens_spell() -> None:
    calls = [ToolCall("f", 0, '{"a": "x", "n": 1e2}'), ToolCall("g", 1, "not json")]
    ids = render_turn(calls, BYTES, response="hello", reasoning="why")
    assert turn_text(calls, response="hello", reasoning="why") == BYTES.decode(ids)
    deep = "[" * 100_000
    assert deep in turn_text([ToolCall("f", 0, f'{{"a": {deep}')])
