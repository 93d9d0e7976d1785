"""The state of a turn: rolled back, forked, unchanged by refused tokens, and maintained without an engine."""

import random
from functools import partial
from typing import Any

import pytest

from constrained_k2 import (
    Compiler,
    InvalidRequest,
    ToolCall,
    ToolCallSpec,
    UnsupportedSchema,
    Vocabulary,
    render_tool_calls,
)
from constrained_k2.turn.matcher import ROLLBACK_WINDOW
from constrained_k2.turn.phases import Phase
from tests.kit.budget import tries
from tests.kit.tools import tool
from tests.kit.turns import (
    call,
    call_start,
    check_states,
    ids_of,
    is_k3,
    opening,
    section_end,
    steps,
    towards_the_end,
    turn_end,
)
from tests.turn.test_matcher import compiled, feed

NUMBER = tool("f", {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False})
NOTHING = tool("g", {"type": "object", "properties": {}, "additionalProperties": False})


def turn_of(vocabulary: Vocabulary) -> list[int]:
    """The ids of a turn through every phase."""
    if is_k3(vocabulary):
        calls = call(vocabulary, {"city": '北京 " x', "days": 12}, "get_weather") + call(
            vocabulary, {"a": [1]}, "list-tabs", 1
        )
        thought = ids_of(vocabulary, "I should look. 🌦️<|close|>think<|sep|><|open|>response<|sep|>Wait")
        return thought + opening(vocabulary) + calls + section_end(vocabulary) + turn_end(vocabulary)
    made = [ToolCall("get_weather", 0, '{ "city":"北京 \\" x",\n"days": 12}'), ToolCall("list-tabs", 1, '{"a": [1]}')]
    thought = ids_of(vocabulary, "think_begin", "I should look. 🌦️", "think_end", "Wait")
    return [*thought, *render_tool_calls(made, vocabulary), vocabulary.format.turn_end]


@pytest.mark.parametrize("which", ["small", pytest.param("real", marks=pytest.mark.slow), "k3_small"])
def test_the_state_in_every_phase(which: str, request: pytest.FixtureRequest) -> None:
    compiler: Compiler = request.getfixturevalue(f"{which}_compiler")
    make = partial(compiled(compiler, thinking=True).matcher, in_reasoning=is_k3(compiler.vocabulary))
    check_states(make, turn_of(compiler.vocabulary), random.Random(0))


REQUESTS: dict[str, dict[str, Any]] = {
    "calls": {"thinking": True},
    "the last call": {"tool_choice": "required", "max_calls": 2},
    "no call twice": {"tools": [NUMBER, NOTHING], "tool_choice": "required", "repeated_calls": "forbid"},
    "declined calls": {"undeclared_calls": "decline"},
    **{name: {"thinking": name == "an answer", "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
       for name, schema in (("an answer", NUMBER["function"]["parameters"]), ("any answer", {}), ("a number", {"enum": [1, 23]}))},
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_the_state_in_random_turns(each_compiler: Compiler, name: str) -> None:
    for seed in range(tries(6)):
        chance = random.Random(seed)
        in_reasoning = bool(REQUESTS[name].get("thinking")) and seed % 2 == 0
        make = partial(compiled(each_compiler, **REQUESTS[name]).matcher, in_reasoning=in_reasoning)
        ids = steps(make(), chance, 300, towards_the_end(each_compiler.vocabulary, chance))
        check_states(make, ids, chance, apart=3)


def test_rollback_beyond_the_window_replays(small_compiler: Compiler) -> None:
    matcher = compiled(small_compiler, thinking=True).matcher()
    long = [small_compiler.vocabulary.format.think_begin, *[65] * (2 * ROLLBACK_WINDOW)]
    assert matcher.accept_tokens(long)
    matcher.rollback(2 * ROLLBACK_WINDOW - 1)
    before = matcher.phase  # by a name of its own: the type checker takes the matcher's phase to stay
    assert before is Phase.REASONING
    assert matcher.num_tokens == 2
    matcher.rollback(2)
    assert matcher.phase is Phase.START
    assert matcher.accept_tokens(turn_of(small_compiler.vocabulary))


@pytest.mark.parametrize("count", [-1, 3])
def test_rollback_of_what_was_not_accepted(small_compiler: Compiler, count: int) -> None:
    matcher = compiled(small_compiler).matcher()
    feed(matcher, "a", "b")
    with pytest.raises(InvalidRequest, match="roll back"):
        matcher.rollback(count)


def test_an_error_inside_leaves_the_state_as_it_was(small_compiler: Compiler) -> None:
    spec = ToolCallSpec.from_openai({"tools": [tool("f", {"not": {}}, strict=True)]})
    matcher = small_compiler.compile(spec, check=False).matcher()
    ids = call_start(small_compiler.vocabulary)
    for act in (matcher.accept_tokens, matcher.validate_tokens):
        with pytest.raises(UnsupportedSchema):
            act(ids)
        assert (matcher.num_tokens, matcher.phase) == (0, Phase.START)
