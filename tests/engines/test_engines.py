"""The LLGuidance adapter: lexer recovery, and LLGuidance's limits as our errors."""

import json
from typing import Any

import llguidance
import numpy as np
import pytest

from constrained_k2 import Compiler, SchemaTooCostly, ToolCallSpec, UnsupportedSchema, Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar_text import schema_grammar
from constrained_k2.engines.llguidance.prototype import Prototype
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from tests.kit.grammars import takes_masked
from tests.kit.tools import tool

# All copies of a matcher share one lexer and add states to it; this pattern exhausts it after some dozens of copies.
EXHAUSTING = '{"type":"object","properties":{"a":{"type":"string","pattern":".*a.{20}"}},"required":["a"]}'


def texts(count: int) -> list[str]:
    chance = np.random.default_rng(0)
    return ['{"a":"' + "".join(chance.choice(list("abc"), 300)) + "a" + "b" * 20 + '"}' for _ in range(count)]


@pytest.mark.slow
def test_an_exhausted_lexer_is_replaced(small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = []
    renew = Prototype.renew
    monkeypatch.setattr(Prototype, "renew", lambda self: renewed.append(1) or renew(self))
    grammar = LLGuidanceEngine(small_vocabulary, mask_cache_bytes=0).compile(EXHAUSTING)
    for text in texts(60):
        assert takes_masked(grammar.matcher("schema"), small_vocabulary, small_vocabulary.encode(text))
    assert renewed, "the pattern did not exhaust the lexer, so this test shows nothing"


class Broken:
    """A matcher that fails, as all of its copies and all new ones do."""

    grammar_from_lark = staticmethod(llguidance.LLMatcher.grammar_from_lark)
    grammar_from_json_schema = staticmethod(llguidance.LLMatcher.grammar_from_json_schema)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def deep_copy(self) -> "Broken":
        return self

    def is_error(self) -> bool:
        return True

    def get_error(self) -> str:
        return "too many states\nmore"

    def try_consume_tokens(self, ids: list[int]) -> int:
        return 0

    def unsafe_compute_mask_ptr(self, *_: Any) -> None: ...

    def rollback(self, _: int) -> bool:
        return False

    def is_accepting(self) -> bool:
        return False


def test_a_lexer_that_cannot_be_replaced_is_an_error_of_this_request(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = LLGuidanceEngine(small_vocabulary, mask_cache_bytes=0).compile('{"type":"object"}')
    healthy = grammar.matcher("schema")
    matcher = grammar.matcher("schema")
    grammar.copy()  # LLGuidance reads the grammar now
    monkeypatch.setattr(matcher, "_matcher", Broken())
    monkeypatch.setattr(llguidance, "LLMatcher", Broken)
    row = allocate_bitmask(1, small_vocabulary.size)[0]
    for act in (lambda: matcher.fill(row), lambda: matcher.accept(1)):
        with pytest.raises(SchemaTooCostly, match="failed in the arguments: too many states"):
            act()
    healthy.fill(row)
    assert row.any()


@pytest.mark.parametrize("replaceable", [True, False])
def test_a_failed_matcher_does_not_say_for_others_that_arguments_are_incomplete(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, *, replaceable: bool
) -> None:
    """LLGuidance's matcher answers no once it has failed, and calls at one position share the answer."""
    schema = '{"type":["object","null"],"properties":{"a":{"type":"null"}}}'
    grammar = LLGuidanceEngine(small_vocabulary).compile(schema)
    failed, healthy = grammar.matcher("schema"), grammar.matcher("schema")
    for matcher in (failed, healthy):
        assert all(matcher.accept(token) for token in small_vocabulary.encode("{}"))
    assert failed._state is healthy._state, "they share no state, so this test shows nothing"
    with monkeypatch.context() as patch:
        patch.setattr(failed, "_matcher", Broken())
        if replaceable:
            assert failed.is_complete()
        else:
            patch.setattr(llguidance, "LLMatcher", Broken)
            with pytest.raises(SchemaTooCostly):
                failed.is_complete()
    assert healthy.is_complete()


def test_the_cache_is_bounded_by_bytes(small_vocabulary: Vocabulary) -> None:
    compiler = Compiler(small_vocabulary, cache_bytes=1 << 20)
    schemas = [f'{{"type":"object","properties":{{"p{number}":{{"type":"integer"}}}}}}' for number in range(40)]
    first = compiler.grammar(schemas[0], "schema")
    assert compiler.grammar(schemas[0], "schema") is first
    for schema in schemas:
        compiler.grammar(schema, "schema")
    assert compiler.grammar(schemas[-1], "schema") is compiler.grammar(schemas[-1], "schema")
    assert compiler.grammar(schemas[0], "schema") is not first


def test_a_cached_refusal_has_the_location_of_its_own_request(
    small_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(small_vocabulary)
    for location in ("tools[name='f']", "tools[name='g']"):
        with pytest.raises(UnsupportedSchema, match="no value satisfies") as refused:
            compiler.grammar('{"required":["a"],"properties":{"a":false}}', location)
        assert refused.value.location == f"{location}#/properties/a"
        monkeypatch.setattr(compiler, "engine", None)


@pytest.mark.parametrize("count", [510, 2000])
def test_very_many_optional_properties(small_vocabulary: Vocabulary, count: int) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(count)}}
    matcher = LLGuidanceEngine(small_vocabulary).compile(json.dumps(schema)).matcher("schema")
    assert takes_masked(matcher, small_vocabulary, small_vocabulary.encode('{"p3": true,"p500":false}'))


@pytest.mark.slow
def test_schemas_beyond_the_engine_are_refused_when_compiled(small_vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "boolean"} for number in range(10_000)}}
    with pytest.raises(SchemaTooCostly, match="more than 4096 parts"):
        LLGuidanceEngine(small_vocabulary).compile(json.dumps(schema))


