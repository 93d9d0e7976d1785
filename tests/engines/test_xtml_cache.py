"""The shared DFA of XTML arguments: cached masks equal freshly computed ones after any history."""

import json
import random
from typing import Any

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.mask_cache import LazyDfa
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.position import Position
from constrained_k2.engines.llguidance.xtml_position import XtmlTracker
from tests.engines.test_mask_cache import CLOSED, INTEGER, SCHEMAS, STRING, walk
from tests.xtml import block, encode, of_bytes, pieces, with_xtml_markers

MORE: dict[str, dict[str, Any]] = {
    "kinds": {"properties": {"a": {"type": ["string", "null", "integer"]}, "b": {"enum": ["x", "xy", 1, [1]]}}}
    | CLOSED,
    "raw": {"properties": {"a": STRING, "b": {"pattern": "^(?:[ab]|\\n)*$", "type": "string"}}} | CLOSED,
    "other keys": {"properties": {"a": STRING}, "additionalProperties": {"type": ["string", "boolean"]}},
    "constant object": {"enum": [{"a": 1, "b": "x"}]},
    "either": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": STRING, "b": INTEGER}} | CLOSED,
    "escaped": {"properties": {'"&': STRING, "&amp;": INTEGER}} | CLOSED,
    "long": {"properties": {"n" * 100: STRING, "é" * 40: INTEGER}} | CLOSED,
}
BYTES = of_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMAS | MORE)
@pytest.mark.parametrize("bytewise", [True, False])
def test_masks_are_those_of_a_fresh_matcher(name: str, bytewise: bool, small_vocabulary: Vocabulary) -> None:
    vocabulary = BYTES if bytewise else with_xtml_markers(small_vocabulary)
    schema = json.dumps({"type": "object"} | (SCHEMAS | MORE)[name])
    grammar = LLGuidanceEngine(vocabulary).compile(schema, "allow", "xtml")
    alone = LLGuidanceEngine(vocabulary, mask_cache_bytes=0).compile(schema, "allow", "xtml")
    assert (grammar.dfa is None) == (name in {"either", "if, then", "needs"})
    draw = random.Random(name)
    known = sum(walk(LLGuidanceMatcher(grammar, ""), alone, draw, vocabulary) for _ in range(40))
    assert known > 200 or grammar.dfa is None  # the cache was in use


def position(schema: dict[str, Any], written: list[str]) -> Position:
    dfa = LLGuidanceEngine(BYTES).compile(json.dumps({"type": "object"} | schema), "allow", "xtml").dfa
    assert isinstance(dfa, LazyDfa)
    assert isinstance(dfa.tracker, XtmlTracker)
    found = dfa.tracker.start
    for token in encode(BYTES, written):
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
def test_texts_with_equal_positions(name: str, one: list[str], other: list[str]) -> None:
    assert position((SCHEMAS | MORE)[name], one) == position((SCHEMAS | MORE)[name], other)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("open", pieces({"a": "x"}), pieces({"b": 1})),
        ("open", block("a", "string", "")[:4], block("z", "string", "")[:2]),
        ("open", block("a", "string", "x")[:4], block("b", "number", "1")[:4]),
        ("kinds", block("b", "string", "x")[:4], block("b", "string", "xy")[:4]),
        ("kinds", block("a", "number", "1")[:4], block("a", "null", "n")[:4]),
        ("ambiguous branches", block("a", "object", '{"k":"x","v":')[:4], block("a", "object", '{"k":"y","v":')[:4]),
        ("counted keys", pieces({"x": 1}), pieces({"x": 1, "y": 1})),
        ("unique", block("a", "array", '["x",')[:4], block("a", "array", '["y",')[:4]),
    ],
)
def test_texts_with_different_positions(name: str, one: list[str], other: list[str]) -> None:
    assert position((SCHEMAS | MORE)[name], one) != position((SCHEMAS | MORE)[name], other)
