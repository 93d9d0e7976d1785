"""The shared DFA, in each encoding: cached masks equal freshly computed ones after any history; its memory is bounded."""

import gc
import json
import pickle
import random
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from constrained_k2 import Compiler, InvalidRequest, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.mask_cache import LazyDfa
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.position import Position
from constrained_k2.engines.llguidance.position_tracker import PositionTracker
from constrained_k2.engines.llguidance.xtml_position import XtmlStates
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.kit.budget import tries
from tests.kit.grammars import mask_of, takes_masked
from tests.kit.xtml import block, encode, of_bytes, pieces, with_xtml_markers

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
CLOSED = {"additionalProperties": False}
SCHEMAS: dict[str, dict[str, Any]] = {
    "open": {"properties": {"a": STRING, "b": INTEGER}, "required": ["b"]},
    "closed": {"properties": {"ab": STRING, "ac": INTEGER}} | CLOSED,
    "forced": {"properties": {"region": {"enum": ["cn", "global"]}}, "required": ["region"]} | CLOSED,
    "nested": {"properties": {"a": {"properties": {"a": STRING}} | CLOSED, "b": {"items": {"type": "object"}}}},
    "choices": {"properties": {"a": {"anyOf": [STRING, {"items": INTEGER, "type": "array"}, {"type": "null"}]}}},
    "ambiguous branches": {"properties": {"a": {"oneOf": [
        {"properties": {"k": {"const": value}, "v": kind}, "required": ["k", "v"]} | CLOSED for value, kind in (("x", INTEGER), ("y", STRING))
    ]}}} | CLOSED,
    "if, then": {"properties": {"a": {"enum": ["x", "y"]}, "b": {}}, "if": {"properties": {"a": {"const": "x"}}},
                 "then": {"required": ["b"]}} | CLOSED,
    "patterns": {"patternProperties": {"^x": INTEGER, "^a": {"properties": {"k": STRING}} | CLOSED}} | CLOSED,
    "names": {"propertyNames": {"pattern": "^a+$"}},
    "counted keys": {"properties": {"a": {}}, "minProperties": 2, "maxProperties": 3},
    "counted items": {"properties": {"a": {"items": INTEGER, "minItems": 1, "maxItems": 3}}} | CLOSED,
    "first items": {"properties": {"a": {"prefixItems": [STRING, INTEGER], "items": {"enum": [True]}}}} | CLOSED,
    "unique": {"properties": {"a": {"items": {"enum": ["x", "y", 1]}, "uniqueItems": True}}} | CLOSED,
    "contains": {"properties": {"a": {"contains": {"const": 1}, "items": INTEGER}}} | CLOSED,
    "strings": {"properties": {"a": {"type": "string", "pattern": "^[ab]{2,4}$"}, "b": {"minLength": 2, "maxLength": 3}}},
    "patterned": {"properties": {"a": {"type": "string", "pattern": "^(a|b)+1?$"}, "b": {"type": "string", "pattern": "k"}}} | CLOSED,
    "patterns of others": {"properties": {"a": {"type": "string", "pattern": "^a[ab]{2,3}$", "maxLength": 3},
                                          "b": {"type": "string", "not": {"pattern": "^a"}, "minLength": 1}}} | CLOSED,
    "spellings": {"properties": {"a": {"anyOf": [{"pattern": "1", "type": "string"}, {"type": "string", "maxLength": 2}]}}, "required": ["a"]} | CLOSED,
    "a format, or a name": {"properties": {"a": {"anyOf": [{"type": "string", "format": "date"}, {"const": "ab"}]}}} | CLOSED,
    "long strings": {"properties": {"a": {"type": "string", "maxLength": 90}, "b": {"type": "string", "minLength": 70}}} | CLOSED,
    "words": {"properties": {"a": {"type": "string", "pattern": "^([^ ]+ +){0,3}[^ ]+$", "maxLength": 100}}} | CLOSED,
    "open keys": {"properties": {"abx": {}, "b": {}}, "patternProperties": {"^a|k$": INTEGER}},
    "keys that end so": {"properties": {"ab": {}}, "patternProperties": {"x$": STRING}} | CLOSED,
    "numbers": {"properties": {"a": {"type": "integer", "minimum": -5, "maximum": 12}, "b": {"multipleOf": 3}}} | CLOSED,
    "constant": {"properties": {"a": {"const": {"k": [1, "x"], "l": {}}}, "b": {"enum": [[], [1], "x"]}}} | CLOSED,
    "itself": {"properties": {"a": {"$ref": "#"}, "b": STRING}} | CLOSED,
    "needs": {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}} | CLOSED,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "kinds": {"properties": {"a": {"type": ["string", "null", "integer"]}, "b": {"enum": ["x", "xy", 1, [1]]}}} | CLOSED,
    "raw": {"properties": {"a": STRING, "b": {"pattern": "^(?:[ab]|\\n)*$", "type": "string"}}} | CLOSED,
    "other keys": {"properties": {"a": STRING}, "additionalProperties": {"type": ["string", "boolean"]}},
    "constant object": {"enum": [{"a": 1, "b": "x"}]},
    "either": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": STRING, "b": INTEGER}} | CLOSED,
    "escaped": {"properties": {'"&': STRING, "&amp;": INTEGER}} | CLOSED,
    "long": {"properties": {"n" * 100: STRING, "é" * 40: INTEGER}} | CLOSED,
}  # fmt: skip
XTML_BYTES = of_bytes()
WALKS = tries(40, fast=24, everything=40)
JOINTS = b'{}[]":, \nabkvxy1-\\/un0'


