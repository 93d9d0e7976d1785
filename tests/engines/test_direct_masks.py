"""Masks that are computed without LLGuidance: equal to its own, shared by grammars, and within their budget."""

import json
import lzma
import random
from itertools import pairwise
from typing import Any

import llguidance
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import ConstrainedK2Error, SchemaTooCostly, Vocabulary
from constrained_k2.engines.llguidance.direct.terminals import Unknown
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.prototype import Prototype
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.engines.masked_walks import vocabulary_of
from tests.kit.budget import tries
from tests.kit.data import data, mcp_servers, suite
from tests.kit.grammars import mask_of, takes_masked
from tests.schema.test_differential import schemas

# Tokens that end a value and reach far into what follows.
CROSSING = (
    '","', '":"', '","a":"', '"a":', '":{"', '":[],"', '":{},"b', '"},{"', '"]}', "}}", "}]", '""', '"":"', ',"', ', "b',
    '{"', "{}", '{"a', '[{"', '[["', "[]", "],[", '":[1,', "1,", "2]", "12", "001", "0.5", "-1", "e1", "1}", "true,", "tru",
    "rue}", "null", "false]", ": ", ", ", "  ", "\n\n", "\t ", ' "', " }", '": "', "ab", 'a"', 'b":', 'c"}', "\\u00", "\\n",
    '\\"', "a\\", '"\\', 'é"', "/", '",,', '"20', "24-", "-0", "01-", '1-01"', '1"}', "00", '0,"', '"abc', "aab", '"12', '"a"', "[1", "[true", ":true}", '": null, "', '"}', '{"":',
)  # fmt: skip
PARTS = "é".encode()[:1], "é".encode()[1:], "😀".encode()[:2], "😀".encode()[2:], b'"\xf0'
BYTES = Vocabulary.of_bytes()
STRING, INTEGER, CLOSED = {"type": "string"}, {"type": "integer"}, {"additionalProperties": False}
KINDS: list[Any] = [
    STRING, INTEGER, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {}, True, {"type": ["string", "null"]},
    {"enum": ["ab", "abc", "b", None, True]}, {"const": "abcabc"}, {"enum": ['a"b', "é", "a\nb"]},
    {"enum": [1, 12]}, {"type": "integer", "minimum": 1}, {"type": "string", "maxLength": 3},
    {"type": "integer", "minimum": 5, "maximum": 200}, {"type": "number", "minimum": -0.5, "exclusiveMaximum": 12},
    {"type": ["integer", "null"], "maximum": 12}, {"type": "number", "multipleOf": 5}, {"const": 12},
    {"type": "string", "format": "date"}, {"type": "string", "format": "time"}, {"type": "string", "pattern": "^a+b?$"},
    {"type": "string", "pattern": '^abc,[a-c"]{2}$'}, {"type": "string", "pattern": "^(ab|12)", "maxLength": 5},
    {"type": "string", "pattern": "[^ab]$"}, {"type": ["string", "null"], "pattern": "^(true|é|\\\\)$"},
    {"not": {"const": "ab"}, "type": "string"}, {"type": "integer", "minimum": 100, "maximum": 101},
]  # fmt: skip
NAMES = st.sampled_from(
    ["x", "xy", "xyz", "y", "z", "yz", "a", "ab", "abc", "b", "c", "", ",", ":", 'a"', "é", "b\n", "bcd"]
)


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects and arrays whose masks need no engine, beside some that need one."""
    members = st.dictionaries(NAMES, values, max_size=4)
    some = members.flatmap(
        lambda found: st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.just(found)},
            optional={
                "required": st.lists(st.sampled_from(sorted(found)), unique=True) if found else st.just([]),
                "additionalProperties": st.just(False) | values,
            },
        )
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": values},
        optional={"minItems": st.integers(0, 2), "maxItems": st.sampled_from([2, 3, 20])},
    )
    return some | arrays


PLAIN = objects(st.recursive(st.sampled_from(KINDS), objects, max_leaves=5)).filter(lambda one: one["type"] == "object")


@pytest.fixture(scope="module")
def crossing() -> LLGuidanceEngine:
    return LLGuidanceEngine(vocabulary_of(CROSSING, *PARTS))


def check(engine: LLGuidanceEngine, grammar: LLGuidanceGrammar, draw: random.Random, steps: int) -> int:
    """Write at random, with rollbacks and forks: each direct mask is LLGuidance's, and so is what is accepted.

    Returns:
        The number of direct masks.
    """
    vocabulary = engine.tokenizer.vocab_size
    dfa, known = grammar.dfa, 0
    assert dfa is not None
    matcher, written = LLGuidanceMatcher(grammar, ""), list[int]()
    alone = grammar.copy()
    for _ in range(steps):
        expected = np.frombuffer(alone.compute_bitmask(), dtype=np.int32)
        if alone.is_error():
            break
        row, before = matcher.mask_without_engine(), written[-1] if written else -1
        direct = dfa.direct_mask(matcher._state, before)
        if direct is not None:
            known += 1
            assert np.array_equal(direct, expected[: len(direct)]), (written, matcher._state.position)
            assert row is direct or matcher._state.forced
        assert row is None or np.array_equal(row, expected[: len(row)]), written
        assert matcher.is_complete() == alone.is_accepting()
        for token_id in draw.sample(range(min(vocabulary, 511)), 12):
            taken = alone.deep_copy().try_consume_tokens([token_id]) == 1
            if dfa.cache.token(token_id)[:1] != b"\xff":
                assert matcher.accept(token_id) == taken, (written, token_id, matcher._state.position)
                matcher.rollback(int(taken))
        legal = [int(one) for one in allowed_ids(expected) if dfa.cache.token(int(one))[:1] != b"\xff"]
        if not legal:
            break
        if written and draw.random() < 0.1:
            count = draw.randint(1, min(5, len(written)))
            matcher.rollback(count)
            del written[-count:]
            alone = grammar.copy()
            for token_id in written:  # masks between the tokens: LLGuidance repeats some after a rollback
                alone.compute_bitmask()
                assert alone.try_consume_tokens([token_id]) == 1
            continue
        if draw.random() < 0.1:
            matcher = matcher.fork()
        structural = [one for one in legal if dfa.cache.token(one)[:1] in b'"{}[],:']
        token_id = draw.choice(structural if structural and draw.random() < 0.5 else legal)
        assert matcher.accept(token_id)
        assert alone.try_consume_tokens([token_id]) == 1
        written.append(token_id)
    return known


def check_schema(engine: LLGuidanceEngine, schema: Any, draw: random.Random, steps: int = 40) -> int:
    """Check one schema with and without undeclared keys; the number of direct masks."""
    known = 0
    for undeclared_keys in UNDECLARED_KEYS:
        try:
            grammar = engine.compile(json.dumps(schema), undeclared_keys)
        except ConstrainedK2Error:
            continue
        if grammar.dfa is not None:
            known += check(engine, grammar, draw, steps)
    return known


def check_random(engine: LLGuidanceEngine, schemas: st.SearchStrategy[Any], examples: int, steps: int) -> int:
    """Check random schemas; the number of direct masks."""
    known = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(schemas, st.integers(0, 9999))
    def check_one(schema: Any, seed: int) -> None:
        nonlocal known
        known += check_schema(engine, schema, random.Random(seed), steps)

    check_one()
    return known


@pytest.mark.slow
def test_direct_masks_are_those_of_llguidance(crossing: LLGuidanceEngine) -> None:
    examples = tries(30, everything=150)
    assert check_random(crossing, PLAIN, examples, 40) > 2 * examples


def test_any_keywords_around_them(crossing: LLGuidanceEngine) -> None:
    inner: st.SearchStrategy[Any] = st.recursive(st.just({}), schemas, max_leaves=5)
    around = inner.map(lambda one: {"type": "object", "properties": {"a": one, "b": STRING}})
    assert check_random(crossing, around, 60, 25) > 20


def test_the_masks_of_most_positions_are_direct(small_vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"name": STRING, "count": INTEGER, "kind": {"enum": ["red", "green"]}}}
    engine = LLGuidanceEngine(small_vocabulary)
    for undeclared_keys in UNDECLARED_KEYS:
        grammar = engine.compile(json.dumps(schema), undeclared_keys)
        known = sum(check(engine, grammar, random.Random(seed), 40) for seed in range(5))
        assert known > 100


@pytest.mark.slow
def test_public_tools_and_suites(real_vocabulary: Vocabulary, crossing: LLGuidanceEngine) -> None:
    draw = random.Random(7)
    engine = LLGuidanceEngine(real_vocabulary)
    tools = [tool["function"].get("parameters") or {"type": "object"} for tools in mcp_servers() for tool in tools]
    few, more = tries(3, everything=40), tries(20, everything=len(tools))
    assert sum(check_schema(engine, schema, draw, 25) for schema in draw.sample(tools, few)) > 12 * few
    assert sum(check_schema(crossing, schema, draw, 40) for schema in draw.sample(tools, more)) > 19 * more
    groups = [group for path in sorted(suite().rglob("*.json")) for group in json.loads(path.read_text())]
    some = draw.sample([one for one in groups if isinstance(one, dict)], tries(15, everything=150))
    wrapped = [{"type": "object", "properties": {"a": group["schema"]}} for group in some]
    assert sum(check_schema(crossing, schema, draw, 20) for schema in wrapped) > len(wrapped) // 5
    with lzma.open(data("schemas/maskbench.jsonl.xz"), "rt") as lines:
        cases = draw.sample([json.loads(line) for line in lines], tries(8, everything=100))
    assert sum(check_schema(crossing, case.get("schema", case), draw, 20) for case in cases) > 5 * len(cases)


def written_by(engine: LLGuidanceEngine, schema: Any, text: str) -> LLGuidanceGrammar:
    """Write a text token by token, with all masks, and return its grammar."""
    grammar = engine.compile(json.dumps(schema), "allow")
    assert takes_masked(grammar.matcher(""), BYTES, text.encode())
    return grammar


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
    engine = LLGuidanceEngine(BYTES)
    read = list[str]()
    original = Prototype._new
    monkeypatch.setattr(Prototype, "_new", lambda one: read.append(one.source.text) or original(one))
    grammar = written_by(engine, schema, text)
    assert not read
    grammar.matcher("").forced_tokens()
    assert read == [grammar.text]
    grammar.copy()
    assert len(read) == 1


@pytest.mark.slow
@pytest.mark.parametrize("schema", [KIND for KIND in KINDS if isinstance(KIND, dict)], ids=json.dumps)
def test_values_of_each_kind(crossing: LLGuidanceEngine, schema: dict[str, Any]) -> None:
    inner = {"type": "array", "items": schema, "maxItems": 2}
    objects = {"type": "object", "properties": {"first": schema, "other": inner, "third": INTEGER}} | CLOSED
    multiples = {"multipleOf": 5, "type": "number"}
    is_opaque = schema in ({"enum": [1, 12]}, {"const": 12}, {"type": "string", "maxLength": 3}, multiples)
    fewest = 100 if is_opaque else 250  # of 960, where tokens that cross several keys are many
    assert sum(check_schema(crossing, objects, random.Random(seed), 40) for seed in range(8)) > fewest


def test_a_terminal_that_llguidance_does_not_read_leaves_the_masks_to_the_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = LLGuidanceEngine(BYTES)
    terminals = engine.mask_cache.direct_masks().terminals

    def fail(*_: object) -> None:
        raise Unknown

    monkeypatch.setattr(terminals, "_behind", fail)
    grammar = written_by(engine, PATTERNED, '{"day": "2024-02-29", "count": 100, "share": null}')
    assert check(engine, grammar, random.Random(3), 60) > 10
    assert not check_schema(engine, {"type": "array", "items": {"type": "integer", "minimum": 2}}, random.Random(1))


def test_a_prefix_that_is_forced_is_written_as_llguidance_does(small_vocabulary: Vocabulary) -> None:
    engine = LLGuidanceEngine(small_vocabulary)
    string = {"type": "string", "pattern": "^https://example\\.com/[a-z]+$"}
    schema = {"type": "object", "properties": {"url": string}, "required": ["url"]} | CLOSED
    grammar = engine.compile(json.dumps(schema), "forbid")
    forced = 0
    for seed in range(20):
        assert check(engine, grammar, random.Random(seed), 40)
    assert grammar.dfa is not None
    for state in grammar.dfa._states.values():
        forced += state.forced is not None and state.forced.terminal is not None
    assert forced > 3


def test_terminals_stay_within_their_budget() -> None:
    engine = LLGuidanceEngine(BYTES, mask_cache_bytes=8 << 20)
    terminals = engine.mask_cache.direct_masks().terminals
    for number in range(12):
        count = {"type": "integer", "minimum": number, "maximum": 2 * number + 3}
        code = {"type": "string", "pattern": f"^[a-z]{{{number + 1}}}$"}
        schema = {"type": "object", "properties": {"count": count, "code": code}}
        assert check_schema(engine, schema, random.Random(number))
        assert terminals.spent <= 1 << 20
    assert terminals.spent > 0
    engine.forget()
    assert terminals.spent == 0


def test_a_grammar_that_llguidance_refuses_late_is_no_matter_where_masks_are_direct(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = LLGuidanceEngine(BYTES)
    bad = llguidance.LLMatcher.grammar_from_lark("start: missing")
    broken = llguidance.LLMatcher(engine.tokenizer, bad, log_level=0)
    assert broken.is_error()
    monkeypatch.setattr(Prototype, "_new", lambda _: broken)
    grammar = engine.compile(json.dumps(SIMPLE))
    matcher = grammar.matcher("tools[0]")
    for byte in b'{"a":"","b":7}':
        assert matcher.forced_tokens() == []
        assert byte in mask_of(matcher, BYTES)  # of our own
        assert matcher.accept(byte)
    assert matcher.is_complete()
    with pytest.raises(SchemaTooCostly) as raised:
        matcher.engine()
    assert raised.value.location == "tools[0]"


def test_masks_are_shared_by_grammars_and_stay_within_their_budget() -> None:
    budget = 60_000
    engine = LLGuidanceEngine(BYTES, mask_cache_bytes=budget)
    computed = list[Any]()
    masks = engine.mask_cache.direct_masks()
    for number in range(60):
        name = f"key_{number}"
        schema = {"type": "object", "properties": {name: STRING, "b": INTEGER}, "required": [name]} | CLOSED
        grammar = engine.compile(json.dumps(schema), "forbid")
        assert check(engine, grammar, random.Random(number), 30)
        assert masks.spent <= budget // 2
        assert engine.mask_cache.spent <= budget
        computed.append(masks.spent)
    assert any(after < before for before, after in pairwise(computed))  # those that were used longest ago were dropped
    engine.forget()
    assert masks.spent == 0


def test_equal_positions_of_two_grammars_have_one_mask(small_vocabulary: Vocabulary) -> None:
    engine = LLGuidanceEngine(small_vocabulary)
    rows = []
    for name in ("city", "day"):
        schema = {"type": "object", "properties": {name: STRING, "more": INTEGER}, "required": [name]}
        matcher = engine.compile(json.dumps(schema), "allow").matcher("")
        for byte in f'{{"{name}": "some'.encode():
            assert matcher.accept(byte)
        rows.append(matcher.mask_without_engine())
    assert rows[0] is not None
    assert rows[0] is rows[1]


@pytest.mark.parametrize(
    "text",
    ["1" * 40, "-" + "9" * 40, "0." + "1" * 40, "1" * 38 + ".5", "1" * 8 + "e29", "1" * 9, "12e+200", "-0.25E-3"],
)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_long_numbers(crossing: LLGuidanceEngine, kind: str, text: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": kind}, "y": STRING}, "required": ["x"]} | CLOSED
    grammar = crossing.compile(json.dumps(schema), "forbid")
    assert grammar.dfa is not None
    matcher, alone, written = grammar.matcher(""), grammar.copy(), 0
    for byte in f'{{"x": {text}  '.encode():
        expected = np.frombuffer(alone.compute_bitmask(), dtype=np.int32)
        direct = grammar.dfa.direct_mask(matcher._state, written)
        assert direct is not None, (text, matcher._state.position)
        assert np.array_equal(direct, expected[: len(direct)]), (text, matcher._state.position)
        taken = alone.try_consume_tokens([byte]) == 1
        assert matcher.accept(byte) == taken
        if not taken:
            break
        written = byte
