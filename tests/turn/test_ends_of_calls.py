"""The last call of a turn, in each format: ``max_calls`` bounds their number, ``repeated_calls: forbid`` ends them at a repeat."""

import json
import random
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2 import (
    Compiler,
    InvalidRequest,
    SchemaTooCostly,
    ToolCallMatcher,
    ToolCallSpec,
    Vocabulary,
    build_grammar,
    parse_completion,
)
from constrained_k2.parsing import Completion, ToolCallParser
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.repeats import call_key
from tests.grammar.whole_turns import BYTES, K3_BYTES, LarkOracle, TagOracle
from tests.kit.budget import tries
from tests.kit.tools import tool
from tests.kit.turns import (
    begun_call,
    call_end,
    check_states,
    is_k3,
    opening,
    section_end,
    state_of,
    steps,
    towards_calls,
    turn_end,
)
from tests.kit.turns import call as whole_call
from tests.kit.turns import matcher_of as matcher_of_body
from tests.kit.walks import ids_of as allowed
from tests.kit.walks import row_of

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
TOOLS = [tool("f", SCHEMA), tool("g", SCHEMA | {"properties": {}}), tool("any", {"type": "object"})]
BODY = {"tools": TOOLS, "tool_choice": "required", "repeated_calls": "forbid"}


def matcher_of(compiler: Compiler, **fields: Any) -> ToolCallMatcher:
    return matcher_of_body(compiler, BODY, **fields)


def values_of(completion: Completion) -> list[str]:
    """The calls, as texts that are equal if their names and JSON values are."""
    return [f"{call.name} {json.dumps(json.loads(call.arguments), sort_keys=True)}" for call in completion.tool_calls]


def begun(vocabulary: Vocabulary, *numbers: int) -> list[int]:
    """The tokens of a turn's calls of ``f`` with these values of ``n``, the last one without its end."""
    calls = [begun_call(vocabulary, {"n": number}, index=index) for index, number in enumerate(numbers)]
    ids = opening(vocabulary) + calls[0]
    for call in calls[1:]:
        ids += call_end(vocabulary) + call
    return ids


def test_a_turn_ends_in_place_of_a_repeated_call(each_compiler: Compiler) -> None:
    vocabulary, matcher = each_compiler.vocabulary, matcher_of(each_compiler)
    ids, end = begun(vocabulary, 1, 2, 1), section_end(vocabulary)
    assert matcher.accept_tokens(ids)
    assert not matcher.accept_tokens(call_end(vocabulary)) and matcher.num_tokens == len(ids)
    assert matcher.validate_tokens([*end, 0])[: len(end)] == end
    drafted = Drafter(matcher).draft(64)
    if not is_k3(vocabulary):
        assert allowed(matcher) == end == matcher.forced_tokens()[:1] == drafted[:1]
    assert matcher.fork().accept_tokens(drafted)
    assert not matcher.has_declined
    assert matcher.accept_tokens(end) and matcher.phase is Phase.CLOSED and matcher.has_declined
    ids += [*end, *steps(matcher, random.Random(0))]
    completion = parse_completion(ids, vocabulary)
    assert values_of(completion) == ['f {"n": 1}', 'f {"n": 2}']
    assert [json.loads(cut.arguments + "}" * is_k3(vocabulary)) for cut in completion.cut_calls] == [{"n": 1}]
    assert completion.declined == ('call tool="f' if is_k3(vocabulary) else "functions.f",)
    assert not completion.malformed and not completion.content
    parser = ToolCallParser(vocabulary)
    events = [event for token in ids for event in parser.feed([token])] + parser.finish()
    assert Completion.from_events(events) == completion, "a stream says so too"


def test_only_equal_names_with_equal_values_are_repeats(each_compiler: Compiler) -> None:
    vocabulary, matcher = each_compiler.vocabulary, matcher_of(each_compiler)
    assert matcher.accept_tokens(opening(vocabulary))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("f", {}), ("g", {}), ("any", {}), ("f", {"n": 1}), ("any", {"n": 1}), ("any", {"n": "1"}), ("f", {"n": 2}),
        ("any", {"b": "x", "a": 1}),
    ]  # fmt: skip
    for index, (name, arguments) in enumerate(calls):
        assert matcher.accept_tokens(whole_call(vocabulary, arguments, name, index)), (name, arguments)
    assert matcher.num_calls == len(calls)
    for name, arguments in calls:
        again = matcher.fork()
        assert again.accept_tokens(begun_call(vocabulary, dict(reversed(arguments.items())), name, len(calls)))
        assert not again.accept_tokens(call_end(vocabulary)), (name, arguments)
        assert again.accept_tokens(section_end(vocabulary))