def fresh_mask(grammar: LLGuidanceGrammar, ids: list[int]) -> npt.NDArray[np.int32]:
    matcher = grammar.copy()
    assert matcher.try_consume_tokens(ids) == len(ids)
    return np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)


def walk(matcher: LLGuidanceMatcher, alone: LLGuidanceGrammar, draw: random.Random, vocabulary: Vocabulary) -> int:
    """Accept, roll back and fork at random, and compare every mask; return how many were cached."""
    row = allocate_bitmask(1, vocabulary.size)[0]
    written: list[int] = []
    known = 0
    for _ in range(60):
        known += matcher.mask_without_engine() is not None
        if draw.random() < 0.8:  # LLGuidance behaves differently if a mask is skipped
            matcher.fill(row)
        else:
            row[:] = fresh_mask(alone, written)[: len(row)]
        expected = fresh_mask(alone, written)[: len(row)]
        text = b"".join(map(vocabulary.ordinary_bytes, written))
        assert np.array_equal(row, expected), text
        assert matcher.is_complete() == (vocabulary.format.call_end in allowed_ids(expected)), text
        legal = [int(token) for token in allowed_ids(expected) if token != vocabulary.format.call_end]
        likely = [token for token in legal if all(byte in JOINTS for byte in vocabulary.ordinary_bytes(token))]
        if not legal:
            break
        if written and draw.random() < 0.15:
            count = draw.randint(1, min(6, len(written)))
            matcher.rollback(count)
            del written[-count:]
            continue
        if draw.random() < 0.05:
            matcher = matcher.fork()
        token = draw.choice(likely if likely and draw.random() < 0.9 else legal)
        assert matcher.accept(token)
        written.append(token)
    return known


@pytest.mark.parametrize(
    ("name", "encoding"),
    [*((name, "json") for name in SCHEMAS), *(pytest.param(name, "xtml", marks=pytest.mark.slow) for name in SCHEMAS | MORE)],
)  # fmt: skip
@pytest.mark.parametrize("bytewise", [True, False])
def test_masks_are_those_of_a_fresh_matcher(
    name: str, encoding: ArgumentEncoding, bytewise: bool, small_vocabulary: Vocabulary
) -> None:
    vocabulary = Vocabulary.of_bytes() if bytewise else small_vocabulary
    if encoding == "xtml":
        vocabulary = XTML_BYTES if bytewise else with_xtml_markers(small_vocabulary)
    schema = json.dumps({"type": "object"} | (SCHEMAS | MORE)[name])
    grammar = LLGuidanceEngine(vocabulary).compile(schema, encoding=encoding)
    alone = LLGuidanceEngine(vocabulary, mask_cache_bytes=0).compile(schema, encoding=encoding)
    assert (grammar.dfa is None) == (encoding == "xtml" and name in {"either", "if, then", "needs"})
    assert alone.dfa is None
    draw = random.Random(name)
    known = sum(walk(LLGuidanceMatcher(grammar, ""), alone, draw, vocabulary) for _ in range(WALKS))
    assert known > 5 * WALKS or grammar.dfa is None  # the cache was in use


def several_forms(kind: str, key: str) -> dict[str, Any]:
    if kind == "array":
        return {"type": "array", "contains": {"const": key}, "items": {"enum": [key, 1]}}
    one = {"type": "object", "properties": {key: INTEGER}} | CLOSED
    return {"anyOf": [one, {"type": "object", "properties": {f"{key}2": STRING}, "required": [f"{key}2"]} | CLOSED]}


