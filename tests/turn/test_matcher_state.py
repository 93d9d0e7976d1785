"""The state of a turn: rolled back, forked, unchanged by refused tokens, and maintained without an engine."""

from collections.abc import Callable
from typing import Any

import pytest

from constrained_k2 import Compiler, InvalidRequest, ToolCall, ToolCallSpec, UnsupportedSchema, render_tool_calls
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.turn.matcher import ROLLBACK_WINDOW
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from tests.turn.test_matcher import compiled, feed, mask


def turn_of(compiler: Compiler) -> list[int]:
    """The ids of a turn through every phase."""
    vocabulary = compiler.vocabulary
    markers = vocabulary.format
    calls = [ToolCall("get_weather", 0, '{ "city":"北京 \\" x",\n"days": 12}'), ToolCall("list-tabs", 1, '{"a": [1]}')]
    reasoning = [markers.think_begin, *vocabulary.encode("I should look. 🌦️"), markers.think_end]
    return [*reasoning, *vocabulary.encode("Wait"), *render_tool_calls(calls, vocabulary), markers.turn_end]


def test_rollback_restores_every_mask_bit_for_bit(compiler: Compiler) -> None:
    turn = turn_of(compiler)
    matcher = compiled(compiler, thinking=True).matcher()
    masks = []
    for token in turn:
        masks.append(mask(matcher, compiler))
        assert matcher.accept_tokens([token])
    for steps in (1, 2, 5, len(turn)):
        for end in range(len(turn), steps - 1, -steps):
            matcher.rollback(steps)
            assert mask(matcher, compiler) == masks[end - steps], (steps, end)
        assert matcher.accept_tokens(turn[matcher.num_tokens :])


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
    assert matcher.accept_tokens(turn_of(small_compiler))


@pytest.mark.parametrize("count", [-1, 3])
def test_rollback_of_what_was_not_accepted(small_compiler: Compiler, count: int) -> None:
    matcher = compiled(small_compiler).matcher()
    feed(matcher, small_compiler, "a", "b")
    with pytest.raises(InvalidRequest, match="roll back"):
        matcher.rollback(count)


def test_a_refused_sequence_leaves_no_trace(compiler: Compiler) -> None:
    turn = turn_of(compiler)
    matcher = compiled(compiler, thinking=True).matcher()
    for position, token in enumerate(turn):
        before = mask(matcher, compiler)
        assert not matcher.accept_tokens([*turn[position : position + 7], compiler.vocabulary.size])
        assert matcher.validate_tokens([*turn[position:], -1]) == turn[position:]
        assert mask(matcher, compiler) == before
        assert matcher.num_tokens == position
        assert matcher.accept_tokens([token])


def test_forks_do_not_disturb_each_other(compiler: Compiler) -> None:
    turn = turn_of(compiler)
    matcher = compiled(compiler, thinking=True).matcher()
    for position, token in enumerate(turn):
        before = mask(matcher, compiler)
        fork = matcher.fork()
        assert mask(fork, compiler) == before
        assert fork.accept_tokens(turn[position:])
        assert fork.is_terminated()
        fork.rollback(len(turn) - position)
        assert mask(fork, compiler) == before
        fork.rollback(fork.num_tokens)
        assert fork.phase is Phase.START
        assert mask(matcher, compiler) == before
        assert matcher.accept_tokens([token])


def test_no_engine_is_touched_outside_the_arguments(small_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = turn_of(small_compiler)
    touched: list[str] = []

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            touched.append(name)
            return method(*args)

        return counted

    for name in ("fill", "accept", "rollback", "is_complete", "fork"):
        monkeypatch.setattr(LLGuidanceMatcher, name, counting(name, getattr(LLGuidanceMatcher, name)))
    grammar = compiled(small_compiler, thinking=True)
    monkeypatch.setattr(small_compiler, "engine", None)  # nothing is compiled either
    matcher = grammar.matcher()
    bitmask = allocate_bitmask(1, small_compiler.vocabulary.size)
    inside = 0
    for token in turn:
        touched.clear()
        in_arguments = matcher.phase is Phase.ARGUMENTS
        matcher.fill_bitmask(bitmask)
        assert matcher.accept_tokens([token])
        assert bool(touched) == in_arguments
        inside += in_arguments
    assert inside > 5


def test_an_error_inside_leaves_the_state_as_it_was(small_compiler: Compiler) -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}
    spec = ToolCallSpec.from_openai({"tools": [tool]})
    matcher = small_compiler.compile(spec, check=False).matcher()
    markers = small_compiler.vocabulary.format
    call_id = small_compiler.vocabulary.encode("functions.f:0")
    ids = [markers.section_begin, markers.call_begin, *call_id, markers.argument_begin]
    for act in (matcher.accept_tokens, matcher.validate_tokens):
        with pytest.raises(UnsupportedSchema):
            act(ids)
        assert (matcher.num_tokens, matcher.phase) == (0, Phase.START)
