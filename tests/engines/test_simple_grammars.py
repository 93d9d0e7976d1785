"""Grammars whose first masks are not computed while they are compiled, and grammars that several schemas share."""

import json
from typing import Any

import pytest

from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar_text import Patterns, schema_grammar
from constrained_k2.vocabulary.vocabulary import Vocabulary

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


def source_of(schema: dict[str, Any], undeclared_keys: Any, engine: LLGuidanceEngine | None = None) -> Any:
    patterns = Patterns() if engine is None else engine._patterns
    return schema_grammar({"type": "object", **schema}, patterns, undeclared_keys)


@pytest.mark.parametrize("undeclared_keys", ["allow", "forbid"])
@pytest.mark.parametrize("name", LARGEST)
def test_large_grammars_that_are_simple_have_masks(engine: LLGuidanceEngine, name: str, undeclared_keys: Any) -> None:
    schema = {"type": "object", **LARGEST[name]}
    assert source_of(LARGEST[name], undeclared_keys, engine).is_simple
    matcher = engine.compile(json.dumps(schema), undeclared_keys).copy()
    for text in ("", "{", '"'):
        ids = engine.tokenizer.tokenize_str(text)
        assert matcher.try_consume_tokens(ids) == len(ids)
        matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()


@pytest.mark.parametrize(
    ("schema", "is_simple"),
    [
        ({"properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 1]}, "c": {"items": {"type": "string"}}}}, True),
        ({"properties": {"a": {}}}, True),
        ({"properties": {"a": {"type": "string", "pattern": "^a"}}}, True),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, True),
        ({"properties": {f"key_{number}": {"type": "string", "pattern": f"^{number}"} for number in range(17)}}, False),
        ({"properties": {"a": {"type": "string", "maxLength": 9}}}, False),
        ({"properties": {"a": {"type": "integer", "maximum": 9}}}, True),
        ({"properties": {"a": {"type": "number", "maximum": 10**16}}}, False),
        ({"properties": {"a": {"type": "number", "minimum": 1e-20}}}, False),
        ({"properties": {"a": {"type": "number", "multipleOf": 0.5}}}, False),
        ({"patternProperties": {"^x": {"type": "string"}}}, False),
        ({"patternProperties": {"^x": False}}, False),
        ({"propertyNames": {"maxLength": 3}}, False),
        ({"properties": {key: {} for key in (f"{name}_{'x' * 60}" for name in STRINGS)}}, False),
    ],
)
def test_lengths_and_large_grammars_are_not_simple(
    engine: LLGuidanceEngine, schema: dict[str, Any], is_simple: bool
) -> None:
    assert source_of(schema, "allow", engine).is_simple is is_simple


def test_a_terminal_that_llguidance_does_not_read_makes_no_simple_grammar() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^a"}}}
    assert schema_grammar(schema, Patterns(is_read=lambda _: True)).is_simple
    assert not schema_grammar(schema, Patterns(is_read=lambda _: False)).is_simple
    without_masks = LLGuidanceEngine(Vocabulary.of_bytes(), mask_cache_bytes=0)
    assert not schema_grammar(schema, without_masks._patterns).is_simple


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
