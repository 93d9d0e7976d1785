"""Finish budgets, in each format: filtered masks are legal and not empty, and typical calls come to a valid end."""

import json
import random
from functools import partial
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, InvalidRequest, ToolCallMatcher, parse_completion
from constrained_k2.turn.cursors.xtml_tags import BLOCK_TOKENS
from constrained_k2.turn.finish_budget import MAX_FINISH_RESERVE, FinishBudget, read_finish_reserve
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vocabulary.bitmask import allowed_ids
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.budget import tries
from tests.kit.data import data, mcp_servers, table
from tests.kit.k3_turns import CLOSE, OPEN, SEP, read
from tests.kit.tools import tool
from tests.kit.turns import call_start, check_states, ids_of, is_k3, matcher_of, steps
from tests.kit.walks import row_of as mask

RESERVE = 96  # more than any of the tools below needs on the small vocabulary, from wherever its writing stands


TABLE = [
    tool(name, parameters) for name, parameters in table(__file__).items()
]  # open, recursive and demanding objects
EVERY = (*TOOLS, *TABLE)
SCHEMAS = {entry["function"]["name"]: entry["function"].get("parameters", {}) for entry in EVERY}


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"q": schema}, "required": ["q"]}


def required(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tools": list(tools), "tool_choice": "required"} | more


class Side:
    """A format: its compiler and budget, what its tags add to a reserve, and how its calls are begun and read."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler, self.vocabulary, self.budget = compiler, compiler.vocabulary, FinishBudget(compiler.vocabulary)
        self.is_k3 = is_k3(self.vocabulary)
        self.reserve = RESERVE + (140 if self.is_k3 else 0)  # tags are long, and random choices split their words

    def turn(self, body: Any, budget: int, reserve: int, *, in_reasoning: bool = False) -> ToolCallMatcher:
        """A matcher of a request with a budget and a finish reserve."""
        matcher = matcher_of(self.compiler, body, in_reasoning=in_reasoning)
        self.budget.apply(matcher, budget, reserve)
        return matcher

    def check_calls(self, ids: list[int], schemas: dict[str, Any], *, in_reasoning: bool = False) -> None:
        """Each call of a whole turn is valid by its tool's schema, and no key is written twice."""
        if self.is_k3:
            found = [
                (
                    name,
                    [(key, value.decode() if kind == "string" else json.loads(value)) for key, kind, value in blocks],
                )
                for name, _, blocks in read(ids, self.vocabulary, in_reasoning=in_reasoning).calls
            ]
        else:
            completion = parse_completion(ids, self.vocabulary, in_reasoning=in_reasoning)
            assert not completion.cut_calls
            found = [(call.name, [*json.loads(call.arguments).items()]) for call in completion.tool_calls]
        assert found
        for name, members in found:
            assert len(dict(members)) == len(members)
            jsonschema.validate(dict(members), schemas.get(name, {}))

    def beginnings(self, begun: Any) -> list[list[int]]:
        """The tokens of a call of ``f`` that has begun to write this value under ``q``, at each length."""
        if self.is_k3:
            kind, value = ("string", begun) if isinstance(begun, str) else ("array", json.dumps(begun)[:-1])
            start = call_start(self.vocabulary)
            opened = f'{OPEN}argument key="q" type="{kind}"{SEP}'
            return [start + ids_of(self.vocabulary, opened + value[:length]) for length in range(len(value) + 1)]
        start, written = call_start(self.vocabulary), json.dumps({"q": begun})
        return [[*start, *self.vocabulary.encode(written[:length])] for length in range(6, len(written) - 1)]

    def unfiltered(self, start: int, tools: list[dict[str, Any]]) -> int:
        """The number of tokens that a reserve which begins at ``start`` leaves as they are."""
        required = max(len(entry["function"].get("parameters", {}).get("required", ())) for entry in tools)
        return start - (self.budget.transition_tokens + BLOCK_TOKENS * (1 + required) if self.is_k3 else 0)


@pytest.fixture(scope="module")
def side(each_compiler: Compiler) -> Side:
    return Side(each_compiler)


@pytest.fixture(scope="module")
def small_budget(small_compiler: Compiler) -> FinishBudget:
    return FinishBudget(small_compiler.vocabulary)


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry["function"]["name"])
@pytest.mark.parametrize("before", [0, 20, 75])
def test_a_random_turn_ends_valid_within_its_budget(side: Side, entry: dict[str, Any], before: int) -> None:
    for seed in range(tries(6 if side.is_k3 else 12, fast=3, everything=12)):
        in_reasoning = seed % 3 == 0
        body, budget = required(entry, thinking=in_reasoning), side.reserve + before
        matcher = side.turn(body, budget, side.reserve, in_reasoning=in_reasoning)
        ids = steps(matcher, random.Random(seed), budget)
        assert matcher.is_terminated(), side.vocabulary.decode(ids)
        side.check_calls(ids, SCHEMAS, in_reasoning=in_reasoning)


