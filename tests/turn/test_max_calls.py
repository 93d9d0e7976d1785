"""``max_calls``, in each format: turns reach the bound, never exceed it, and end after it as after a single call."""

import random
from typing import Any

import numpy as np
import pytest

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, build_grammar
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.finish_budget import FinishBudget
from tests.grammar.whole_turns import BYTES, K3_BYTES, LarkOracle, TagOracle
from tests.kit.tools import tool
from tests.kit.turns import call, is_k3, opening, steps, towards_calls
from tests.kit.turns import matcher_of as matcher_of_body
from tests.kit.walks import ids_of as allowed
from tests.kit.walks import row_of

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
BODY = {"tools": [tool("f", SCHEMA), tool("g", {"type": "object", "properties": {}})], "tool_choice": "required"}


def matcher_of(compiler: Compiler, **fields: Any) -> ToolCallMatcher:
    return matcher_of_body(compiler, BODY, **fields)


def one_call(compiler: Compiler, index: int) -> list[int]:
    return call(compiler.vocabulary, {}, "g", index)


@pytest.mark.parametrize("bound", [1, 2, 3, 11])
def test_walks_reach_the_bound_and_never_exceed_it(each_compiler: Compiler, bound: int) -> None:
    counts = set()
    for seed in range(5):
        matcher = matcher_of(each_compiler, max_calls=bound, first_index=8)
        steps(matcher, random.Random(seed), prefer=towards_calls(matcher) if seed < 2 else None)
        assert matcher.num_calls <= bound
        assert seed >= 2 or matcher.num_calls == bound
        counts.add(matcher.num_calls)
    assert max(counts) == bound


@pytest.mark.parametrize("bound", [2, 3])
def test_after_the_last_call_the_turn_is_as_after_a_single_one(each_compiler: Compiler, bound: int) -> None:
    matcher, single, free = (
        matcher_of(each_compiler, **fields) for fields in ({"max_calls": bound}, {"parallel_tool_calls": False}, {})
    )
    for each in (matcher, single, free):
        assert each.accept_tokens(opening(each_compiler.vocabulary))
    assert single.accept_tokens(one_call(each_compiler, 0))
    for index in range(bound):
        assert np.array_equal(row_of(matcher), row_of(free))
        for each in (matcher, free):
            assert each.accept_tokens(one_call(each_compiler, index)), index
    assert each_compiler.vocabulary.format.call_begin in allowed(free)
    while True:
        assert np.array_equal(row_of(matcher), row_of(single)) and matcher.phase is single.phase
        assert matcher.forced_tokens() == single.forced_tokens()
        assert matcher.validate_tokens(one_call(each_compiler, bound)) == []
        if matcher.is_terminated():
            break
        token = allowed(matcher)[-1]
        assert matcher.accept_tokens([token]) and single.accept_tokens([token])


def test_parallel_calls_switched_off_hold_against_a_larger_bound(each_compiler: Compiler) -> None:
    matcher = matcher_of(each_compiler, max_calls=5, parallel_tool_calls=False)
    assert matcher.accept_tokens([*opening(each_compiler.vocabulary), *one_call(each_compiler, 0)])
    assert each_compiler.vocabulary.format.call_begin not in allowed(matcher)


def test_drafts_are_legal_and_end_the_turn_after_the_last_call(each_compiler: Compiler) -> None:
    matcher = matcher_of(each_compiler, max_calls=2)
    assert matcher.accept_tokens([*opening(each_compiler.vocabulary), *one_call(each_compiler, 0)])
    drafted = Drafter(matcher).draft(64, one_call(each_compiler, 1))
    assert matcher.accept_tokens([*one_call(each_compiler, 1), *drafted])
    assert matcher.is_terminated() and matcher.num_calls == 2


def test_the_finish_budget_ends_a_bounded_turn(each_compiler: Compiler) -> None:
    budget = FinishBudget(each_compiler.vocabulary)
    for seed in range(4):
        matcher = matcher_of(each_compiler, max_calls=3)
        budget.apply(matcher, 90 + 10 * seed, 60)
        steps(matcher, random.Random(seed), 90 + 10 * seed, towards_calls(matcher))
        assert matcher.is_terminated() and 1 <= matcher.num_calls <= 3


@pytest.mark.parametrize("first", [0, 7, 8, 97, 98, 990, 999_999_990])
@pytest.mark.parametrize("bound", [2, 3, 12, 999_999_999])
def test_whole_turn_grammars_keep_the_bound(bound: int, first: int) -> None:
    spec = ToolCallSpec.from_openai(BODY | {"max_calls": bound, "first_index": first})
    for vocabulary in (BYTES, K3_BYTES):
        compiler = Compiler(vocabulary)
        matcher = compiler.compile(spec).matcher()
        oracle = LarkOracle(build_grammar(spec, markers=vocabulary.format), vocabulary)
        start = opening(compiler.vocabulary)
        assert matcher.accept_tokens(start) and oracle.accept_all(start)
        for number in range(min(bound, 14)):
            ids = one_call(compiler, number if is_k3(vocabulary) else first + number)
            assert matcher.accept_tokens(ids) and oracle.accept_all(ids), number
            assert allowed(matcher) == np.nonzero(oracle.mask())[0].tolist(), number
        assert (vocabulary.format.call_begin in allowed(matcher)) == (bound > 14)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [2, 3, 12])
def test_structural_tags_keep_the_bound(bound: int) -> None:
    spec = ToolCallSpec.from_openai(BODY | {"max_calls": bound})
    compiler = Compiler(BYTES)
    for text in (build_grammar(spec, "xgrammar", markers=BYTES.format), build_grammar(spec, "xgrammar", "ebnf")):
        oracle = TagOracle(text, BYTES, ebnf=not text.startswith("{"))
        ids = opening(compiler.vocabulary) + [token for number in range(bound) for token in one_call(compiler, number)]
        assert all(map(oracle.accept, ids))
        assert not oracle.accept(BYTES.format.call_begin)
        assert oracle.accept(BYTES.format.section_end)


def test_requests_with_any_bound_share_their_tables(each_compiler: Compiler) -> None:
    """A table for each number would be a cache that clients fill."""
    for bound in range(2, 40):
        matcher_of(each_compiler, max_calls=bound)
    tables = len(each_compiler.compile(ToolCallSpec.from_openai(BODY))._shared._turn_tables)
    matcher_of(each_compiler, max_calls=40)
    assert len(each_compiler.compile(ToolCallSpec.from_openai(BODY))._shared._turn_tables) == tables
