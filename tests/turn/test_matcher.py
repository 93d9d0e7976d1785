"""The wire-format automaton: what may come where, on the small vocabulary and on the real one."""

from typing import Any

import numpy as np
import pytest
import torch

from constrained_k2 import (
    CompiledToolCalls,
    Compiler,
    InvalidRequest,
    ToolCallMatcher,
    ToolCallSpec,
    UnsupportedSchema,
    Vocabulary,
)
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TABS = {"type": "function", "function": {"name": "list-tabs"}}
BODY = {"tools": [WEATHER, TABS]}


def compiled(compiler: Compiler, body: dict[str, Any] = BODY, **more: Any) -> CompiledToolCalls:
    return compiler.compile(ToolCallSpec.from_openai({**body, **more}))


def mask(matcher: ToolCallMatcher, compiler: Compiler) -> list[int]:
    bitmask = allocate_bitmask(2, compiler.vocabulary.size)
    matcher.fill_bitmask(bitmask, 1)
    assert not bitmask[0].any(), "another row was written"
    return allowed_ids(bitmask[1]).tolist()


def special_texts(matcher: ToolCallMatcher, compiler: Compiler) -> set[str]:
    vocabulary = compiler.vocabulary
    return {text for token in mask(matcher, compiler) if (text := vocabulary.special_text(token)) is not None}


def feed(matcher: ToolCallMatcher, compiler: Compiler, *parts: str) -> None:
    """Feed text, and markers by the name of their field."""
    for part in parts:
        marker = getattr(compiler.vocabulary.format, part, None)
        ids = [marker] if isinstance(marker, int) else compiler.vocabulary.encode(part)
        assert matcher.accept_tokens(ids), part


STOPS = {"<|im_end|>", "[EOS]"}
SECTION = "<|tool_calls_section_begin|>"


def test_free_text_allows_every_ordinary_token_the_section_and_the_stops(compiler: Compiler) -> None:
    matcher = compiled(compiler).matcher()
    ordinary = compiler.vocabulary.size - len(compiler.vocabulary.unordinary_ids)
    for _ in range(3):
        assert special_texts(matcher, compiler) == {SECTION, *STOPS}
        assert len(mask(matcher, compiler)) == ordinary + 3
        feed(matcher, compiler, "Hello <|tool_calls_section_begin|>functions.get_weather:0")  # spelled out: text
        assert matcher.phase is Phase.TEXT


def test_a_turn_step_by_step(compiler: Compiler) -> None:
    matcher = compiled(compiler).matcher()
    feed(matcher, compiler, "Let me see.", "section_begin")
    assert special_texts(matcher, compiler) == {"<|tool_call_begin|>"}
    assert len(mask(matcher, compiler)) == 1
    feed(matcher, compiler, "call_begin")
    assert special_texts(matcher, compiler) == set()
    feed(matcher, compiler, "functions.get_weather:0")
    assert mask(matcher, compiler) == [compiler.vocabulary.format.argument_begin]
    feed(matcher, compiler, "argument_begin", '{"city": "Bei')
    assert special_texts(matcher, compiler) == set()  # 0 of 256 inside a string
    feed(matcher, compiler, 'jing"}')
    assert mask(matcher, compiler) == [compiler.vocabulary.format.call_end]
    feed(matcher, compiler, "call_end")
    assert special_texts(matcher, compiler) == {"<|tool_call_begin|>", "<|tool_calls_section_end|>"}
    assert len(mask(matcher, compiler)) == 2
    feed(matcher, compiler, "call_begin", "functions.list-tabs:1", "argument_begin", "{}", "call_end", "section_end")
    assert special_texts(matcher, compiler) == STOPS
    assert len(mask(matcher, compiler)) == 2
    assert not matcher.is_terminated()
    feed(matcher, compiler, "turn_end")
    assert matcher.is_terminated()
    assert special_texts(matcher, compiler) == STOPS
    assert not matcher.accept_tokens([compiler.vocabulary.format.turn_end])


@pytest.mark.parametrize("index", ["7", "007", "00", "1", "9" * 40, "", " 0", "0 ", "-0", "٠"])
def test_only_the_expected_index(compiler: Compiler, index: str) -> None:
    matcher = compiled(compiler).matcher()
    feed(matcher, compiler, "section_begin", "call_begin")
    ids = compiler.vocabulary.encode(f"functions.get_weather:{index}")
    assert not matcher.accept_tokens([*ids, compiler.vocabulary.format.argument_begin])
    feed(matcher, compiler, "functions.get_weather:0", "argument_begin")