@pytest.mark.parametrize("value", [None, "allow"])
def test_without_the_field_calls_may_repeat(each_compiler: Compiler, value: str | None) -> None:
    ids = [*begun(each_compiler.vocabulary, 1, 1), *call_end(each_compiler.vocabulary)]
    assert matcher_of(each_compiler, repeated_calls=value).accept_tokens(ids)


@pytest.mark.parametrize("seed", range(6))
def test_walks_hold_each_call_once_and_never_have_an_empty_mask(each_compiler: Compiler, seed: int) -> None:
    """The second tool has one call alone, so long walks always come to a repeat."""
    matcher = matcher_of(each_compiler, tools=TOOLS[:2])
    ids = steps(matcher, random.Random(seed), prefer=towards_calls(matcher))
    completion = parse_completion(ids, each_compiler.vocabulary)
    found_calls = values_of(completion)
    assert 1 <= len(found_calls) == len(set(found_calls)) == matcher.num_calls <= 4
    assert matcher.has_declined and len(completion.declined) == len(completion.cut_calls) == 1
    assert not completion.malformed


def test_the_finish_budget_ends_a_turn_in_a_repeated_call(each_compiler: Compiler) -> None:
    matcher = matcher_of(each_compiler)
    FinishBudget(each_compiler.vocabulary).apply(matcher, 200, 200)
    assert matcher.accept_tokens(begun(each_compiler.vocabulary, 1, 1))
    steps(matcher, random.Random(0))
    assert matcher.num_calls == 1 and matcher.has_declined


def test_xgrammar_matches_the_arguments(small_compiler: Compiler) -> None:
    vocabulary, matcher = small_compiler.vocabulary, matcher_of(small_compiler, engine="xgrammar")
    first, ids = begun(vocabulary, 1), begun(vocabulary, 1, 1)
    assert matcher.accept_tokens(ids)
    assert allowed(matcher) == section_end(vocabulary)
    matcher.rollback(len(ids) - len(first))
    assert matcher.accept_tokens([*begun(vocabulary, 1, 2)[len(first) :], *call_end(vocabulary)])


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_no_whole_turn_grammar_claims_to_keep_it(engine: Any) -> None:
    with pytest.raises(InvalidRequest, match="^repeated_calls: "):
        build_grammar(ToolCallSpec.from_openai(BODY), engine)


def key(text: str) -> bytes:
    return call_key("f", BYTES.encode(text), BYTES)


EQUAL = [
    ('{"a": 1, "b": "x"}', '{"b":"\\u0078","a":1.0}'),
    ('{"a":0}', '{"a":-0.0e5}'),
    ('{"a":1e2}', '{"a":100.00}'),
    ('{"a":{"x":[1,2],"y":null}}', '{ "a":{"y":null,"x":[1.0,20e-1]}}'),
    ("{}", "{ }"),
    ('{"a":123456789012345678901234567890}', '{"a":1234567890123456789012345678.90e2}'),
]
DIFFERENT = [
    *("1", "true", '"1"', "[1]", "{}", "null", "-1", "0", "false", "[]", "10", "0.1", '["number","1",0]'),
    *('["object",[]]', '"\\ud800"', '"\\ud801"', "123456789012345678901234567890", "123456789012345678901234567891"),
    *("[" * depth + "]" * depth for depth in (5000, 5001)), "1e" + "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_keys_of_equal_values(one: str, other: str) -> None:
    assert key(one) == key(other) != call_key("g", BYTES.encode(one), BYTES)


def test_keys_of_different_values() -> None:
    keys = [key(f'{{"a":{value}}}') for value in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)
    assert all(one != other for one, other in pairwise(keys))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1e9, -2.0]) | st.text('ab\\"é', max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=4,
)


