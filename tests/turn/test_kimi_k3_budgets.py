"""Finish and thinking budgets in Kimi K3's turns: filtered masks are legal and not empty, and calls end valid in time."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, ToolCallMatcher, Vocabulary
from constrained_k2.turn.batch import fill_bitmasks
from constrained_k2.turn.drafts.xtml.tags import BLOCK_TOKENS
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.data import mcp_servers
from tests.turn.k3_turns import CLOSE, OPEN, SEP, ids_of, read
from tests.turn.test_finish_budget import (
    EVERY,
    REFUSED_AT_FIRST,
    RESERVE,
    SCHEMAS,
    mask,
    matcher_of,
    of,
    required,
    steps,
    tool,
)


@pytest.fixture(scope="module")
def budget(k3_small_compiler: Compiler) -> FinishBudget:
    return FinishBudget(k3_small_compiler.vocabulary)


def check_calls(ids: list[int], vocabulary: Vocabulary, schemas: dict[str, Any], *, in_reasoning: bool = False) -> None:
    """Each call of a whole turn is valid by its tool's schema, and no key is written twice."""
    turn = read(ids, vocabulary, in_reasoning=in_reasoning)
    assert turn.calls
    for name, _, blocks in turn.calls:
        arguments = {key: value.decode() if kind == "string" else json.loads(value) for key, kind, value in blocks}
        assert len(arguments) == len(blocks)
        if name in schemas:
            jsonschema.validate(arguments, schemas[name])


ROOM = 140  # more than the reserve of Kimi K2's tests: tags are long, and random choices split their words
UNDER_DRAFT_4 = {"read_pdf"}  # exclusiveMinimum is a boolean there


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry["function"]["name"])
@pytest.mark.parametrize("before", [0, 20, 75])
def test_a_random_turn_ends_valid_within_its_budget(
    k3_small_compiler: Compiler, budget: FinishBudget, entry: dict[str, Any], before: int
) -> None:
    reserve = RESERVE + ROOM
    for seed in range(6):
        in_reasoning = seed % 3 == 0
        matcher = matcher_of(k3_small_compiler, required(entry, thinking=in_reasoning), in_reasoning=in_reasoning)
        budget.apply(matcher, reserve + before, reserve)
        ids = steps(matcher, random.Random(seed), reserve + before)
        assert matcher.is_terminated(), k3_small_compiler.vocabulary.decode(ids)
        check_calls(ids, k3_small_compiler.vocabulary, SCHEMAS, in_reasoning=in_reasoning)


@pytest.mark.parametrize(("schema", "begun"), REFUSED_AT_FIRST)
def test_what_ends_soonest_may_be_refused(
    k3_small_compiler: Compiler, budget: FinishBudget, schema: dict[str, Any], begun: Any
) -> None:
    vocabulary, parameters, reserve = k3_small_compiler.vocabulary, of(schema), RESERVE + ROOM
    kind, value = ("string", begun) if isinstance(begun, str) else ("array", json.dumps(begun)[:-1])
    start = f'{CLOSE}response{SEP}{OPEN}tools{SEP}{OPEN}call tool="f" index="1"{SEP}{OPEN}argument key="q" type="{kind}"{SEP}'
    for length in range(len(value) + 1):
        matcher = matcher_of(k3_small_compiler, required(tool("f", parameters), parallel_tool_calls=False))
        ids = ids_of(vocabulary, start + value[:length])
        assert matcher.accept_tokens(ids)
        budget.apply(matcher, len(ids) + reserve, reserve)
        ids += steps(matcher, random.Random(length), reserve)
        assert matcher.is_terminated(), vocabulary.decode(ids)
        check_calls(ids, vocabulary, {"f": parameters})


@pytest.mark.slow
def test_public_tools_on_the_real_vocabulary(k3_real_compiler: Compiler) -> None:
    finish_budget = FinishBudget(k3_real_compiler.vocabulary)
    tools = [entry for tools in mcp_servers() for entry in tools]
    for seed, entry in enumerate(tools):
        matcher = matcher_of(k3_real_compiler, required(entry))
        finish_budget.apply(matcher, 290, 250)
        ids = steps(matcher, random.Random(seed), 290)
        assert matcher.is_terminated(), k3_real_compiler.vocabulary.decode(ids)
        name, schema = entry["function"]["name"], entry["function"].get("parameters", {})
        check_calls(ids, k3_real_compiler.vocabulary, {} if name in UNDER_DRAFT_4 else {name: schema})


