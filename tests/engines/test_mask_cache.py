"""The shared DFA, in each encoding: cached masks equal freshly computed ones after any history; its memory is bounded.

Also simple grammars, whose first masks are not computed while they are compiled, and grammars that schemas share.
"""

import gc
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from constrained_k2 import Compiler, InvalidRequest, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar_text import schema_grammar
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.position import Position
from constrained_k2.engines.protocol import ArgumentEncoding
from tests.engines.masked_walks import fresh_mask, walk
from tests.kit.budget import tries
from tests.kit.grammars import takes_masked
from tests.kit.xtml import block, encode, of_bytes, pieces, with_xtml_markers
from tests.laws.shared_masks import broken_sharing

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
CLOSED = {"additionalProperties": False}
TABLES = json.loads(Path(__file__).with_name("schemas.json").read_text("utf-8"))
SCHEMAS: dict[str, dict[str, Any]] = TABLES["masks"] | TABLES["masks of XTML"]
XTML_BYTES = of_bytes()
WALKS = tries(40, fast=24, everything=40)
JOINTS = b'{}[]":, \nabkvxy1-\\/un0'


@pytest.mark.parametrize(
    ("name", "encoding"),
    [*((name, "json") for name in TABLES["masks"]), *(pytest.param(name, "xtml", marks=pytest.mark.slow) for name in SCHEMAS)],
)  # fmt: skip
@pytest.mark.parametrize("bytewise", [True, False])
def test_masks_are_those_of_a_fresh_matcher(
    name: str, encoding: ArgumentEncoding, bytewise: bool, small_vocabulary: Vocabulary
) -> None:
    vocabulary = Vocabulary.of_bytes() if bytewise else small_vocabulary
    if encoding == "xtml":
        vocabulary = XTML_BYTES if bytewise else with_xtml_markers(small_vocabulary)
    schema = json.dumps({"type": "object"} | SCHEMAS[name])
    grammar = LLGuidanceEngine(vocabulary).compile(schema, encoding=encoding)
    alone = LLGuidanceEngine(vocabulary, mask_cache_bytes=0).compile(schema, encoding=encoding)
    assert (grammar.dfa is None) == (encoding == "xtml" and name in {"either", "if, then", "needs"})
    assert alone.dfa is None
    draw, known = random.Random(name), 0
    for _ in range(WALKS):
        known += walk(LLGuidanceMatcher(grammar, ""), vocabulary, draw, lambda _: JOINTS, 60, alone=alone).known
    assert known > 5 * WALKS or grammar.dfa is None  # the cache was in use


def several_forms(kind: str, key: str) -> dict[str, Any]:
    if kind == "array":
        return {"type": "array", "contains": {"const": key}, "items": {"enum": [key, 1]}}
    one = {"type": "object", "properties": {key: INTEGER}} | CLOSED
    return {"anyOf": [one, {"type": "object", "properties": {f"{key}2": STRING}, "required": [f"{key}2"]} | CLOSED]}


@pytest.mark.parametrize("kinds", [("object", "object"), ("array", "array"), ("array", "object")], ids="-".join)
def test_members_of_several_forms_in_any_order(kinds: tuple[str, str]) -> None:
    """After the same keys each member has the masks of its own forms: two that are open look alike."""
    properties = {key: several_forms(kind, key) for key, kind in zip("ab", kinds, strict=True)}
    schema = {"type": "object", "properties": properties, "additionalProperties": several_forms("object", "c")}
    for _ in range(2):  # masks are cached when they are asked for again
        assert not [found for seed in range(4) for found in broken_sharing(schema, "allow", seed)]


def test_llguidance_repeats_a_mask_after_a_rollback() -> None:
    """The bug that :class:`LLGuidanceMatcher` works around, as the walks show; once this fails, the workaround can go."""
    vocabulary = Vocabulary.of_bytes()
    grammar = LLGuidanceEngine(vocabulary, mask_cache_bytes=0).compile('{"type":"object"}')
    written, taken_back, instead = list(b'{"a":0 '), 6, list(b'"a" : ')
    matcher = grammar.copy()
    matcher.try_consume_tokens(written)
    matcher.compute_bitmask()
    matcher.rollback(taken_back)
    matcher.try_consume_tokens(instead)
    right = fresh_mask(grammar, [*b"{", *instead])
    assert right is not None and not np.array_equal(np.frombuffer(matcher.compute_bitmask(), dtype=np.int32), right)