@pytest.mark.parametrize("name", ["get_weathe", "get_weather2", "Get_weather", "get_time", " get_weather", ""])
def test_only_declared_names(compiler: Compiler, name: str) -> None:
    matcher = compiled(compiler).matcher()
    feed(matcher, compiler, "section_begin", "call_begin")
    ids = compiler.vocabulary.encode(f"functions.{name}:0")
    assert not matcher.accept_tokens([*ids, compiler.vocabulary.format.argument_begin])


def test_indexes_go_on_from_the_history(small_compiler: Compiler) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    matcher = compiled(small_compiler, messages=[{"role": "assistant", "tool_calls": [call] * 11}]).matcher()
    feed(matcher, small_compiler, "section_begin")
    for index in (11, 12):
        feed(matcher, small_compiler, "call_begin", f"functions.list-tabs:{index}", "argument_begin", "{}", "call_end")


def test_required_opens_the_section_at_once(compiler: Compiler) -> None:
    matcher = compiled(compiler, tool_choice="required").matcher()
    assert mask(matcher, compiler) == [compiler.vocabulary.format.section_begin]


def test_a_named_tool_is_the_only_one_and_called_once(small_compiler: Compiler) -> None:
    matcher = compiled(small_compiler, tool_choice={"type": "function", "function": {"name": "list-tabs"}}).matcher()
    feed(matcher, small_compiler, "section_begin", "call_begin")
    assert not matcher.accept_tokens(small_compiler.vocabulary.encode("functions.get_weather"))
    feed(matcher, small_compiler, "functions.list-tabs:0", "argument_begin", "{}", "call_end")
    assert mask(matcher, small_compiler) == [small_compiler.vocabulary.format.section_end]


def test_one_call_only_without_parallel_calls(small_compiler: Compiler) -> None:
    matcher = compiled(small_compiler, parallel_tool_calls=False).matcher()
    feed(matcher, small_compiler, "section_begin", "call_begin", "functions.list-tabs:0", "argument_begin", "{}")
    feed(matcher, small_compiler, "call_end")
    assert mask(matcher, small_compiler) == [small_compiler.vocabulary.format.section_end]


@pytest.mark.parametrize("body", [{**BODY, "tool_choice": "none"}, {}, {"tools": []}])
def test_no_calls_means_no_markers(small_compiler: Compiler, body: dict[str, Any]) -> None:
    matcher = compiled(small_compiler, body).matcher()
    assert special_texts(matcher, small_compiler) == STOPS
    feed(matcher, small_compiler, "text")
    assert special_texts(matcher, small_compiler) == STOPS


def test_reasoning_comes_first_or_not_at_all(small_compiler: Compiler) -> None:
    grammar = compiled(small_compiler, thinking=True)
    matcher = grammar.matcher()
    assert special_texts(matcher, small_compiler) == {"<think>", SECTION, *STOPS}
    feed(matcher, small_compiler, "think_begin", "Hm.")
    assert special_texts(matcher, small_compiler) == {"</think>", SECTION}
    feed(matcher, small_compiler, "think_end")
    assert special_texts(matcher, small_compiler) == {SECTION, *STOPS}
    feed(matcher, small_compiler, "turn_end")
    matcher.reset()
    feed(matcher, small_compiler, "x")
    assert special_texts(matcher, small_compiler) == {SECTION, *STOPS}


def test_a_section_may_open_out_of_reasoning(small_compiler: Compiler) -> None:
    matcher = compiled(small_compiler, thinking=True).matcher()
    feed(matcher, small_compiler, "think_begin", "Hm.", "section_begin", "call_begin")


def test_reasoning_that_the_prompt_opened(small_compiler: Compiler) -> None:
    matcher = compiled(small_compiler, tool_choice="required").matcher(in_reasoning=True)
    assert special_texts(matcher, small_compiler) == {"</think>", SECTION}
    feed(matcher, small_compiler, "Hm.", "think_end")
    assert mask(matcher, small_compiler) == [small_compiler.vocabulary.format.section_begin]


def test_required_may_think_first_but_not_talk(small_compiler: Compiler) -> None:
    matcher = compiled(small_compiler, tool_choice="required", thinking=True).matcher()
    markers = small_compiler.vocabulary.format
    assert mask(matcher, small_compiler) == sorted([markers.section_begin, markers.think_begin])


