"""``max_calls``, in each format: turns reach the bound, never exceed it, and end after it as after a single call."""

import random
from typing import Any

import numpy as np
import pytest

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, build_grammar
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from tests.grammar.whole_turns import BYTES, K3_BYTES, LarkOracle, TagOracle, tool
from tests.kit.budget import tries
from tests.kit.k3_turns import OPEN, SEP, ids_of
from tests.kit.walks import ids_of as allowed
from tests.kit.walks import row_of

FORMATS = ["small_compiler", "k3_small_compiler"]
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
BODY = {"tools": [tool("f", SCHEMA), tool("g", {"type": "object", "properties": {}})], "tool_choice": "required"}


@pytest.fixture(params=FORMATS)
def calling(request: pytest.FixtureRequest) -> Compiler:
    found: Compiler = request.getfixturevalue(request.param)
    return found


def matcher_of(compiler: Compiler, **fields: Any) -> ToolCallMatcher:
    return compiler.compile(ToolCallSpec.from_openai(BODY | fields)).matcher()


def step(matcher: ToolCallMatcher, chance: random.Random, *, calls_on: bool) -> int:
    """Accept an allowed token at random; between calls another call if there may be one, if ``calls_on``."""
    ids, call_begin = allowed(matcher), matcher.vocabulary.format.call_begin
    assert ids
    calls_again = calls_on and matcher.phase is Phase.BETWEEN and call_begin in ids
    token = call_begin if calls_again else chance.choice(ids)
    assert matcher.accept_tokens([token])
    return token


def one_call(compiler: Compiler, index: int) -> list[int]:
    """The tokens of a whole call of ``g``, in the calls' section."""
    vocabulary, markers = compiler.vocabulary, compiler.vocabulary.format
    if markers.argument_encoding == "xtml":
        text = f'{OPEN}call tool="g" index="{index + 1}"{SEP}<|close|>call{SEP}'
        return ids_of(vocabulary, text)
    header = vocabulary.encode(f"functions.g:{index}")
    return [markers.call_begin, *header, markers.argument_begin, *vocabulary.encode("{}"), markers.call_end]


def opening(compiler: Compiler) -> list[int]:
    """The tokens up to the first call of a turn without text."""
    if compiler.vocabulary.format.argument_encoding == "xtml":
        return ids_of(compiler.vocabulary, f"<|close|>response{SEP}{OPEN}tools{SEP}")
    return [compiler.vocabulary.format.section_begin]


@pytest.mark.parametrize("bound", [1, 2, 3, 11])
def test_walks_reach_the_bound_and_never_exceed_it(calling: Compiler, bound: int) -> None:
    chance = random.Random(bound)
    counts = set()
    for calls_on in (True, True, False, False, False):
        matcher = matcher_of(calling, max_calls=bound, first_index=8)
        while not matcher.is_terminated():
            step(matcher, chance, calls_on=calls_on)
            assert matcher.num_calls <= bound
        assert not calls_on or matcher.num_calls == bound
        counts.add(matcher.num_calls)
    assert max(counts) == bound


@pytest.mark.parametrize("bound", [2, 3])
def test_after_the_last_call_the_turn_is_as_after_a_single_one(calling: Compiler, bound: int) -> None:
    matcher, single, free = (
        matcher_of(calling, **fields) for fields in ({"max_calls": bound}, {"parallel_tool_calls": False}, {})
    )
    for each in (matcher, single, free):
        assert each.accept_tokens(opening(calling))
    assert single.accept_tokens(one_call(calling, 0))
    for index in range(bound):
        assert np.array_equal(row_of(matcher), row_of(free))
        for each in (matcher, free):
            assert each.accept_tokens(one_call(calling, index)), index
    assert calling.vocabulary.format.call_begin in allowed(free)
    while True:
        assert np.array_equal(row_of(matcher), row_of(single)) and matcher.phase is single.phase
        assert matcher.forced_tokens() == single.forced_tokens()
        assert matcher.validate_tokens(one_call(calling, bound)) == []
        if matcher.is_terminated():
            break
        token = allowed(matcher)[-1]
        assert matcher.accept_tokens([token]) and single.accept_tokens([token])


def test_parallel_calls_switched_off_hold_against_a_larger_bound(calling: Compiler) -> None:
    matcher = matcher_of(calling, max_calls=5, parallel_tool_calls=False)
    assert matcher.accept_tokens([*opening(calling), *one_call(calling, 0)])
    assert calling.vocabulary.format.call_begin not in allowed(matcher)


