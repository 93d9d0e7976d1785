"""Masks that are computed without LLGuidance: equal to its own, shared by grammars, and within their budget."""

import json
import lzma
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from constrained_k2 import ConstrainedK2Error, Vocabulary
from constrained_k2.engines.llguidance.direct.terminals import Unknown
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.prototype import Prototype
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS
from tests.engines.masked_walks import CROSSING, PARTS, fresh_mask, is_direct, vocabulary_of, walk
from tests.kit.budget import tries
from tests.kit.data import data, mcp_servers, suite
from tests.kit.grammars import takes_masked
from tests.laws.schemas import schema_of

BYTES, CROSSED = Vocabulary.of_bytes(), vocabulary_of(CROSSING, *PARTS)
STRING, INTEGER, CLOSED = {"type": "string"}, {"type": "integer"}, {"additionalProperties": False}
KINDS = json.loads(Path(__file__).with_name("schemas.json").read_text("utf-8"))["kinds of values"]


@pytest.fixture(scope="module")
def crossing() -> LLGuidanceEngine:
    return LLGuidanceEngine(CROSSED)


def check(vocabulary: Vocabulary, grammar: LLGuidanceGrammar, seed: object, steps: int = 40) -> Counter[str]:
    """Write at random; the number of masks, and of direct ones, which are LLGuidance's."""
    draw, matcher = random.Random(str(seed)), LLGuidanceMatcher(grammar, "")
    found = walk(matcher, vocabulary, draw, lambda _: b'"{}[],:', steps, alone=grammar)
    return Counter(all=found.masks, direct=found.direct)


def check_schema(
    engine: LLGuidanceEngine, schema: Any, seed: object, steps: int = 40, vocabulary: Vocabulary = CROSSED
) -> Counter[str]:
    """Check one schema with and without undeclared keys."""
    masks = Counter[str]()
    for undeclared_keys in UNDECLARED_KEYS:
        try:
            grammar = engine.compile(json.dumps(schema), undeclared_keys)
        except ConstrainedK2Error:
            continue
        if grammar.dfa is not None:
            masks += check(vocabulary, grammar, seed, steps)
    return masks


def test_random_schemas(crossing: LLGuidanceEngine) -> None:
    examples = tries(80, everything=300)
    found = sum((check_schema(crossing, schema_of(f"direct {seed}"), seed) for seed in range(examples)), Counter[str]())
    assert found["direct"] > 5 * examples


@pytest.mark.slow
@pytest.mark.parametrize("schema", KINDS, ids=json.dumps)
def test_values_of_each_kind(crossing: LLGuidanceEngine, schema: dict[str, Any]) -> None:
    inner = {"type": "array", "items": schema, "maxItems": 2}
    objects = {"type": "object", "properties": {"first": schema, "other": inner, "third": INTEGER}} | CLOSED
    masks = sum((check_schema(crossing, objects, seed) for seed in range(8)), Counter[str]())
    is_opaque = schema in ({"enum": [1, 12]}, {"type": "string", "maxLength": 3})
    assert masks["direct"] > masks["all"] / (10 if is_opaque else 4)  # tokens that cross several keys are many


@pytest.mark.slow
def test_public_tools_and_suites(real_vocabulary: Vocabulary, crossing: LLGuidanceEngine) -> None:
    draw, engine = random.Random(7), LLGuidanceEngine(real_vocabulary)
    tools = [tool["function"].get("parameters") or {"type": "object"} for tools in mcp_servers() for tool in tools]
    for schema in draw.sample(tools, tries(3, everything=40)):
        assert check_schema(engine, schema, 7, 25, real_vocabulary)["direct"] > 5
    groups = [group for path in sorted(suite().rglob("*.json")) for group in json.loads(path.read_text())]
    with lzma.open(data("schemas/maskbench.jsonl.xz"), "rt") as lines:
        cases = [json.loads(line) for line in lines]
    corpora: list[tuple[list[Any], int, int]] = [
        (tools, tries(20, everything=len(tools)), 19),
        ([{"type": "object", "properties": {"a": group["schema"]}} for group in groups if isinstance(group, dict)],
         tries(15, everything=150), 0),
        ([case.get("schema", case) for case in cases], tries(8, everything=100), 5),
    ]  # fmt: skip
    for schemas, count, fewest in corpora:
        found = sum((check_schema(crossing, schema, 7) for schema in draw.sample(schemas, count)), Counter[str]())
        assert found["direct"] > fewest * count


def test_the_masks_of_most_positions_are_direct(small_vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"name": STRING, "count": INTEGER, "kind": {"enum": ["red", "green"]}}}
    engine = LLGuidanceEngine(small_vocabulary)
    for undeclared_keys in UNDECLARED_KEYS:
        grammar = engine.compile(json.dumps(schema), undeclared_keys)
        masks = sum((check(small_vocabulary, grammar, seed) for seed in range(5)), Counter[str]())
        assert masks["direct"] > 0.8 * masks["all"] > 40