@pytest.mark.parametrize("token", [-1, -(2**70), 2**70, 10**6])
def test_ids_out_of_range_are_refused_everywhere(small_compiler: Compiler, token: int) -> None:
    matcher = compiled(small_compiler).matcher()
    for part in ("x", "section_begin", "call_begin", "functions.list-tabs:0", "argument_begin", "{", "}", "call_end"):
        assert not matcher.accept_tokens([token])
        feed(matcher, small_compiler, part)
    assert not matcher.accept_tokens([token])


def test_a_torch_bitmask(small_compiler: Compiler) -> None:
    matcher = compiled(small_compiler).matcher()
    words = (small_compiler.vocabulary.size + 31) // 32
    bitmask = torch.zeros((3, words), dtype=torch.int32)
    expected = allocate_bitmask(3, small_compiler.vocabulary.size)
    for part in ("x", "section_begin", "call_begin", "functions.get_weather:0", "argument_begin"):
        feed(matcher, small_compiler, part)
        matcher.fill_bitmask(bitmask, 2)
        matcher.fill_bitmask(expected, 2)
        assert np.array_equal(bitmask.numpy(), expected)


def test_schemas_without_a_grammar(small_compiler: Compiler) -> None:
    def tool(parameters: Any) -> dict[str, Any]:
        function = {"name": "f", "strict": True, "parameters": parameters}
        return {"tools": [TABS, {"type": "function", "function": function}]}

    for parameters, said in (
        ({"type": "object", "not": {}}, "no value satisfies"),
        ({"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["a"]},
         "no value satisfies"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedSchema, match=said) as refused:
            compiled(small_compiler, tool(parameters))
        assert "name='f'" in refused.value.location
        lazily = small_compiler.compile(ToolCallSpec.from_openai(tool(parameters)), check=False).matcher()
        feed(lazily, small_compiler, "section_begin", "call_begin", "functions.f:0")
        with pytest.raises(UnsupportedSchema):
            lazily.accept_tokens([small_compiler.vocabulary.format.argument_begin])
        assert compiled(small_compiler)  # the others go on


def test_a_users_schema_cannot_steer_the_engine(small_compiler: Compiler) -> None:
    parameters = {"type": "object", "x-guidance": {"whitespace_pattern": "[xyz]+", "item_separator": ";"}}
    body = {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}
    matcher = compiled(small_compiler, body).matcher()
    feed(matcher, small_compiler, "section_begin", "call_begin", "functions.f:0", "argument_begin")
    feed(matcher, small_compiler, '{"a": 1, "b": 2}', "call_end")


def test_an_unknown_engine(small_compiler: Compiler) -> None:
    with pytest.raises(InvalidRequest, match="engine"):
        Compiler(small_compiler.vocabulary, engine="regex")  # type: ignore[arg-type]


@pytest.mark.parametrize("broken", ["transposed", "int64", "narrow"])
def test_a_bitmask_of_another_layout_is_never_written(small_compiler: Compiler, broken: str) -> None:
    words = (small_compiler.vocabulary.size + 31) // 32
    bitmask = {
        "transposed": np.zeros((words, 2), dtype=np.int32).T,
        "int64": np.zeros((2, words), dtype=np.int64),
        "narrow": np.zeros((2, words - 1), dtype=np.int32),
    }[broken]
    with pytest.raises(ValueError, match="a bitmask is int32"):
        compiled(small_compiler).matcher().fill_bitmask(bitmask, 1)


def test_a_vocabulary_without_think_tokens(small_vocabulary: Vocabulary) -> None:
    special = dict(small_vocabulary.special_tokens)
    special["<|reserved_token_a|>"], special["<|reserved_token_b|>"] = special.pop("<think>"), special.pop("</think>")
    tokens = {
        token: small_vocabulary.ordinary_bytes(token)
        for token in range(small_vocabulary.size)
        if small_vocabulary.is_ordinary(token)
    }
    compiler = Compiler(Vocabulary(tokens, special, small_vocabulary.size, small_vocabulary.encoder))
    matcher = compiled(compiler, thinking=True).matcher()
    assert special_texts(matcher, compiler) == {SECTION, *STOPS}
    assert (
        compiled(compiler, tool_choice="required", thinking=True)
        .matcher()
        .accept_tokens([compiler.vocabulary.format.section_begin])
    )