def position(schema: dict[str, Any], written: bytes | list[str]) -> Position:
    """The position behind a text of JSON, or behind pieces of XTML."""
    is_json = isinstance(written, bytes)
    vocabulary, document = Vocabulary.of_bytes() if is_json else XTML_BYTES, json.dumps({"type": "object"} | schema)
    dfa = LLGuidanceEngine(vocabulary).compile(document, "allow", "json" if is_json else "xtml").dfa
    assert dfa is not None
    found = dfa.tracker.start
    for token in written if isinstance(written, bytes) else encode(XTML_BYTES, written):
        found = dfa.tracker.follow(found, dfa.cache.token(token))
    return found


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("open", b'{"a":"x","b":', b'{"a":"quite another \\u00e9 text", "b":'),
        ("open", b'{"b":1,"a":"x",', b'{"a":"","b":-27,'),
        ("open", b'{"z":[1,{"y":2}],', b'{"q":{},'),
        ("nested", b'{"b":[{},{', b'{"b":[{"k":[]},{},{'),
        ("counted items", b'{"a":[1,2', b'{"a":[7,2'),
        ("choices", b'{"a":"x"', b'{"a":[1]'),
        ("open", pieces({"a": "x", "b": 1}), pieces({"b": -20, "a": '北京\n"}'})),
        ("open", pieces({"z": [1, {"y": 2}]}), pieces({"q": "text"})),
        ("open", block("a", "string", "")[:4], block("a", "string", "any \0 text")[:4]),
        ("kinds", pieces({"a": "x"}), pieces({"a": None})),
        ("kinds", block("a", "string", "")[:4], block("a", "string", "text")[:4]),
        ("raw", block("b", "string", "a")[:4], block("b", "string", "bab")[:4]),
        ("nested", block("b", "array", '[{"k":1},{')[:4], block("b", "array", "[{},{")[:4]),
        ("ambiguous branches", pieces({"a": {"k": "x", "v": 1}}), pieces({"a": {"k": "y", "v": "t"}})),
    ],
)
def test_texts_with_equal_positions(name: str, one: bytes | list[str], other: bytes | list[str]) -> None:
    found = position(SCHEMAS[name], one)
    assert found == position(SCHEMAS[name], other)
    assert found.is_shared or isinstance(one, list)


@pytest.mark.slow
def test_the_cache_keeps_to_its_budget() -> None:
    vocabulary = Vocabulary.of_bytes()
    budget, most = 200 << 10, 0
    engine = LLGuidanceEngine(vocabulary, mask_cache_bytes=budget)
    for number in range(30):
        properties = {f"{letter}{number}": INTEGER for letter in "abcdefgh"}
        grammar = engine.compile(json.dumps({"type": "object", "properties": properties, **CLOSED}))
        text = json.dumps(dict.fromkeys(properties, number)).encode()
        for _ in range(3):
            matcher = grammar.matcher("")
            assert takes_masked(matcher, vocabulary, text)
            assert engine.mask_cache.spent <= budget
            most = max(most, engine.mask_cache.spent)
    assert most > budget / 2
    del grammar, matcher
    engine.mask_cache.clear()
    gc.collect()
    assert engine.mask_cache.spent == 0


def test_positions_stay_small_with_many_or_long_names() -> None:
    many = {"properties": {f"name {number}": INTEGER for number in range(1000)}} | CLOSED
    text = ("{" + ",".join(f'"name {number}":1' for number in range(999)) + ",").encode()
    assert len(pickle.dumps(position(many, text)._replace(string=None))) < 1000
    long = json.dumps({"type": "object", "properties": {"n" * 2000: INTEGER}})
    assert LLGuidanceEngine(Vocabulary.of_bytes()).compile(long).dfa is None


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "64"])
def test_a_wrong_budget_is_refused(wrong: Any, small_vocabulary: Vocabulary) -> None:
    with pytest.raises(InvalidRequest, match="mask_cache_bytes"):
        Compiler(small_vocabulary, mask_cache_bytes=wrong)