@pytest.mark.slow
def test_a_reserve_of_the_same_size_suffices_in_arguments(k3_real_compiler: Compiler) -> None:
    """From within a string, as an untrained model meets its reserve; the tokens of tags and joints are added to it."""
    finish_budget, vocabulary = FinishBudget(k3_real_compiler.vocabulary), k3_real_compiler.vocabulary
    for count in (1, 4, 12):
        keys = [f"key_{number}" for number in range(count)]
        parameters = {"type": "object", "properties": {key: {"type": "string"} for key in keys}, "required": keys}
        start = ids_of(vocabulary, f'{CLOSE}response{SEP}{OPEN}tools{SEP}{OPEN}call tool="f" index="1"{SEP}')
        start += ids_of(vocabulary, f'{OPEN}argument key="key_0" type="string"{SEP}')
        matcher = matcher_of(k3_real_compiler, required(tool("f", parameters), parallel_tool_calls=False))
        assert matcher.accept_tokens(start)
        finish_budget.apply(matcher, 400, 6 + 4 * count)
        ids = steps(matcher, random.Random(count), 400 - len(start))
        assert matcher.is_terminated(), vocabulary.decode(ids)
        check_calls([*start, *ids], vocabulary, {"f": parameters})


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    choice=st.sampled_from(["auto", "required", "none"]),
    thinking=st.booleans(),
    parallel=st.booleans(),
    numbers=st.sets(st.integers(0, len(EVERY) - 1), min_size=1, max_size=3),
    start=st.integers(0, 200),
)
def test_a_filtered_mask_is_some_of_the_mask_and_not_none(
    k3_small_compiler: Compiler, budget: FinishBudget, seed: int, choice: str, thinking: bool, parallel: bool, numbers: set[int], start: int
) -> None:  # fmt: skip
    """Whatever was written before, legal but not what the budget would choose: drafts, and values left to the model."""
    tools = [EVERY[number] for number in sorted(numbers)]
    body = {"tools": tools, "tool_choice": choice, "thinking": thinking, "parallel_tool_calls": parallel}
    free = matcher_of(k3_small_compiler, body, in_reasoning=thinking and seed % 2 == 0)
    filtered_turn = free.fork()
    budget.apply(filtered_turn, 1000, 1000 - start)
    begins_at = start - budget.joint_tokens - BLOCK_TOKENS * (1 + max(map(number_required, tools)))
    chance = random.Random(seed)
    for position in range(130):
        whole, filtered = mask(free), mask(filtered_turn)
        assert filtered.any()
        assert not (filtered & ~whole).any()
        written = k3_small_compiler.vocabulary.decode(free.token_ids())
        if position + written.count("{") + written.count("[") < begins_at:
            assert np.array_equal(filtered, whole)
        allowed = allowed_ids(filtered if chance.random() < 0.5 else whole)
        token = int(allowed[chance.randrange(len(allowed))])
        assert free.accept_tokens([token]) and filtered_turn.accept_tokens([token])
        if free.is_terminated():
            break
        if chance.random() < 0.1:
            count = chance.randrange(min(free.num_tokens, 8) + 1)
            free.rollback(count)
            filtered_turn.rollback(count)


def number_required(entry: dict[str, Any]) -> int:
    return len(entry["function"].get("parameters", {}).get("required", ()))


def test_batches_rollbacks_and_forks_filter_alike(k3_small_compiler: Compiler, budget: FinishBudget) -> None:
    """A matcher that was taken back, forked or filled in a batch has the mask of one that only went there."""
    size, tokens = k3_small_compiler.vocabulary.size, RESERVE + ROOM
    for seed in range(0, 18, 2):
        body = required(EVERY[seed % len(EVERY)])
        first = matcher_of(k3_small_compiler, body)
        budget.apply(first, tokens, RESERVE)
        ids = steps(first, random.Random(seed), tokens)
        fresh: list[ToolCallMatcher] = []
        for end in range(0, len(ids), 3):
            fresh.append(matcher_of(k3_small_compiler, body))
            budget.apply(fresh[-1], tokens, RESERVE)
            assert fresh[-1].accept_tokens(ids[:end])
        rows = [mask(matcher) for matcher in fresh]
        batch = allocate_bitmask(len(fresh), size)
        assert not fill_bitmasks(fresh, batch, range(len(fresh)))
        assert np.array_equal(batch, rows)
        other = first.fork()
        for matcher in (first, other):
            for number in reversed(range(len(rows))):
                matcher.rollback(matcher.num_tokens - 3 * number)
                assert np.array_equal(mask(matcher), rows[number])


