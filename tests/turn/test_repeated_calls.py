"""``repeated_calls: forbid``, in each format: a turn ends in place of a call that it holds already."""

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
    build_grammar,
    parse_completion,
)
from constrained_k2.parsing import Completion, ToolCallParser
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.repeats import call_key
from tests.grammar.whole_turns import BYTES, tool
from tests.kit.budget import tries
from tests.kit.k3_turns import CLOSE, OPEN, SEP, ids_of
from tests.kit.walks import ids_of as allowed
from tests.kit.walks import row_of

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "additionalProperties": False}
TOOLS = [tool("f", SCHEMA), tool("g", SCHEMA | {"properties": {}}), tool("any", {"type": "object"})]
BODY = {"tools": TOOLS, "tool_choice": "required", "repeated_calls": "forbid"}


@pytest.fixture(params=["small_compiler", "k3_small_compiler"])
def calling(request: pytest.FixtureRequest) -> Compiler:
    found: Compiler = request.getfixturevalue(request.param)
    return found


def matcher_of(compiler: Compiler, **fields: Any) -> ToolCallMatcher:
    return compiler.compile(ToolCallSpec.from_openai(BODY | fields)).matcher()


def is_k3(compiler: Compiler) -> bool:
    return compiler.vocabulary.format.argument_encoding == "xtml"


def opening(compiler: Compiler) -> list[int]:
    """The tokens up to the first call of a turn without text."""
    if is_k3(compiler):
        return ids_of(compiler.vocabulary, f"{CLOSE}response{SEP}{OPEN}tools{SEP}")
    return [compiler.vocabulary.format.section_begin]


def begun(compiler: Compiler, index: int, arguments: dict[str, Any], name: str = "f") -> list[int]:
    """The tokens of a call up to the end of its whole arguments, whose values are numbers or strings."""
    vocabulary, markers = compiler.vocabulary, compiler.vocabulary.format
    if is_k3(compiler):
        blocks = [
            f'{OPEN}argument key="{key}" type="{"string" if isinstance(value, str) else "number"}"{SEP}{value}'
            f"{CLOSE}argument{SEP}"
            for key, value in arguments.items()
        ]
        return ids_of(vocabulary, f'{OPEN}call tool="{name}" index="{index + 1}"{SEP}{"".join(blocks)}')
    header = vocabulary.encode(f"functions.{name}:{index}")
    text = vocabulary.encode(json.dumps(arguments))
    return [markers.call_begin, *header, markers.argument_begin, *text]


def call_end(compiler: Compiler) -> list[int]:
    return (
        ids_of(compiler.vocabulary, f"{CLOSE}call{SEP}") if is_k3(compiler) else [compiler.vocabulary.format.call_end]
    )


def section_end(compiler: Compiler) -> list[int]:
    if is_k3(compiler):
        return ids_of(compiler.vocabulary, f"{CLOSE}tools{SEP}")
    return [compiler.vocabulary.format.section_end]


def values_of(completion: Completion) -> list[str]:
    """The calls, as texts that are equal if their names and JSON values are."""
    return [f"{call.name} {json.dumps(json.loads(call.arguments), sort_keys=True)}" for call in completion.tool_calls]


def end(matcher: ToolCallMatcher) -> list[int]:
    """Accept allowed tokens up to the stop."""
    ids: list[int] = []
    while not matcher.is_terminated():
        ids.append(allowed(matcher)[-1])
        assert matcher.accept_tokens(ids[-1:])
    return ids