MANY = 200
STRINGS = {f"key_{number}": {"type": "string"} for number in range(MANY)}


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1), "b": 1} if levels else 1


LARGEST: dict[str, dict[str, Any]] = {
    "values in one another": {"properties": {"a": {"const": nested(60)}}},
    "optional keys": {"properties": dict(list(STRINGS.items())[:130])},
    "required keys": {"properties": dict(list(STRINGS.items())[:64]), "required": list(STRINGS)[:64]},
    "alternatives that begin alike": {"properties": {"a": {"anyOf": [{"properties": {"k": {"const": number}}} for number in range(40)]}}},
    "a long enum": {"properties": {"a": {"enum": [f"value {number}" for number in range(800)]}}},
    "nested arrays": {"properties": {"a": {"items": {"items": {"items": {"items": {"type": "integer"}}}}}}},
    "objects in objects": {"properties": {name: {"properties": dict(list(STRINGS.items())[:10])} for name in list(STRINGS)[:8]}},
    "ranges of numbers": {"properties": {
        f"key_{number}": {"type": ("integer", "number")[number % 2], "minimum": -number, "maximum": 10 * number + 0.5} for number in range(20)}},
    "patterns": {"properties": {"day": {"type": "string", "format": "date-time"}} | {
        f"key_{number}": {"type": "string", "pattern": f"^[a-z]{{{number + 1}}}-"} for number in range(15)}},
    "the same keys in many branches": {"oneOf": [{"required": [name]} for name in list(STRINGS)[:8]]},
}  # fmt: skip


@pytest.fixture(scope="module")
def engine(small_vocabulary: Vocabulary) -> LLGuidanceEngine:
    return LLGuidanceEngine(small_vocabulary)


@pytest.mark.parametrize("undeclared_keys", ["allow", "forbid"])
@pytest.mark.parametrize("name", LARGEST)
def test_large_grammars_that_are_simple_have_masks(engine: LLGuidanceEngine, name: str, undeclared_keys: Any) -> None:
    schema = {"type": "object", **LARGEST[name]}
    assert schema_grammar(schema, engine._patterns, undeclared_keys).is_simple
    matcher = engine.compile(json.dumps(schema), undeclared_keys).copy()
    for text in ("", "{", '"'):
        ids = engine.tokenizer.tokenize_str(text)
        assert matcher.try_consume_tokens(ids) == len(ids)
        matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()


def test_schemas_of_one_grammar_share_their_masks_and_their_lexer(engine: LLGuidanceEngine) -> None:
    """Whatever their descriptions and the order of their keywords."""

    def compiled(description: str, *names: str, **more: Any) -> Any:
        kinds = {"a": {"type": "string", "description": description}, "b": {"type": "integer"}}
        properties = {name: kinds[name] for name in names}
        return engine.compile(json.dumps({"type": "object", "properties": properties, "title": description, **more}))

    one, other = compiled("one", "a", "b"), compiled("another", "b", "a")
    third = compiled("one", "a", "b", required=["a"])
    assert one.text == other.text
    assert one.dfa is other.dfa
    assert third.dfa is not one.dfa and compiled("one", "b").dfa is not compiled("one", "a").dfa
    assert other.coverage == one.coverage


def test_schemas_of_one_text_whose_items_are_compared_share_no_masks(engine: LLGuidanceEngine) -> None:
    def compiled(*, is_unique: bool) -> Any:
        items = {"type": "array", "items": {"type": "string"}, "uniqueItems": is_unique}
        return engine.compile(json.dumps({"type": "object", "properties": {"a": items}}))

    unique, free = compiled(is_unique=True), compiled(is_unique=False)
    assert unique.source.plan != free.source.plan
    assert unique.dfa is not free.dfa


def test_a_grammar_that_nothing_uses_is_not_kept(engine: LLGuidanceEngine) -> None:
    schema = json.dumps({"type": "object", "properties": {"used_once": {"type": "string"}}})
    first = engine.compile(schema)
    states = first.dfa
    del first
    assert engine.compile(schema).dfa is not states
    kept = engine.compile(schema)
    engine.forget()
    assert engine.compile(schema).dfa is not kept.dfa
