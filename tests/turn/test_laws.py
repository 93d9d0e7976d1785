"""The laws of the formats, over random calls and over random models."""

import json
import random
from itertools import chain

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import KIMI_K2, Compiler, ToolCall, Vocabulary, parse_completion, render_tool_calls
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.parsing import PARSING_LEVELS
from constrained_k2.parsing.parser import ParsingLevel
from constrained_k2.request.spec import Tool
from tests.kit.answers import is_json
from tests.kit.budget import tries
from tests.kit.compilers import validator_of
from tests.kit.data import mcp_servers
from tests.kit.k3_turns import read
from tests.kit.tools import tool
from tests.kit.turns import Preference, is_k3, matcher_of, steps, towards_the_end
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


@settings(max_examples=tries(200, fast=50, everything=800))
@given(calls, st.sampled_from(PARSING_LEVELS))
def test_what_is_rendered_parses_back(small_vocabulary: Vocabulary, calls: list[ToolCall], level: ParsingLevel) -> None:
    """At the tolerant level only with arguments that are JSON: others are repaired."""
    if level == "tolerant":
        calls = [call for call in calls if is_json(call.arguments)]
    tools, ids = [Tool(call.name) for call in calls], render_tool_calls(calls, small_vocabulary)
    completion = parse_completion(ids, small_vocabulary, level=level, tools=tools)
    assert list(completion.tool_calls) == calls
    assert not (completion.content or completion.cut_calls or completion.malformed)


@pytest.fixture(
    scope="module", params=["small_compiler", "k3_small_compiler", pytest.param("k3_real_compiler", marks=pytest.mark.slow)]
)  # fmt: skip
def walked(request: pytest.FixtureRequest) -> tuple[Compiler, random.Random, Preference]:
    """A compiler, and the chance and the preference of its walks."""
    compiler, chance = request.getfixturevalue(request.param), random.Random()
    return compiler, chance, towards_the_end(compiler.vocabulary, chance)


@settings(max_examples=tries(60, fast=20), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(names.filter(lambda name: not KIMI_K3.name_problem(name)), min_size=1, max_size=4, unique=True),
    st.sampled_from(["auto", "required", "none", "named"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 120),
    st.integers(0, 2**32),
)
def test_a_random_model_writes_only_what_the_request_allows(
    walked: tuple[Compiler, random.Random, Preference],
    names: list[str], choice: str, parallel: bool, thinking: bool, first_index: int, seed: int,
) -> None:  # fmt: skip
    (compiler, chance, prefer), vocabulary = walked, walked[0].vocabulary
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    named = {"type": "function", "function": {"name": names[0]}}
    body = {"tools": [tool(name, parameters) for name in names], "tool_choice": named if choice == "named" else choice,
            "parallel_tool_calls": parallel, "thinking": thinking, "first_index": first_index}  # fmt: skip
    chance.seed(seed)
    in_reasoning = thinking and (is_k3(vocabulary) or seed % 2 == 0)
    ids = steps(matcher_of(compiler, body, in_reasoning=in_reasoning), chance, prefer=prefer)
    assert ids[-1] in vocabulary.format.stop_ids
    completion = parse_completion(ids, vocabulary, in_reasoning=in_reasoning)
    count, must_call = len(completion.tool_calls), choice in {"required", "named"}
    assert not (completion.cut_calls or completion.malformed)
    assert count <= {"none": 0, "named": 1}.get(choice, count if parallel else 1)
    assert count or not must_call
    assert not must_call or not completion.content
    assert thinking or not completion.reasoning
    for position, call in enumerate(completion.tool_calls):
        assert call.name in names if choice != "named" else call.name == names[0]
        assert call.index == (1 if is_k3(vocabulary) else first_index) + position
        jsonschema.validate(json.loads(call.arguments), parameters)
    if is_k3(vocabulary):
        found = read(ids, vocabulary, in_reasoning=in_reasoning)
        assert [(name, index) for name, index, _ in found.calls] == [
            (each.name, each.index) for each in completion.tool_calls
        ]
        texts = ((found.reasoning or b"", completion.reasoning), (found.text, completion.content))
        assert all(raw.decode(errors="replace") == text for raw, text in texts)


@pytest.mark.slow
def test_a_random_model_calls_real_tools_with_valid_arguments(real_compiler: Compiler) -> None:
    tools = list(chain.from_iterable(mcp_servers()))
    for number, entry in enumerate(tools):
        body = {"tools": [entry], "tool_choice": "required", "parallel_tool_calls": False}
        schema = entry["function"].get("parameters", {})
        ids = walk(matcher_of(real_compiler, body), real_compiler.vocabulary, number, schema)
        (call,) = parse_completion(ids, real_compiler.vocabulary).tool_calls
        assert (call.name, call.index) == (entry["function"]["name"], 0)
        validator_of(schema).validate(json.loads(call.arguments))
    assert len(tools) == 258