def test_tokens_taken_back_leave_the_state_of_a_fresh_turn(calling: Compiler) -> None:
    """As speculative decoding takes them back, also across the last call's end."""
    for seed in range(tries(8)):
        chance = random.Random(seed)
        matcher = matcher_of(calling, max_calls=2)
        ids: list[int] = []
        while not matcher.is_terminated():
            ids.append(step(matcher, chance, calls_on=True))
            if chance.random() < 0.06:
                back = chance.randint(1, min(len(ids), 12))
                matcher.rollback(back)
                del ids[-back:]
                fresh = matcher_of(calling, max_calls=2)
                assert fresh.accept_tokens(ids)
                for each in (fresh, matcher.fork()):
                    assert np.array_equal(row_of(matcher), row_of(each))
                    assert (matcher.phase, matcher.num_calls) == (each.phase, each.num_calls)
        assert matcher.num_calls == 2


def test_drafts_are_legal_and_end_the_turn_after_the_last_call(calling: Compiler) -> None:
    matcher = matcher_of(calling, max_calls=2)
    assert matcher.accept_tokens([*opening(calling), *one_call(calling, 0)])
    drafted = Drafter(matcher).draft(64, one_call(calling, 1))
    assert matcher.accept_tokens([*one_call(calling, 1), *drafted])
    assert matcher.is_terminated() and matcher.num_calls == 2


def test_the_finish_budget_ends_a_bounded_turn(calling: Compiler) -> None:
    budget = FinishBudget(calling.vocabulary)
    for seed in range(4):
        matcher = matcher_of(calling, max_calls=3)
        budget.apply(matcher, 90 + 10 * seed, 60)
        chance = random.Random(seed)
        count = 0
        while not matcher.is_terminated():
            step(matcher, chance, calls_on=True)
            count += 1
        assert 1 <= matcher.num_calls <= 3 and count <= 90 + 10 * seed


@pytest.mark.parametrize("first", [0, 7, 8, 97, 98, 990, 999_999_990])
@pytest.mark.parametrize("bound", [2, 3, 12, 999_999_999])
def test_whole_turn_grammars_keep_the_bound(bound: int, first: int) -> None:
    spec = ToolCallSpec.from_openai(BODY | {"max_calls": bound, "first_index": first})
    for vocabulary in (BYTES, K3_BYTES):
        compiler = Compiler(vocabulary)
        is_k3 = vocabulary is K3_BYTES
        matcher = compiler.compile(spec).matcher()
        oracle = LarkOracle(build_grammar(spec, markers=vocabulary.format), vocabulary)
        start = opening(compiler)
        assert matcher.accept_tokens(start) and oracle.accept_all(start)
        for number in range(min(bound, 14)):
            call = one_call(compiler, number if is_k3 else first + number)
            assert matcher.accept_tokens(call) and oracle.accept_all(call), number
            assert allowed(matcher) == np.nonzero(oracle.mask())[0].tolist(), number
        assert (vocabulary.format.call_begin in allowed(matcher)) == (bound > 14)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [2, 3, 12])
def test_structural_tags_keep_the_bound(bound: int) -> None:
    spec = ToolCallSpec.from_openai(BODY | {"max_calls": bound})
    compiler = Compiler(BYTES)
    for text in (build_grammar(spec, "xgrammar", markers=BYTES.format), build_grammar(spec, "xgrammar", "ebnf")):
        oracle = TagOracle(text, BYTES, ebnf=not text.startswith("{"))
        ids = opening(compiler) + [token for number in range(bound) for token in one_call(compiler, number)]
        assert all(map(oracle.accept, ids))
        assert not oracle.accept(BYTES.format.call_begin)
        assert oracle.accept(BYTES.format.section_end)


def test_requests_with_any_bound_share_their_tables(calling: Compiler) -> None:
    """A table for each number would be a cache that clients fill."""
    for bound in range(2, 40):
        matcher_of(calling, max_calls=bound)
    tables = len(calling.compile(ToolCallSpec.from_openai(BODY))._shared._turn_tables)
    matcher_of(calling, max_calls=40)
    assert len(calling.compile(ToolCallSpec.from_openai(BODY))._shared._turn_tables) == tables