def strings(**more: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, **more}


REFUSED_AT_FIRST = [  # what ends soonest is not legal
    (strings(contains={"enum": ["low"]}, minContains=2), ["x"]),
    ({"type": "array", "contains": {"type": "number", "minimum": 5, "maximum": 6}}, [1]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "begun"), REFUSED_AT_FIRST)
def test_what_ends_soonest_may_be_refused(side: Side, schema: dict[str, Any], begun: Any) -> None:
    """Then another way leads to the end, at each position as if it were the first one."""
    parameters, vocabulary = of(schema), side.vocabulary
    body = required(tool("f", parameters))
    for number, ids in enumerate(side.beginnings(begun)):
        budget = len(ids) + side.reserve
        matcher = side.turn(body, budget, side.reserve)
        assert matcher.accept_tokens(ids)
        chosen: list[int] = []
        while not matcher.is_terminated() and matcher.num_tokens < budget:
            fresh = side.turn(body, budget, side.reserve)
            assert fresh.accept_tokens([*ids, *chosen])
            row = mask(matcher)
            assert np.array_equal(mask(fresh), row)
            chosen.append(int(random.Random(number).choice(allowed_ids(row))))
            assert matcher.accept_tokens(chosen[-1:])
        assert matcher.is_terminated(), vocabulary.decode(matcher.token_ids())
        side.check_calls(list(matcher.token_ids()), {"f": parameters})


@pytest.mark.slow
def test_the_vendor_verifiers_schemas(real_compiler: Compiler) -> None:
    """From within the arguments, as an untrained model meets its reserve: an answer without an end."""
    finish_budget, chance, cut = FinishBudget(real_compiler.vocabulary), random.Random(7), []
    lines = (data("schemas/kvv-walle/cases.jsonl")).read_text().splitlines()
    for number, schema in enumerate(json.loads(line)["schema"] for line in lines):
        if not isinstance(schema, dict) or schema.get("type") != "object":
            schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}  # noqa: PLW2901
        matcher = matcher_of(real_compiler, required(tool("kvv_walle_case", schema)))
        start = call_start(real_compiler.vocabulary, "kvv_walle_case")
        finish_budget.apply(matcher, len(start) + 100, 60)
        assert matcher.accept_tokens(start)
        steps(matcher, chance, 100)
        if not matcher.is_terminated():
            cut.append((number, json.dumps(schema)[:100]))
    assert [number for number, _ in cut] == [ENDLESS], cut


ENDLESS = 157  # a string of at least 999,999,999,999 characters


@pytest.mark.slow
def test_on_the_real_vocabulary(real_compiler: Compiler) -> None:
    side = Side(real_compiler)
    for seed, entry in enumerate(EVERY * 3):
        matcher = side.turn(required(entry), RESERVE + 40, RESERVE)
        ids = steps(matcher, random.Random(seed), RESERVE + 40)
        assert matcher.is_terminated(), real_compiler.vocabulary.decode(ids)
        side.check_calls(ids, SCHEMAS)


def test_without_closing_the_same_turns_are_cut(small_compiler: Compiler) -> None:
    """So that the test above is one: uniform choices alone do not end in time."""
    cut = 0
    for seed in range(40):
        matcher = matcher_of(small_compiler, required(EVERY[seed % len(EVERY)]))
        steps(matcher, random.Random(seed), RESERVE)
        cut += not matcher.is_terminated()
    assert cut > 10


@settings(max_examples=tries(120, fast=30, everything=240), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    choice=st.sampled_from(["auto", "required", "none"]),
    thinking=st.booleans(),
    parallel=st.booleans(),
    engine=st.sampled_from(["llguidance", "xgrammar"]),
    numbers=st.sets(st.integers(0, len(EVERY) - 1), min_size=1, max_size=3),
    start=st.integers(0, 66),
)
def test_a_narrowed_mask_is_some_of_the_mask_and_not_none(
    side: Side, seed: int, choice: str, thinking: bool, parallel: bool, engine: str, numbers: set[int], start: int
) -> None:
    """Whatever was written before, legal but not what the budget would choose: drafts, and values left to the model."""
    tools = [EVERY[number] for number in sorted(numbers)]
    body = {"tools": tools, "tool_choice": choice, "thinking": thinking, "parallel_tool_calls": parallel}
    if engine == "xgrammar" and not side.is_k3:
        body |= {"tools": [WEATHER], "engine": engine}
    start *= 3 if side.is_k3 else 1
    free = matcher_of(side.compiler, body, in_reasoning=thinking and seed % 2 == 0)
    filtered_turn = free.fork()
    side.budget.apply(filtered_turn, 1000, 1000 - start)
    unfiltered, chance = side.unfiltered(start, tools), random.Random(seed)
    for position in range(130 if side.is_k3 else 90):
        whole, filtered = mask(free), mask(filtered_turn)
        assert filtered.any()
        assert not (filtered & ~whole).any()
        written = side.vocabulary.decode(free.token_ids())
        if position + written.count("{") + written.count("[") < unfiltered:  # it begins earlier where more is open
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