SIMPLE = {"type": "object", "properties": {"a": STRING, "n": {"items": INTEGER, "type": "array"}}, "required": ["a"]}
PATTERNED = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
        "count": {"type": "integer", "minimum": 2, "maximum": 150},
        "share": {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": 1},
        "lengths": {"type": "array", "items": {"type": "integer", "maximum": -1}, "maxItems": 2},
    },
}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (SIMPLE, '{"a": "some \\"text\\"", "n":[1, -20], "other": {"x": [null]}}'),
        (PATTERNED, '{"day": "2024-02-29", "code":"AZX-12","count":100 , "share": 0.25, "lengths": [-1, -20], "b": 1}'),
        (PATTERNED, '{"share":null,"other":{"day":"x"},"lengths":[],"count": 2}'),
    ],
)
def test_llguidance_reads_no_grammar_whose_masks_are_direct(
    monkeypatch: pytest.MonkeyPatch, schema: Any, text: str
) -> None:
    read, original = list[str](), Prototype._new
    monkeypatch.setattr(Prototype, "_new", lambda one: read.append(one.source.text) or original(one))
    grammar = LLGuidanceEngine(BYTES).compile(json.dumps(schema), "allow")
    assert takes_masked(grammar.matcher(""), BYTES, text.encode())
    assert not read
    grammar.matcher("").forced_tokens()
    grammar.copy()
    assert read == [grammar.text]


def test_a_terminal_that_llguidance_does_not_read_leaves_the_masks_to_the_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise Unknown

    engine = LLGuidanceEngine(BYTES)
    monkeypatch.setattr(engine.mask_cache.direct_masks().terminals, "_behind", fail)
    assert check_schema(engine, PATTERNED, 3, 60, BYTES)["direct"] > 10
    minimum = {"type": "array", "items": {"type": "integer", "minimum": 2}}
    assert not check_schema(engine, minimum, 1, vocabulary=BYTES)["direct"]


def test_a_prefix_that_is_forced_is_written_as_llguidance_does(small_vocabulary: Vocabulary) -> None:
    string = {"type": "string", "pattern": "^https://example\\.com/[a-z]+$"}
    schema = {"type": "object", "properties": {"url": string}, "required": ["url"]} | CLOSED
    grammar = LLGuidanceEngine(small_vocabulary).compile(json.dumps(schema), "forbid")
    assert all(check(small_vocabulary, grammar, seed)["direct"] for seed in range(20))
    assert grammar.dfa is not None
    states = grammar.dfa._states.values()
    assert sum(state.forced is not None and state.forced.terminal is not None for state in states) > 3


def test_terminals_stay_within_their_budget() -> None:
    engine = LLGuidanceEngine(BYTES, mask_cache_bytes=8 << 20)
    terminals = engine.mask_cache.direct_masks().terminals
    for number in range(12):
        count = {"type": "integer", "minimum": number, "maximum": 2 * number + 3}
        code = {"type": "string", "pattern": f"^[a-z]{{{number + 1}}}$"}
        schema = {"type": "object", "properties": {"count": count, "code": code}}
        assert check_schema(engine, schema, number, vocabulary=BYTES)["direct"]
        assert 0 < terminals.spent <= 1 << 20
    engine.forget()
    assert terminals.spent == 0


def test_masks_are_shared_by_grammars_and_stay_within_their_budget() -> None:
    budget, spent = 60_000, list[int]()
    engine = LLGuidanceEngine(BYTES, mask_cache_bytes=budget)
    masks = engine.mask_cache.direct_masks()
    for number in range(60):
        name = f"key_{number}"
        schema = {"type": "object", "properties": {name: STRING, "b": INTEGER}, "required": [name]} | CLOSED
        assert check_schema(engine, schema, number, 30, BYTES)["direct"]
        assert masks.spent <= budget // 2 and engine.mask_cache.spent <= budget
        spent.append(masks.spent)
    assert any(after < before for before, after in pairwise(spent))  # those that were used longest ago were dropped
    engine.forget()
    assert masks.spent == 0


def test_equal_positions_of_two_grammars_have_one_mask(small_vocabulary: Vocabulary) -> None:
    engine, rows = LLGuidanceEngine(small_vocabulary), []
    for name in ("city", "day"):
        schema = {"type": "object", "properties": {name: STRING, "more": INTEGER}, "required": [name]}
        matcher = engine.compile(json.dumps(schema), "allow").matcher("")
        assert all(map(matcher.accept, f'{{"{name}": "some'.encode()))
        rows.append(matcher.mask_without_engine())
    assert rows[0] is rows[1] is not None


@pytest.mark.parametrize(
    "text",
    ["1" * 40, "-" + "9" * 40, "0." + "1" * 40, "1" * 38 + ".5", "1" * 8 + "e29", "1" * 9, "12e+200", "-0.25E-3"],
)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_long_numbers(crossing: LLGuidanceEngine, kind: str, text: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": kind}, "y": STRING}, "required": ["x"]} | CLOSED
    grammar = crossing.compile(json.dumps(schema), "forbid")
    matcher, ids = LLGuidanceMatcher(grammar, ""), list[int]()
    for byte in f'{{"x": {text}  '.encode():
        expected = fresh_mask(grammar, ids)
        assert expected is not None and is_direct(matcher, ids, expected), text
        taken = matcher.accept(byte)
        assert taken == bool(expected[byte >> 5] >> (byte & 31) & 1)
        if not taken:
            break
        ids.append(byte)