def same(one: Any, other: Any) -> bool:
    """JSON's equality: numbers by value, never equal to booleans."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[each], other[each]) for each in one)
    return bool(one == other)


@settings(max_examples=tries(300, fast=100))
@given(
    st.dictionaries(st.text("ab", max_size=1), VALUES, max_size=2),
    st.dictionaries(st.text("ab", max_size=1), VALUES, max_size=2),
)
def test_keys_are_equal_exactly_if_the_values_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    written = json.dumps(one, indent=1), json.dumps(dict(reversed(other.items())), ensure_ascii=False)
    assert (key(written[0]) == key(written[1])) == same(one, other)
    assert key(json.dumps(one)) == key(json.dumps(dict(reversed(one.items())), separators=(",", ":")))


def test_tokens_taken_back_across_a_repeated_call(each_compiler: Compiler) -> None:
    vocabulary = each_compiler.vocabulary
    ids = [*begun(vocabulary, 1, 1), *section_end(vocabulary), *turn_end(vocabulary)]
    check_states(lambda: matcher_of(each_compiler), ids, random.Random(0))


def test_a_limit_of_the_engine_leaves_the_state(small_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has accepted the token when it is asked whether the arguments are whole."""
    matcher = matcher_of(small_compiler)
    *ids, last = begun(small_compiler.vocabulary, 1, 2)
    assert matcher.accept_tokens(ids)
    state, limit = state_of(matcher), SchemaTooCostly("at its limit", "", "", "llguidance")
    with monkeypatch.context() as patched:
        patched.setattr(type(matcher.arguments), "is_complete", Mock(side_effect=limit))
        with pytest.raises(SchemaTooCostly):
            matcher.accept_tokens([last])
    assert state_of(matcher) == state
    assert matcher.accept_tokens([last, *call_end(small_compiler.vocabulary)])


BOUNDED = {"tools": TOOLS[:2], "tool_choice": "required"}


def bounded(compiler: Compiler, **fields: Any) -> ToolCallMatcher:
    return matcher_of_body(compiler, BOUNDED, **fields)


def one_call(compiler: Compiler, index: int) -> list[int]:
    return whole_call(compiler.vocabulary, {}, "g", index)


@pytest.mark.parametrize("bound", [1, 2, 3, 11])
def test_walks_reach_the_bound_and_never_exceed_it(each_compiler: Compiler, bound: int) -> None:
    counts = set()
    for seed in range(5):
        matcher = bounded(each_compiler, max_calls=bound, first_index=8)
        steps(matcher, random.Random(seed), prefer=towards_calls(matcher) if seed < 2 else None)
        assert matcher.num_calls <= bound
        assert seed >= 2 or matcher.num_calls == bound
        counts.add(matcher.num_calls)
    assert max(counts) == bound


@pytest.mark.parametrize("bound", [2, 3])
def test_after_the_last_call_the_turn_is_as_after_a_single_one(each_compiler: Compiler, bound: int) -> None:
    matcher, single, free = (
        bounded(each_compiler, **fields) for fields in ({"max_calls": bound}, {"parallel_tool_calls": False}, {})
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
    matcher = bounded(each_compiler, max_calls=5, parallel_tool_calls=False)
    assert matcher.accept_tokens([*opening(each_compiler.vocabulary), *one_call(each_compiler, 0)])
    assert each_compiler.vocabulary.format.call_begin not in allowed(matcher)


def test_drafts_are_legal_and_end_the_turn_after_the_last_call(each_compiler: Compiler) -> None:
    matcher = bounded(each_compiler, max_calls=2)
    assert matcher.accept_tokens([*opening(each_compiler.vocabulary), *one_call(each_compiler, 0)])
    drafted = Drafter(matcher).draft(64, one_call(each_compiler, 1))
    assert matcher.accept_tokens([*one_call(each_compiler, 1), *drafted])
    assert matcher.is_terminated() and matcher.num_calls == 2


def test_the_finish_budget_ends_a_bounded_turn(each_compiler: Compiler) -> None:
    budget = FinishBudget(each_compiler.vocabulary)
    for seed in range(4):
        matcher = bounded(each_compiler, max_calls=3)
        budget.apply(matcher, 90 + 10 * seed, 60)
        steps(matcher, random.Random(seed), 90 + 10 * seed, towards_calls(matcher))
        assert matcher.is_terminated() and 1 <= matcher.num_calls <= 3


@pytest.mark.parametrize("first", [0, 7, 8, 97, 98, 990, 999_999_990])
@pytest.mark.parametrize("bound", [2, 3, 12, 999_999_999])
def test_whole_turn_grammars_keep_the_bound(bound: int, first: int) -> None:
    spec = ToolCallSpec.from_openai(BOUNDED | {"max_calls": bound, "first_index": first})
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
    spec = ToolCallSpec.from_openai(BOUNDED | {"max_calls": bound})
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
        bounded(each_compiler, max_calls=bound)
    tables = len(each_compiler.compile(ToolCallSpec.from_openai(BOUNDED))._shared._turn_tables)
    bounded(each_compiler, max_calls=40)
    assert len(each_compiler.compile(ToolCallSpec.from_openai(BOUNDED))._shared._turn_tables) == tables