WEATHER = TOOLS[0]


def test_without_a_reserve_nothing_is_filtered(small_compiler: Compiler, small_budget: FinishBudget) -> None:
    free, zero = (matcher_of(small_compiler, required(*TOOLS)) for _ in range(2))
    small_budget.apply(zero, 0, 0)
    chance = random.Random(5)
    while not free.is_terminated():
        assert np.array_equal(mask(zero), mask(free))
        assert zero.accept_tokens(steps(free, chance, 1))


def test_batches_rollbacks_and_forks_filter_alike(side: Side) -> None:
    budget, apart = (RESERVE + 140, 3) if side.is_k3 else (RESERVE + 30, 1)
    for seed in range(0, 18, 2) if side.is_k3 else range(12):
        make, chance = partial(side.turn, required(EVERY[seed % len(EVERY)]), budget, RESERVE), random.Random(seed)
        check_states(make, steps(make(), chance, budget), chance, apart)


def test_a_rollback_to_where_it_has_been_forgets_what_came_instead(
    small_compiler: Compiler, small_budget: FinishBudget
) -> None:
    """The number of tokens alone does not say which they were: they may have replaced rejected drafts."""
    vocabulary = small_compiler.vocabulary
    matcher = matcher_of(small_compiler, required(tool("f", {"type": "object"})))
    small_budget.apply(matcher, 500, 499)
    assert matcher.accept_tokens([*call_start(vocabulary), *vocabulary.encode('{"a":')])
    quote, bracket = vocabulary.encode('"')[0], vocabulary.encode("[")[0]
    assert matcher.accept_tokens([quote])
    assert [vocabulary.decode([token])[0] for token in allowed_ids(mask(matcher))] == ['"']
    matcher.rollback(1)
    assert matcher.accept_tokens([bracket])
    assert [vocabulary.decode([token])[0] for token in allowed_ids(mask(matcher))] == ["]"]


def test_where_text_ends_what_is_required_begins(small_compiler: Compiler, small_budget: FinishBudget) -> None:
    markers = small_compiler.vocabulary.format
    for choice, expected in (("required", {markers.think_end, markers.section_begin}), ("auto", None)):
        body = {"tools": [WEATHER], "tool_choice": choice, "thinking": True}
        matcher = matcher_of(small_compiler, body, in_reasoning=True)
        whole = set(allowed_ids(mask(matcher)).tolist())
        small_budget.apply(matcher, 10, 10)
        assert set(allowed_ids(mask(matcher)).tolist()) == (expected or whole)
    matcher = matcher_of(small_compiler, required(WEATHER, thinking=True))
    small_budget.apply(matcher, 10, 10)
    assert matcher.phase is Phase.START
    assert allowed_ids(mask(matcher)).tolist() == [markers.section_begin]


@pytest.mark.parametrize("value", [-1, MAX_FINISH_RESERVE + 1, True, "5", 1.0, None, [1]])
def test_what_is_no_reserve(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^here: .*whole number from 0 to 4096"):
        read_finish_reserve(value, "here")


def test_what_is_a_reserve() -> None:
    assert [read_finish_reserve(value, "") for value in (0, 1, MAX_FINISH_RESERVE)] == [0, 1, MAX_FINISH_RESERVE]


def test_the_reserve_grows_with_the_depth(small_compiler: Compiler) -> None:
    """A model that opens objects as long as it may: a reserve of fixed length would end before they are closed."""
    node = {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}}
    parameters = {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}},
        "required": ["root"],
        "$defs": {"node": node},
    }
    vocabulary, budget = small_compiler.vocabulary, FinishBudget(small_compiler.vocabulary)
    deeper = vocabulary.encode('{"a":')
    for seed in range(4):
        matcher, chance = matcher_of(small_compiler, required(tool("f", parameters))), random.Random(seed)
        budget.apply(matcher, 700, 60)
        while matcher.num_tokens < 700 and not matcher.is_terminated():
            allowed = set(map(int, allowed_ids(mask(matcher))))
            wanted = next((token for token in deeper if token in allowed), None)
            token = chance.choice(sorted(allowed)) if wanted is None or chance.random() < 0.1 else wanted
            assert matcher.accept_tokens([token])
            if chance.random() < 0.05:
                taken_back = matcher.token_ids(max(0, matcher.num_tokens - chance.randrange(40)))
                before = mask(matcher)
                matcher.rollback(len(taken_back))
                mask(matcher)
                assert matcher.accept_tokens(taken_back)
                assert (mask(matcher) == before).all()
        assert matcher.is_terminated()


UNDER_DRAFT_4 = {"read_pdf"}  # exclusiveMinimum is a boolean there


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