@pytest.mark.parametrize("kinds", [("object", "object"), ("array", "array"), ("array", "object")])
def test_members_of_several_forms_in_any_order(kinds: tuple[str, str]) -> None:
    """After the same keys each member has the masks of its own forms: two that are open look alike."""
    texts = {"object": '{"%s":1}', "array": '["%s"]'}
    properties = {key: several_forms(kind, key) for key, kind in zip("ab", kinds, strict=True)}
    vocabulary = Vocabulary.of_bytes()
    others = several_forms("object", "c")
    schema = json.dumps({"type": "object", "properties": properties, "additionalProperties": others})
    grammar = LLGuidanceEngine(vocabulary).compile(schema)
    alone = LLGuidanceEngine(vocabulary, mask_cache_bytes=0).compile(schema)
    row = allocate_bitmask(1, vocabulary.size)[0]
    values = {key: texts[kind] % key for key, kind in zip("ab", kinds, strict=True)} | {"x": '{"c":1}'}
    for _ in range(2):  # masks are cached when they are asked for again
        for order in permutations(values):
            matcher, text = grammar.matcher(""), "{" + ",".join(f'"{key}":{values[key]}' for key in order) + "}"
            for number, byte in enumerate(text.encode()):
                matcher.fill(row)
                assert np.array_equal(row, fresh_mask(alone, list(text[:number].encode()))[: len(row)]), text[:number]
                assert matcher.accept(byte)


def test_llguidance_repeats_a_mask_after_a_rollback() -> None:
    """The bug that :class:`LLGuidanceMatcher` works around; once this fails, the workaround can go."""
    vocabulary = Vocabulary.of_bytes()
    grammar = LLGuidanceEngine(vocabulary, mask_cache_bytes=0).compile('{"type":"object"}')
    written, taken_back, instead = list(b'{"a":0 '), 6, list(b'"a" : ')
    matcher = grammar.copy()
    matcher.try_consume_tokens(written)
    matcher.compute_bitmask()
    matcher.rollback(taken_back)
    matcher.try_consume_tokens(instead)
    right = fresh_mask(grammar, [*b"{", *instead])
    assert not np.array_equal(np.frombuffer(matcher.compute_bitmask(), dtype=np.int32), right)

    ours = grammar.matcher("")
    row = allocate_bitmask(1, vocabulary.size)[0]
    assert all(map(ours.accept, written))
    ours.fill(row)
    ours.rollback(taken_back)
    assert all(map(ours.accept, instead))
    ours.fill(row)
    assert np.array_equal(row, right[: len(row)])


def position(schema: dict[str, Any], text: bytes) -> Position:
    dfa = LLGuidanceEngine(Vocabulary.of_bytes()).compile(json.dumps({"type": "object"} | schema)).dfa
    assert isinstance(dfa, LazyDfa)
    tracker: PositionTracker = dfa.tracker
    return tracker.follow(tracker.start, text)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("open", b'{"a":"x","b":', b'{"a":"quite another \\u00e9 text", "b":'),
        ("open", b'{"b":1,"a":"x",', b'{"a":"","b":-27,'),
        ("open", b'{"z":[1,{"y":2}],', b'{"q":{},'),
        ("nested", b'{"b":[{},{', b'{"b":[{"k":[]},{},{'),
        ("counted items", b'{"a":[1,2', b'{"a":[7,2'),
        ("choices", b'{"a":"x"', b'{"a":[1]'),
    ],
)  # fmt: skip
def test_texts_with_equal_positions(name: str, one: bytes, other: bytes) -> None:
    found = position(SCHEMAS[name], one)
    assert found.is_shared
    assert found == position(SCHEMAS[name], other)


def xtml_position(schema: dict[str, Any], written: list[str]) -> Position:
    dfa = LLGuidanceEngine(XTML_BYTES).compile(json.dumps({"type": "object"} | schema), "allow", "xtml").dfa
    assert isinstance(dfa, LazyDfa) and isinstance(dfa.tracker, XtmlStates)
    found = dfa.tracker.start
    for token in encode(XTML_BYTES, written):
        found = dfa.tracker.follow(found, dfa.cache.token(token))
    return found


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
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
def test_xtml_with_equal_positions(name: str, one: list[str], other: list[str]) -> None:
    assert xtml_position((SCHEMAS | MORE)[name], one) == xtml_position((SCHEMAS | MORE)[name], other)


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


def test_deep_nesting_is_not_tracked(small_vocabulary: Vocabulary) -> None:
    engine = LLGuidanceEngine(small_vocabulary)
    matcher = engine.compile('{"type":"object"}').matcher("")
    depth, sizes = 200, []
    for token in small_vocabulary.encode('{"a":' + "[" * depth + "]" * depth + "}"):
        assert token in mask_of(matcher, small_vocabulary)
        assert matcher.accept(token)
        assert matcher._state.position is not None
        sizes.append(len(pickle.dumps(matcher._state.position._replace(string=None))))
    assert matcher.is_complete()
    assert max(sizes) < 2000
    assert sizes[-1] < 200


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
