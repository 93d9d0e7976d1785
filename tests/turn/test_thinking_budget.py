"""Thinking budgets: reasoning ends where the budget is used up, and what follows is constrained as before."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.formats.base import ABSENT
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.vocabulary.bitmask import allowed_ids
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit import turns
from tests.kit.turns import steps
from tests.kit.walks import row_of as mask

WEATHER = TOOLS[0]


def matcher_of(compiler: Compiler, budget: int | None, *, in_reasoning: bool, **body: Any) -> ToolCallMatcher:
    defaults = {"tools": [WEATHER], "tool_choice": "required", "thinking": True}
    matcher = turns.matcher_of(compiler, defaults, in_reasoning=in_reasoning, **body)
    if budget is not None:
        ThinkingBudget(compiler.vocabulary).apply(matcher, budget)
    return matcher


def random_turn(matcher: ToolCallMatcher, chance: random.Random, limit: int) -> list[int]:
    """Uniform choices, except that reasoning goes on as long as it may."""
    markers = matcher.vocabulary.format
    ending = {markers.think_end, markers.section_begin}

    def prefer(allowed: Any) -> Any:
        if matcher.phase is Phase.START and markers.think_begin in allowed:
            return [markers.think_begin]
        return [token for token in allowed if matcher.phase is not Phase.REASONING or token not in ending] or allowed

    return steps(matcher, chance, limit, prefer)


@pytest.mark.parametrize("in_reasoning", [True, False], ids=["prompt opens it", "model opens it"])
@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_reasoning_has_as_many_tokens_as_its_budget(
    small_compiler: Compiler, in_reasoning: bool, budget: int, choice: str
) -> None:
    markers = small_compiler.vocabulary.format
    matcher = matcher_of(small_compiler, budget, in_reasoning=in_reasoning, tool_choice=choice)
    ids = random_turn(matcher, random.Random(budget), 40)
    if not in_reasoning:
        assert ids.pop(0) == markers.think_begin
    assert ids.index(markers.think_end) == budget
    assert not {markers.section_begin, *markers.stop_ids} & set(ids[:budget])


def test_within_the_budget_nothing_changes(small_compiler: Compiler) -> None:
    """Reasoning may end sooner, by its marker or by a call."""
    limited, free = (matcher_of(small_compiler, budget, in_reasoning=True) for budget in (4, None))
    word = small_compiler.vocabulary.encode("a")
    for _ in range(4):
        assert np.array_equal(mask(limited), mask(free))
        assert limited.accept_tokens(word[:1]) and free.accept_tokens(word[:1])
    assert allowed_ids(mask(limited)).tolist() == [small_compiler.vocabulary.format.think_end]
    limited.rollback(1)
    free.rollback(1)
    assert np.array_equal(mask(limited), mask(free))
    marker = [small_compiler.vocabulary.format.section_begin]
    assert limited.accept_tokens(marker) and free.accept_tokens(marker)
    assert np.array_equal(mask(limited), mask(free))


def test_the_finish_reserve_leaves_the_end_of_reasoning_to_the_budget(small_compiler: Compiler) -> None:
    """The reserve alone would let a call end the reasoning."""
    markers = small_compiler.vocabulary.format
    for used in (0, 3):
        matcher = matcher_of(small_compiler, None, in_reasoning=True)
        FinishBudget(small_compiler.vocabulary).apply(matcher, 100, 100)
        ThinkingBudget(small_compiler.vocabulary).apply(matcher, 3)
        assert matcher.accept_tokens(small_compiler.vocabulary.encode("abc")[:1] * used)
        ending = {markers.think_end} if used else {markers.think_end, markers.section_begin}
        assert set(allowed_ids(mask(matcher)).tolist()) == ending


def test_drafts_forks_and_resets_see_the_same_budget(small_compiler: Compiler) -> None:
    matcher = matcher_of(small_compiler, 6, in_reasoning=True)
    word = small_compiler.vocabulary.encode("a")[:1]
    assert matcher.accept_tokens(word * 6)
    end = mask(matcher)
    other = matcher.fork()
    assert np.array_equal(mask(other), end)
    assert other.accept_tokens(word)  # what is accepted does not change: a draft past the budget is not sampled
    matcher.reset()
    assert not np.array_equal(mask(matcher), end)
    assert matcher.accept_tokens(word * 6)
    assert np.array_equal(mask(matcher), end)


def test_a_format_without_reasoning(small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_vocabulary, "format", replace(small_vocabulary.format, think_end=ABSENT))
    matcher = Compiler(small_vocabulary).compile(ToolCallSpec.from_openai({"tools": [WEATHER]})).matcher()
    ThinkingBudget(small_vocabulary).apply(matcher, 0)
    assert not matcher.budgets
