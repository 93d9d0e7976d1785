"""Budgets in Kimi K3's turns, beside what test_finish_budget.py holds of each format."""

import random

import pytest

from constrained_k2 import Compiler
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from tests.kit.data import mcp_servers
from tests.kit.k3_turns import CLOSE, OPEN, SEP
from tests.kit.tools import tool
from tests.kit.turns import call_start, ids_of, matcher_of, steps
from tests.kit.walks import row_of as mask
from tests.turn.test_finish_budget import EVERY, SCHEMAS, Side, required

UNDER_DRAFT_4 = {"read_pdf"}  # exclusiveMinimum is a boolean there


@pytest.fixture(scope="module")
def side(k3_small_compiler: Compiler) -> Side:
    return Side(k3_small_compiler)


@pytest.mark.slow
def test_public_tools_on_the_real_vocabulary(k3_real_compiler: Compiler) -> None:
    real = Side(k3_real_compiler)
    for seed, entry in enumerate(entry for tools in mcp_servers() for entry in tools):
        matcher = real.turn(required(entry), 290, 250)
        ids = steps(matcher, random.Random(seed), 290)
        assert matcher.is_terminated(), real.vocabulary.decode(ids)
        name, schema = entry["function"]["name"], entry["function"].get("parameters", {})
        real.check_calls(ids, {} if name in UNDER_DRAFT_4 else {name: schema})


@pytest.mark.slow
def test_a_reserve_of_the_same_size_suffices_in_arguments(k3_real_compiler: Compiler) -> None:
    """From within a string, as an untrained model meets its reserve; the tokens of tags and transitions are added to it."""
    real = Side(k3_real_compiler)
    for count in (1, 4, 12):
        keys = [f"key_{number}" for number in range(count)]
        parameters = {"type": "object", "properties": {key: {"type": "string"} for key in keys}, "required": keys}
        start = call_start(real.vocabulary) + ids_of(real.vocabulary, f'{OPEN}argument key="key_0" type="string"{SEP}')
        matcher = matcher_of(k3_real_compiler, required(tool("f", parameters), parallel_tool_calls=False))
        assert matcher.accept_tokens(start)
        real.budget.apply(matcher, 400, 6 + 4 * count)
        ids = steps(matcher, random.Random(count), 400 - len(start))
        assert matcher.is_terminated(), real.vocabulary.decode(ids)
        real.check_calls([*start, *ids], {"f": parameters})


def test_the_reserve_ends_the_block_that_is_open_and_adds_required_ones_alone(k3_real_compiler: Compiler) -> None:
    vocabulary = k3_real_compiler.vocabulary
    kinds = {"skip": "string", "_id": ["array", "string", "null"], "n": "integer"}
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": ["n", "_id"]}
    matcher = matcher_of(k3_real_compiler, required(tool("f", parameters)))
    FinishBudget(vocabulary).apply(matcher, 200, 199)
    begun = ids_of(vocabulary, f'{OPEN}argument key="n" type="number"{SEP}7')
    assert matcher.accept_tokens(call_start(vocabulary) + begun)
    ids = steps(matcher, random.Random(0), 24)
    expected = f'{CLOSE}argument{SEP}{OPEN}argument key="_id" type="string"{SEP}{CLOSE}argument{SEP}{CLOSE}'
    assert vocabulary.decode(ids).startswith(expected)
    pieces = ["argument", " key", '="', "_id", '"', " type", '="', "string", '"']
    assert ids[4:][: len(pieces) + 2] != ids_of(vocabulary, "".join(pieces))
    tag = [token_id for piece in pieces for token_id in vocabulary.encode(piece)]
    assert ids[4 : 4 + len(tag)] == tag, "tags are written in the pieces of prompts"


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("reserve", [0, 150])
def test_a_thinking_budget(side: Side, tokens: int, reserve: int) -> None:
    for seed in range(6):
        matcher = side.turn(required(EVERY[0], thinking=True), 400, reserve, in_reasoning=True)
        ThinkingBudget(side.vocabulary).apply(matcher, tokens)
        ids = steps(matcher, random.Random(seed), 400)
        assert side.vocabulary.format.think_end in ids[: tokens + 1]
        if reserve:
            assert matcher.is_terminated()
            side.check_calls(ids, SCHEMAS, in_reasoning=True)
    unthinking = matcher_of(side.compiler, required(EVERY[0]))
    ThinkingBudget(side.vocabulary).apply(unthinking, tokens)
    assert unthinking.phase is Phase.START and mask(unthinking).any()


def test_a_clients_limits_leave_turns_legal(side: Side) -> None:
    """Limits that forbid what ends a value while more may follow: the end comes where nothing else is left."""
    words = {key: {"type": "string", "maxLength": 5} for key in "abc"}
    schema = {"type": "object", "properties": words, "required": ["a"], "additionalProperties": False}
    vocabulary, ignored = side.vocabulary, list[int]()
    markers, word = vocabulary.format, vocabulary.encode("argument")
    for number, (allowed, bad) in enumerate(
        [(None, [[markers.call_end]]), (set(range(40, 120)), []), (None, [word, [markers.argument_begin]])]
    ):
        matcher = side.turn(required(tool("f", schema)), 600, 600)
        matcher.limits = TokenRestriction(vocabulary.size, allowed, bad, lambda: ignored.append(number))  # noqa: B023
        ids = steps(matcher, random.Random(number), 600)
        assert matcher.is_terminated(), vocabulary.decode(ids)
        side.check_calls(ids, {"f": schema})
    assert set(ignored) == {0, 1, 2}
