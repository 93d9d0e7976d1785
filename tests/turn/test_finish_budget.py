"""Finish budgets: filtered masks are legal and not empty, and typical calls come to a valid end."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, InvalidRequest, ToolCallMatcher, ToolCallSpec, parse_completion
from constrained_k2.turn.batch import fill_bitmasks
from constrained_k2.turn.finish_budget import MAX_FINISH_RESERVE, FinishBudget, read_finish_reserve
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from scripts.bundled_samples.ordinary import TOOLS
from tests.data import data

RESERVE = 96  # more than any of the tools below needs on the small vocabulary, from wherever its writing stands


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "number"}}, "required": ["v"]}
OPEN = (
    tool("anything", {"type": "object"}),
    tool("open_with_required", {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}),
    tool("free_values", {"type": "object", "additionalProperties": {"type": "string"}}),
    tool("some_of_them", {"type": "object", "properties": {key: {"type": "string", "minLength": 2} for key in "abcdef"},
                          "additionalProperties": False, "minProperties": 3}),
    tool("nested", {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "array", "items": {}}}}}),
    tool("recursive", {"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "required": ["root"],
                       "$defs": {"node": NODE}}),
    tool("choices", {"type": "object", "required": ["q"],
                     "properties": {"q": {"anyOf": [{"type": "string"}, {"type": "array", "items": {}}, {"type": "null"}]}}}),
    tool("no_key_known", {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "minProperties": 1}),
    tool("odd_keys", {"type": "object", "required": ['a"b', "\n"],
                     "properties": {'a"b': {"type": "string"}, "\n": {"type": "boolean"}}}),
)  # fmt: skip
LIST = {"type": "object", "properties": {"v": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": False}  # fmt: skip
PAIR = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}},
        "required": ["left", "right"], "additionalProperties": False}  # fmt: skip
SHAPES = [{"type": "object", "properties": {"kind": {"const": kind}, key: {"type": "string"}, "more": {"$ref": "#/$defs/shape"}},
           "required": ["kind", key, *more]} for kind, key, more in (("a", "x", ["more"]), ("b", "y", []), ("c", "z", ["more"]))]  # fmt: skip


def of(schema: Any, **definitions: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"q": schema}, "required": ["q"], "$defs": definitions}


RECURSIVE = (
    tool("linked_list", of({"$ref": "#/$defs/list"}, list=LIST)),
    tool("root_again", {"type": "object", "required": ["node"], "properties": {
        "node": {"anyOf": [{"type": "null"}, {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}}]}}}),
    tool("tree", of({"$ref": "#/$defs/tree"}, tree={"oneOf": [PAIR, {"type": "integer"}]})),
    tool("arrays_of_itself", of({"$ref": "#/$defs/a"}, a={"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 0})),
    tool("array_or_text", of({"$ref": "#/$defs/a"}, a={"anyOf": [
        {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 2}, {"type": "string"}]})),
    tool("kinds_of_object", of({"$ref": "#/$defs/shape"}, shape={"oneOf": SHAPES})),
    tool("optional_itself", of({"$ref": "#/$defs/o"}, o={
        "type": "object", "properties": {"o": {"$ref": "#/$defs/o"}, "s": {"type": "string"}}, "required": ["s"]})),
    tool("either_key", {"type": "object", "properties": {"x": {"type": "string"}, "why": {"type": "integer"}},
                        "anyOf": [{"required": ["x", "why"]}, {"required": ["why"]}], "additionalProperties": False}),
    tool("formats", {"type": "object", "required": ["t", "m"], "properties": {
        "t": {"type": "string", "format": "date-time"}, "m": {"type": "string", "format": "email"}}}),
)  # fmt: skip
DEMANDING = (
    tool("tail", of({"type": "string", "pattern": r"^[^@\s]+@[^@\s]+\.gov\.uk$"})),
    tool("anywhere", of({"type": "string", "pattern": "[0-9a-f]{4}-(?:beef|dead)"})),
    tool("long", of({"type": "string", "pattern": "^[a-z]+(?:-[a-z]+)*$", "minLength": 20})),
    tool("dates", of({"type": "array", "items": {"type": "string", "format": "duration"}, "minItems": 2})),
    tool("depends", {"type": "object", "allOf": [{"dependencies": {"a": ["b", "c"], "b": ["d"]}}, {"required": ["a"]}]}),
    tool("by_pattern", of({"type": "object", "patternProperties": {"^[a-f]_[0-9]+$": {
        "type": "object", "properties": {"v": {"type": "null"}}, "required": ["v"]}},
        "additionalProperties": False, "minProperties": 1})),
    tool("one_key_of_a_name", {"type": "object", "not": {"propertyNames": {"not": {"const": "0"}}}}),
    tool("refined", of({"allOf": [{"type": "string", "pattern": "^[a-c]+$"}, {"pattern": "cab$"}]})),
    tool("nested_contains", of({"type": "array", "contains": {"type": "array", "contains": {"const": "word"}}})),
    tool("contains", of({"type": "array", "contains": {"type": "integer", "multipleOf": 11, "minimum": 100}})),
    tool("password", of({"type": "string", "pattern": r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z\d@]{8,}$"})),
)  # fmt: skip
EVERY = (*TOOLS, *OPEN, *RECURSIVE, *DEMANDING)
SCHEMAS = {entry["function"]["name"]: entry["function"].get("parameters", {}) for entry in EVERY}


def matcher_of(compiler: Compiler, body: dict[str, Any], *, in_reasoning: bool = False) -> ToolCallMatcher:
    return compiler.compile(ToolCallSpec.from_openai(body)).matcher(in_reasoning=in_reasoning)


def required(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tools": list(tools), "tool_choice": "required"} | more


def mask(matcher: ToolCallMatcher) -> np.ndarray:
    bitmask = allocate_bitmask(1, matcher.vocabulary.size)
    matcher.fill_bitmask(bitmask)
    return bitmask[0]


def steps(matcher: ToolCallMatcher, chance: random.Random, budget: int) -> list[int]:
    """Uniform choices under the mask until a stop, or until the budget is spent."""
    ids: list[int] = []
    while len(ids) < budget and not matcher.is_terminated():
        allowed = allowed_ids(mask(matcher))
        ids.append(int(allowed[chance.randrange(len(allowed))]))
        assert matcher.accept_tokens(ids[-1:])
    return ids


@pytest.fixture(scope="module")
def small_budget(small_compiler: Compiler) -> FinishBudget:
    return FinishBudget(small_compiler.vocabulary)


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry["function"]["name"])
@pytest.mark.parametrize("budget", [RESERVE, RESERVE + 20, RESERVE + 75])
def test_a_random_turn_ends_valid_within_its_budget(
    small_compiler: Compiler, small_budget: FinishBudget, entry: dict[str, Any], budget: int
) -> None:
    for seed in range(12):
        body = required(entry, thinking=seed % 3 == 0)
        matcher = matcher_of(small_compiler, body, in_reasoning=seed % 3 == 0)
        small_budget.apply(matcher, budget, RESERVE)
        ids = steps(matcher, random.Random(seed), budget)
        said = small_compiler.vocabulary.decode(ids)
        assert matcher.is_terminated(), said
        completion = parse_completion(ids, small_compiler.vocabulary, in_reasoning=seed % 3 == 0)
        assert completion.tool_calls and not completion.cut_calls, said
        for call in completion.tool_calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def strings(**more: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, **more}


REFUSED_AT_FIRST = [  # what ends soonest is not legal, or names what leads to no end
    ({"type": "string", "pattern": r"\bword\b"}, "q qq"),
    ({"type": "string", "pattern": r"\bword\b"}, "qqword"),
    ({"type": "string", "pattern": r"(?<=\$)[0-9]+"}, "a0"),
    ({"type": "string", "pattern": r"^[^:]+:(?!0)[0-9]$"}, "a:"),
    (strings(contains={"enum": [2, "low"]}), ["x"]),
    (strings(contains={"enum": [True, "t", "tru"]}, uniqueItems=True), ["x"]),
    (strings(contains={"enum": ["low"]}, minContains=2), ["x"]),
    (strings(contains={"enum": ["a/b", "low"]}, items={"type": "string", "pattern": "^[a-z]+$"}), ["x"]),
    (strings(contains={"enum": ["1", "blue"]}, items={"type": "string", "minLength": 3}), ["xyz"]),
    ({"type": "array", "contains": {"type": "number", "minimum": 5, "maximum": 6}}, [1]),
    ({"type": "array", "items": {"type": ["string", "array"]},
      "contains": {"type": "array", "items": {"type": "string"}, "contains": {"const": "low"}}}, [["x"]]),
    ({"type": "array", "allOf": [{"contains": {"const": "a"}}, {"contains": {"type": "boolean"}}]}, [1]),
    ({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}},
      "contains": {"type": "object", "properties": {"k": {"const": 5}}, "required": ["k"]}}, [{"k": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "begun"), REFUSED_AT_FIRST)
def test_what_ends_soonest_may_be_refused(
    small_compiler: Compiler, small_budget: FinishBudget, schema: dict[str, Any], begun: Any
) -> None:
    """The engine tells which of the pieces lead to an end, at each position as if it were the first one."""
    vocabulary, parameters = small_compiler.vocabulary, of(schema)
    markers, body = vocabulary.format, required(tool("f", parameters))
    start = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.f:0"), markers.argument_begin]
    written = json.dumps({"q": begun})
    for length in range(6, len(written) - 1):
        ids = [*start, *vocabulary.encode(written[:length])]
        budget = len(ids) + RESERVE
        matcher = matcher_of(small_compiler, body)
        small_budget.apply(matcher, budget, RESERVE)
        assert matcher.accept_tokens(ids)
        chosen: list[int] = []
        while not matcher.is_terminated() and matcher.num_tokens < budget:
            fresh = matcher_of(small_compiler, body)
            small_budget.apply(fresh, budget, RESERVE)
            assert fresh.accept_tokens([*ids, *chosen])
            row = mask(matcher)
            assert np.array_equal(mask(fresh), row)
            chosen.append(int(random.Random(length).choice(allowed_ids(row))))
            assert matcher.accept_tokens(chosen[-1:])
        assert matcher.is_terminated(), vocabulary.decode(matcher.token_ids())
        (call,) = parse_completion(list(matcher.token_ids()), vocabulary).tool_calls
        jsonschema.validate(json.loads(call.arguments), parameters)


@pytest.mark.slow
def test_the_vendor_verifiers_schemas(real_compiler: Compiler) -> None:
    """From within the arguments, as an untrained model meets its reserve: an answer without an end."""
    finish_budget, chance, cut = FinishBudget(real_compiler.vocabulary), random.Random(7), []
    lines = (data("schemas/kvv-walle/cases.jsonl")).read_text().splitlines()
    for number, schema in enumerate(json.loads(line)["schema"] for line in lines):
        if not isinstance(schema, dict) or schema.get("type") != "object":
            schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}  # noqa: PLW2901
        matcher = matcher_of(real_compiler, required(tool("kvv_walle_case", schema)))
        header = real_compiler.vocabulary.format
        start = [header.section_begin, header.call_begin]
        start += [*real_compiler.vocabulary.encode("functions.kvv_walle_case:0"), header.argument_begin]
        finish_budget.apply(matcher, len(start) + 100, 60)
        assert matcher.accept_tokens(start)
        steps(matcher, chance, 100)
        if not matcher.is_terminated():
            cut.append((number, json.dumps(schema)[:100]))
    assert [number for number, _ in cut] == [ENDLESS], cut


ENDLESS = 157  # a string of at least 999,999,999,999 characters


@pytest.mark.slow
def test_on_the_real_vocabulary(real_compiler: Compiler) -> None:
    finish_budget = FinishBudget(real_compiler.vocabulary)
    for seed, entry in enumerate(EVERY * 3):
        matcher = matcher_of(real_compiler, required(entry))
        finish_budget.apply(matcher, RESERVE + 40, RESERVE)
        ids = steps(matcher, random.Random(seed), RESERVE + 40)
        assert matcher.is_terminated(), real_compiler.vocabulary.decode(ids)
        for call in parse_completion(ids, real_compiler.vocabulary).tool_calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_without_closing_the_same_turns_are_cut(small_compiler: Compiler) -> None:
    """So that the test above is one: uniform choices alone do not end in time."""
    cut = 0
    for seed in range(40):
        matcher = matcher_of(small_compiler, required(EVERY[seed % len(EVERY)]))
        steps(matcher, random.Random(seed), RESERVE)
        cut += not matcher.is_terminated()
    assert cut > 10


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    choice=st.sampled_from(["auto", "required", "none"]),
    thinking=st.booleans(),
    parallel=st.booleans(),
    engine=st.sampled_from(["llguidance", "xgrammar"]),
    numbers=st.sets(st.integers(0, len(EVERY) - 1), min_size=1, max_size=3),
    start=st.integers(0, 60),
)
def test_a_narrowed_mask_is_some_of_the_mask_and_not_none(
    small_compiler: Compiler, small_budget: FinishBudget, seed: int, choice: str, thinking: bool, parallel: bool, engine: str,
    numbers: set[int], start: int,
) -> None:  # fmt: skip
    """Whatever was written before, legal but not what the budget would choose: drafts, and values left to the model."""
    body = {"tools": [EVERY[number] for number in sorted(numbers)], "tool_choice": choice, "thinking": thinking,
            "parallel_tool_calls": parallel, "engine": engine}  # fmt: skip
    if engine == "xgrammar":
        body["tools"] = [WEATHER]
    free = matcher_of(small_compiler, body, in_reasoning=thinking and seed % 2 == 0)
    filtered_turn = free.fork()
    small_budget.apply(filtered_turn, 1000, 1000 - start)
    chance = random.Random(seed)
    for position in range(90):
        whole, filtered = mask(free), mask(filtered_turn)
        assert filtered.any()
        assert not (filtered & ~whole).any()
        written = small_compiler.vocabulary.decode(free.token_ids())
        if position + written.count("{") + written.count("[") < start:  # the reserve begins earlier where more is open
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


def test_nothing_is_filtered_where_nothing_is_reserved(small_compiler: Compiler, small_budget: FinishBudget) -> None:
    plain, zero = (matcher_of(small_compiler, required(*TOOLS)) for _ in range(2))
    small_budget.apply(zero, 0, 0)
    chance = random.Random(5)
    while not plain.is_terminated():
        row = mask(plain)
        assert np.array_equal(mask(zero), row)
        allowed = allowed_ids(row)
        token = int(allowed[chance.randrange(len(allowed))])
        assert plain.accept_tokens([token]) and zero.accept_tokens([token])


def test_batches_rollbacks_and_forks_filter_alike(small_compiler: Compiler, small_budget: FinishBudget) -> None:
    """A matcher that was taken back, forked or filled in a batch has the mask of one that only went there."""
    size, budget = small_compiler.vocabulary.size, RESERVE + 30
    for seed in range(12):
        body = required(EVERY[seed % len(EVERY)])
        first = matcher_of(small_compiler, body)
        small_budget.apply(first, budget, RESERVE)
        ids = steps(first, random.Random(seed), budget)
        fresh = []
        for end in range(len(ids)):
            fresh.append(matcher_of(small_compiler, body))
            small_budget.apply(fresh[-1], budget, RESERVE)
            assert fresh[-1].accept_tokens(ids[:end])
        rows = [mask(matcher) for matcher in fresh]
        batch = allocate_bitmask(len(fresh), size)
        assert not fill_bitmasks(fresh, batch, range(len(fresh)))
        assert np.array_equal(batch, rows)
        other = first.fork()
        chance = random.Random(seed)
        for matcher in (first, other):
            for _ in range(30):
                back = chance.randrange(min(matcher.num_tokens, 60) + 1)
                matcher.rollback(back)
                if matcher.num_tokens < len(ids):
                    assert np.array_equal(mask(matcher), rows[matcher.num_tokens])
                matcher.accept_tokens(ids[matcher.num_tokens : matcher.num_tokens + chance.randrange(60)])
        first.reset()
        assert np.array_equal(mask(first), rows[0])


def test_a_rollback_to_where_it_has_been_forgets_what_came_instead(
    small_compiler: Compiler, small_budget: FinishBudget
) -> None:
    """The number of tokens alone does not say which they were: they may have replaced rejected drafts."""
    vocabulary = small_compiler.vocabulary
    markers = vocabulary.format
    matcher = matcher_of(small_compiler, required(tool("f", {"type": "object"})))
    small_budget.apply(matcher, 500, 499)
    start = [markers.section_begin, markers.call_begin, *vocabulary.encode("functions.f:0"), markers.argument_begin]
    assert matcher.accept_tokens([*start, *vocabulary.encode('{"a":')])
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