def test_a_turn_ends_in_place_of_a_repeated_call(calling: Compiler) -> None:
    matcher = matcher_of(calling)
    ids = [*opening(calling), *begun(calling, 0, {"n": 1}), *call_end(calling)]
    ids += [*begun(calling, 1, {"n": 2}), *call_end(calling), *begun(calling, 2, {"n": 1})]
    assert matcher.accept_tokens(ids)
    assert not matcher.accept_tokens(call_end(calling)) and matcher.num_tokens == len(ids)
    assert matcher.validate_tokens([*section_end(calling), 0])[: len(section_end(calling))] == section_end(calling)
    drafted = Drafter(matcher).draft(64)
    if not is_k3(calling):
        assert allowed(matcher) == section_end(calling) == matcher.forced_tokens()[:1]
        assert drafted[:1] == section_end(calling)
    assert matcher.fork().accept_tokens(drafted)
    assert not matcher.has_declined
    ids += [*section_end(calling)]
    assert matcher.accept_tokens(section_end(calling)) and matcher.phase is Phase.CLOSED and matcher.has_declined
    ids += end(matcher)
    completion = parse_completion(ids, calling.vocabulary)
    assert values_of(completion) == ['f {"n": 1}', 'f {"n": 2}']
    assert [json.loads(cut.arguments + "}" * is_k3(calling)) for cut in completion.cut_calls] == [{"n": 1}]
    assert completion.declined == ('call tool="f' if is_k3(calling) else "functions.f",)
    assert not completion.malformed and not completion.content


def test_other_names_and_other_arguments_are_no_repeats(calling: Compiler) -> None:
    matcher = matcher_of(calling)
    assert matcher.accept_tokens(opening(calling))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("f", {}),
        ("g", {}),
        ("any", {}),
        ("f", {"n": 1}),
        ("any", {"n": 1}),
        ("any", {"n": "1"}),
        ("f", {"n": 2}),
    ]
    for index, (name, arguments) in enumerate(calls):
        ids = [*begun(calling, index, arguments, name), *call_end(calling)]
        assert matcher.accept_tokens(ids), (name, arguments)
    assert matcher.num_calls == len(calls)
    for name, arguments in calls:
        again = matcher.fork()
        assert again.accept_tokens(begun(calling, len(calls), arguments, name))
        assert not again.accept_tokens(call_end(calling)), (name, arguments)
        assert again.accept_tokens(section_end(calling))


def test_without_the_field_calls_may_repeat(calling: Compiler) -> None:
    for value in (None, "allow"):
        matcher = matcher_of(calling, repeated_calls=value)
        ids = opening(calling)
        for index in range(2):
            ids += [*begun(calling, index, {"n": 1}), *call_end(calling)]
        assert matcher.accept_tokens(ids)


def test_equal_values_are_repeats_however_they_are_written(calling: Compiler) -> None:
    matcher = matcher_of(calling)
    first, again = {"b": "x", "a": 1}, {"a": 1, "b": "x"}
    assert matcher.accept_tokens([*opening(calling), *begun(calling, 0, first, "any"), *call_end(calling)])
    assert matcher.accept_tokens(begun(calling, 1, again, "any"))
    assert not matcher.accept_tokens(call_end(calling))


@pytest.mark.parametrize("seed", range(6))
def test_walks_hold_each_call_once_and_never_have_an_empty_mask(calling: Compiler, seed: int) -> None:
    """The second tool has one call alone, so long walks always come to a repeat."""
    chance, vocabulary = random.Random(seed), calling.vocabulary
    matcher = matcher_of(calling, tools=TOOLS[:2])
    ids: list[int] = []
    rows: list[Any] = []
    while not matcher.is_terminated():
        rows.append(row_of(matcher))
        found = allowed(matcher)
        assert found
        goes_on = matcher.phase is Phase.BETWEEN and vocabulary.format.call_begin in found
        ids.append(vocabulary.format.call_begin if goes_on else chance.choice(found))
        assert matcher.accept_tokens(ids[-1:])
        if chance.random() < 0.1:  # as speculative decoding takes tokens back
            back = chance.randint(1, min(len(ids), 9))
            matcher.rollback(back)
            fresh = matcher_of(calling, tools=TOOLS[:2])
            assert fresh.accept_tokens(ids[:-back])
            assert np.array_equal(row_of(matcher), row_of(fresh)) and np.array_equal(row_of(matcher), rows[-back])
            assert matcher.accept_tokens(ids[-back:])
    completion = parse_completion(ids, vocabulary)
    found_calls = values_of(completion)
    assert 1 <= len(found_calls) == len(set(found_calls)) == matcher.num_calls <= 4
    assert matcher.has_declined and len(completion.declined) == len(completion.cut_calls) == 1
    assert not completion.malformed


