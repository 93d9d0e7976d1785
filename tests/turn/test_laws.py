"""The laws of the format, over random calls and over random models."""

import json
import random
from itertools import chain
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import (
    KIMI_K2,
    Compiler,
    ToolCall,
    ToolCallSpec,
    Vocabulary,
    parse_completion,
    render_tool_calls,
)
from tests.kit.budget import tries
from tests.kit.compilers import validator_of
from tests.kit.data import mcp_servers
from tests.kit.walks import walk

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.text(min_size=1, max_size=20).filter(lambda name: not KIMI_K2.name_problem(name))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text, lambda inner: st.lists(inner) | st.dictionaries(text, inner)
)
calls = st.lists(
    st.builds(
        ToolCall,
        names,
        st.integers(0, 999),
        st.dictionaries(text, json_values).map(lambda value: json.dumps(value, ensure_ascii=False)) | text,
    ),
    max_size=4,
)


@settings(max_examples=tries(100, fast=25, everything=400))
@given(calls)
def test_what_is_rendered_parses_back(small_vocabulary: Vocabulary, calls: list[ToolCall]) -> None:
    completion = parse_completion(render_tool_calls(calls, small_vocabulary), small_vocabulary)
    assert list(completion.tool_calls) == calls
    assert not (completion.content or completion.cut_calls or completion.malformed)


@settings(max_examples=tries(60, fast=20), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(names, min_size=1, max_size=4, unique=True),
    st.sampled_from(["auto", "required", "none"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 120),
    st.integers(0, 2**32),
)
def test_a_random_model_writes_only_what_the_request_allows(
    small_compiler: Compiler, names: list[str], choice: str, parallel: bool, thinking: bool, first_index: int, seed: int
) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    spec = ToolCallSpec.from_openai(
        {
            "tools": [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in names],
            "tool_choice": choice,
            "parallel_tool_calls": parallel,
            "thinking": thinking,
            "first_index": first_index,
        }
    )
    ids = walk(small_compiler.compile(spec).matcher(), small_compiler.vocabulary, seed, limit=50_000)
    completion = parse_completion(ids, small_compiler.vocabulary)
    count = len(completion.tool_calls)
    assert not (completion.cut_calls or completion.malformed)
    assert count <= {"none": 0}.get(choice, count if parallel else 1)
    assert count or choice != "required"
    assert choice != "required" or not completion.content
    assert thinking or not completion.reasoning
    for position, call in enumerate(completion.tool_calls):
        assert call.name in names
        assert call.index == first_index + position
        jsonschema.validate(json.loads(call.arguments), parameters)


@pytest.mark.slow
def test_a_random_model_calls_real_tools_with_valid_arguments(real_compiler: Compiler) -> None:
    tools = list(chain.from_iterable(mcp_servers()))
    for number, tool in enumerate(tools):
        spec = ToolCallSpec.from_openai({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False})
        grammar = real_compiler.compile(spec)
        ids = walk(grammar.matcher(), real_compiler.vocabulary, number, tool["function"].get("parameters"))
        (call,) = parse_completion(ids, real_compiler.vocabulary).tool_calls
        assert (call.name, call.index) == (tool["function"]["name"], 0)
        validator_of(tool["function"].get("parameters", {})).validate(json.loads(call.arguments))
    assert len(tools) == 258


def shuffled(value: Any, chance: random.Random) -> Any:
    """The value with its properties in another order at every depth."""
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: shuffled(value[key], chance) for key in chance.sample(list(value), len(value))}


@pytest.mark.slow
@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 4}])
def test_any_property_order_and_any_spacing_can_be_written(small_compiler: Compiler, form: dict[str, Any]) -> None:
    tools = list(chain.from_iterable(mcp_servers()))
    chance = random.Random(0)
    vocabulary = small_compiler.vocabulary
    several = 0
    for number, tool in enumerate(tools):
        spec = ToolCallSpec.from_openai({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False})
        matcher = small_compiler.compile(spec).matcher()
        (call,) = parse_completion(
            walk(matcher, vocabulary, number, tool["function"].get("parameters")), vocabulary
        ).tool_calls
        arguments = json.loads(call.arguments)
        several += len(arguments) > 1
        for _ in range(3):
            text = json.dumps(shuffled(arguments, chance), ensure_ascii=False, **form)
            if "." in text or "e+" in text or "Infinity" in text:
                continue  # Python writes some numbers in another form than they were read in
            matcher.reset()
            again = render_tool_calls([ToolCall(call.name, 0, text)], vocabulary)
            assert matcher.accept_tokens(again), text
    assert several > 50