def test_a_request_has_a_time_budget(small_vocabulary: Vocabulary) -> None:
    tools = [tool(f"f{n}", {"type": "object", "required": [f"k{n}"]}, strict=True) for n in range(3)]
    spec = ToolCallSpec.from_openai({"tools": tools})
    with pytest.raises(SchemaTooCostly, match="ms a request") as refused:
        Compiler(small_vocabulary, request_seconds=0).compile(spec)
    assert refused.value.budget == "request_ms"
    assert refused.value.location.startswith("tools[name=")
    Compiler(small_vocabulary, request_seconds=60).compile(spec)


def test_a_grammar_with_too_many_members_is_not_given_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {f"k{number}": {"const": number} for number in range(170)}
    items = [{"$ref": "#/$defs/all", "required": [name]} for name in properties]
    document = {"type": "object", "properties": {"a": {"prefixItems": items}}, "additionalProperties": False}
    schema = json.dumps(document | {"$defs": {"all": {"properties": properties, "additionalProperties": False}}})
    read, made = list[str](), Prototype._new
    monkeypatch.setattr(Prototype, "_new", lambda one: read.append(one.source.text) or made(one))
    with pytest.raises(UnsupportedSchema, match="grammar size .* too big: 28902 members"):
        LLGuidanceEngine(Vocabulary.of_bytes()).compile(schema)
    assert not any("%if" in text for text in read)


def test_the_engine_counts_more_than_two_symbols_for_a_member() -> None:
    engine, count = LLGuidanceEngine(Vocabulary.of_bytes()), 300
    document = {"properties": {f"k{number}": True for number in range(count)}, "additionalProperties": False}
    text = schema_grammar(document, engine._patterns).text
    limits = llguidance.LLParserLimits(max_grammar_size=2 * count)
    matcher = llguidance.LLMatcher(engine.tokenizer, text, log_level=0, limits=limits)
    assert "grammar size" in matcher.get_error()