def test_the_finish_budget_ends_a_turn_in_a_repeated_call(calling: Compiler) -> None:
    matcher = matcher_of(calling)
    FinishBudget(calling.vocabulary).apply(matcher, 200, 200)
    ids = [*opening(calling), *begun(calling, 0, {"n": 1}), *call_end(calling), *begun(calling, 1, {"n": 1})]
    assert matcher.accept_tokens(ids)
    end(matcher)
    assert matcher.num_calls == 1 and matcher.has_declined


def test_xgrammar_matches_the_arguments(small_compiler: Compiler) -> None:
    matcher = matcher_of(small_compiler, engine="xgrammar")
    ids = [*opening(small_compiler), *begun(small_compiler, 0, {"n": 1}), *call_end(small_compiler)]
    again = begun(small_compiler, 1, {"n": 1})
    assert matcher.accept_tokens([*ids, *again])
    assert allowed(matcher) == section_end(small_compiler)
    matcher.rollback(len(again))
    assert matcher.accept_tokens([*begun(small_compiler, 1, {"n": 2}), *call_end(small_compiler)])


def test_a_stream_says_so_in_the_end(calling: Compiler) -> None:
    ids = [*opening(calling), *begun(calling, 0, {"n": 1}), *call_end(calling)]
    ids += [*begun(calling, 1, {"n": 1}), *section_end(calling)]
    ids += end_ids(calling)
    whole = parse_completion(ids, calling.vocabulary)
    parser = ToolCallParser(calling.vocabulary)
    events = [event for token in ids for event in parser.feed([token])] + parser.finish()
    assert Completion.from_events(events) == whole and whole.declined


def end_ids(compiler: Compiler) -> list[int]:
    if is_k3(compiler):
        return ids_of(compiler.vocabulary, f"{CLOSE}message{SEP}<|end_of_msg|>")
    return [compiler.vocabulary.format.turn_end]


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


def test_tokens_taken_back_across_a_repeated_call(calling: Compiler) -> None:
    ids = [*opening(calling), *begun(calling, 0, {"n": 1}), *call_end(calling), *begun(calling, 1, {"n": 1})]
    ids += [*section_end(calling), *end_ids(calling)]
    for back in range(1, len(ids) + 1):
        matcher, fresh = matcher_of(calling), matcher_of(calling)
        assert matcher.accept_tokens(ids) and fresh.accept_tokens(ids[:-back])
        matcher.rollback(back)
        assert np.array_equal(row_of(matcher), row_of(fresh)) and matcher.phase is fresh.phase
        assert matcher.has_declined == fresh.has_declined and matcher.num_calls == fresh.num_calls
        assert matcher.accept_tokens(ids[-back:]) and matcher.is_terminated()


def test_a_limit_of_the_engine_leaves_the_state(small_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has accepted the token when it is asked whether the arguments are whole."""
    matcher = matcher_of(small_compiler)
    *ids, last = [*opening(small_compiler), *begun(small_compiler, 0, {"n": 1}), *call_end(small_compiler),
                  *begun(small_compiler, 1, {"n": 2})]  # fmt: skip
    assert matcher.accept_tokens(ids)
    row, limit = row_of(matcher), SchemaTooCostly("at its limit", "", "", "llguidance")
    with monkeypatch.context() as patched:
        patched.setattr(type(matcher.arguments), "is_complete", Mock(side_effect=limit))
        with pytest.raises(SchemaTooCostly):
            matcher.accept_tokens([last])
    assert matcher.num_tokens == len(ids) and np.array_equal(row_of(matcher), row)
    assert matcher.accept_tokens([last, *call_end(small_compiler)])