def test_the_reserve_ends_the_block_that_is_open_and_adds_required_ones_alone(k3_real_compiler: Compiler) -> None:
    vocabulary = k3_real_compiler.vocabulary
    parameters = {
        "type": "object",
        "properties": {
            "skip": {"type": "string"},
            "_id": {"type": ["array", "string", "null"]},
            "n": {"type": "integer"},
        },
        "required": ["n", "_id"],
    }
    matcher = matcher_of(k3_real_compiler, required(tool("f", parameters)))
    FinishBudget(vocabulary).apply(matcher, 200, 199)
    start = f'{CLOSE}response{SEP}{OPEN}tools{SEP}{OPEN}call tool="f" index="1"{SEP}{OPEN}argument key="n" type="number"{SEP}7'
    assert matcher.accept_tokens(ids_of(vocabulary, start))
    ids = steps(matcher, random.Random(0), 24)
    expected = f'{CLOSE}argument{SEP}{OPEN}argument key="_id" type="string"{SEP}{CLOSE}argument{SEP}{CLOSE}'
    assert vocabulary.decode(ids).startswith(expected)
    pieces = ["argument", " key", '="', "_id", '"', " type", '="', "string", '"']
    assert ids[4:][: len(pieces) + 2] != ids_of(vocabulary, "".join(pieces))
    tag = [token_id for piece in pieces for token_id in vocabulary.encode(piece)]
    assert ids[4 : 4 + len(tag)] == tag, "tags are written in the pieces of prompts"


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("reserve", [0, 150])
def test_a_thinking_budget(k3_small_compiler: Compiler, budget: FinishBudget, tokens: int, reserve: int) -> None:
    for seed in range(6):
        body = {"tools": [EVERY[0]], "tool_choice": "required", "thinking": True}
        matcher = matcher_of(k3_small_compiler, body, in_reasoning=True)
        budget.apply(matcher, 400, reserve)
        ThinkingBudget(k3_small_compiler.vocabulary).apply(matcher, tokens)
        ids = steps(matcher, random.Random(seed), 400)
        close = k3_small_compiler.vocabulary.format.think_end
        assert close in ids[: tokens + 1]
        if reserve:
            assert matcher.is_terminated()
            check_calls(ids, k3_small_compiler.vocabulary, SCHEMAS, in_reasoning=True)
    unthinking = matcher_of(k3_small_compiler, required(EVERY[0]))
    ThinkingBudget(k3_small_compiler.vocabulary).apply(unthinking, tokens)
    assert unthinking.phase is Phase.START and mask(unthinking).any()


def test_a_clients_limits_leave_turns_legal(k3_small_compiler: Compiler, budget: FinishBudget) -> None:
    """Limits that forbid what ends a value while more may follow: the end comes where nothing else is left."""
    words = {key: {"type": "string", "maxLength": 5} for key in "abc"}
    schema = {"type": "object", "properties": words, "required": ["a"], "additionalProperties": False}
    vocabulary, ignored = k3_small_compiler.vocabulary, list[int]()
    markers, word = vocabulary.format, vocabulary.encode("argument")
    for number, (allowed, bad) in enumerate(
        [(None, [[markers.call_end]]), (set(range(40, 120)), []), (None, [word, [markers.argument_begin]])]
    ):
        matcher = matcher_of(k3_small_compiler, required(tool("f", schema)))
        budget.apply(matcher, 600, 600)
        matcher.restriction = TokenRestriction(vocabulary.size, allowed, bad, lambda: ignored.append(number))  # noqa: B023
        ids = steps(matcher, random.Random(number), 600)
        assert matcher.is_terminated(), vocabulary.decode(ids)
        check_calls(ids, vocabulary, {"f": schema})
    assert set(ignored) == {0, 1, 2}
