"""The LLGuidance adapter: lexer recovery, LLGuidance's limits and messages as our errors, masks without a token."""

import json
from hashlib import sha256
from typing import Any

import llguidance
import numpy as np
import pytest

from constrained_k2 import Compiler, SchemaTooCostly, ToolCallSpec, UnsupportedSchema, Vocabulary
from constrained_k2.compiler.cache import CompileCounts
from constrained_k2.engines.llguidance.direct.masks import DirectMasks
from constrained_k2.engines.llguidance.direct.residual import Residual
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.engines.llguidance.grammar_text import schema_grammar
from constrained_k2.engines.llguidance.lexer_cost import LIMITS
from constrained_k2.engines.llguidance.position import StateKind
from constrained_k2.engines.llguidance.prototype import Prototype
from constrained_k2.engines.llguidance.refusal import Refused, grammar_of, has_no_text, refusal
from tests.kit.grammars import request_of, takes_masked
from tests.kit.tools import tool
from tests.kit.turns import call_start
from tests.kit.walks import ids_of

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


def many_optional(count: int) -> str:
    properties = {f"p{number}": {"type": "boolean"} for number in range(count)}
    return json.dumps({"type": "object", "properties": properties})


@pytest.mark.parametrize("count", [510, 2000])
def test_very_many_optional_properties(small_vocabulary: Vocabulary, count: int) -> None:
    matcher = LLGuidanceEngine(small_vocabulary).compile(many_optional(count)).matcher("schema")
    assert takes_masked(matcher, small_vocabulary, small_vocabulary.encode('{"p3": true,"p500":false}'))


@pytest.mark.slow
def test_schemas_beyond_the_engine_are_refused_when_compiled(small_vocabulary: Vocabulary) -> None:
    with pytest.raises(SchemaTooCostly, match="more than 4096 parts"):
        LLGuidanceEngine(small_vocabulary).compile(many_optional(10_000))


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


def test_an_empty_mask_is_never_believed_but_asked_of_llguidance_counted_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    computed = DirectMasks._mask_of

    def faulty(self: DirectMasks, residual: Residual) -> object:
        return self.empty if residual.part is StateKind.IN_FREE_STRING else computed(self, residual)

    counts, vocabulary = CompileCounts(), Vocabulary.of_bytes()
    compiler = Compiler(vocabulary, counts=counts)
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    matcher = request_of(compiler, schema).matcher()
    monkeypatch.setattr(DirectMasks, "_mask_of", faulty)
    assert matcher.accept_tokens([*call_start(vocabulary), *b'{"a":"'])
    assert ord("x") in ids_of(matcher)
    assert matcher.accept_tokens([*b'x"}', vocabulary.format.call_end])
    assert counts.snapshot()["empty_masks"] == 1
    (line,) = [record.getMessage() for record in caplog.records]
    digest = sha256(json.dumps(schema, separators=(",", ":")).encode()).hexdigest()[:16]
    assert digest in line and "allowed no token" in line


KINDS_OF_MESSAGES = {
    "start: T\nT: /.*b.{9000}/ & /.*c.{9000}/": "lexer",
    "start: " + " ".join(['"a"'] * 60_000): "size",
    "start: MISSING": "other",
}


def read(lark: str) -> llguidance.LLMatcher:
    return llguidance.LLMatcher(llguidance.LLTokenizer("byte", slices=[]), grammar_of(lark), log_level=0, limits=LIMITS)


@pytest.mark.parametrize(("lark", "kind"), KINDS_OF_MESSAGES.items(), ids=KINDS_OF_MESSAGES.values())
def test_a_message_has_a_kind(lark: str, kind: str) -> None:
    matcher = read(lark)
    if not matcher.is_error():
        matcher.compute_bitmask()
    assert refusal(matcher.get_error()).kind == kind


def test_the_grammar_in_a_message_decides_nothing() -> None:
    matcher = read('start: "lexer" | "fuel"')
    matcher.consume_token(0)
    error = refusal(matcher.get_error())
    assert "fuel" in str(error) and error.kind == "other" and "\n" not in error.cause


@pytest.mark.parametrize(("lark", "is_empty"), [("start: T\nT: /a/ & /b/", True), ("start: T\nT: /a/", False)])
def test_a_terminal_without_texts(lark: str, *, is_empty: bool) -> None:
    matcher = read(lark)
    matcher.compute_bitmask()
    assert has_no_text(matcher) == is_empty


def test_half_a_character_is_refused() -> None:
    with pytest.raises(Refused, match="surrogates"):
        grammar_of('start: "\ud800"')


# The first two schemas of MaskBench that LLGuidance's default limits take and then fail on.
WORDS = {"type": "string", "minLength": 1, "maxLength": 5000, "pattern": "^$|(^(?:\\S+\\s+){0,99}\\S+$)"}
NAMES = ("customer", "maker", "operator", "admin", "designer")
ROLES = {"type": "string", "oneOf": [{"pattern": name} for name in NAMES]}


def written(vocabulary: Vocabulary, schema: Any, value: str) -> bool:
    """True if a value is accepted with a mask before each token."""
    grammar = LLGuidanceEngine(vocabulary).compile(json.dumps({"properties": {"a": schema}, "type": "object"}))
    ids = vocabulary.encode(json.dumps({"a": value}, separators=(",", ":")))
    return takes_masked(grammar.matcher("schema"), vocabulary, ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "value", "is_valid"),
    [
        (WORDS, "two words", True), (WORDS, "x " * 100 + "x", False), (WORDS, "", False),
        (ROLES, "the maker", True), (ROLES, "maker, admin", False),
    ],
)  # fmt: skip
def test_costly_patterns_are_enforced(real_vocabulary: Vocabulary, schema: Any, value: str, *, is_valid: bool) -> None:
    assert written(real_vocabulary, schema, value) == is_valid


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "is_costly"),
    [
        (r"^(?!.*://)((.{1,63}\.){1,127}[a-z]+)$", True),  # fails with the first mask in the string
        (r"^(([^.]{1,63}\.){1,127}[a-z]+)$", False),
    ],
)
def test_a_pattern_that_fails_with_the_first_mask_is_relaxed_when_it_is_compiled(
    real_vocabulary: Vocabulary, pattern: str, is_costly: bool
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    relaxed = LLGuidanceEngine(real_vocabulary).compile(json.dumps(schema)).coverage.relaxed
    assert [use.pointer for use in relaxed] == ["#/properties/a/pattern"] * is_costly
    assert all("costs the engine too much" in use.reason for use in relaxed)
    assert written(real_vocabulary, {"type": "string", "pattern": pattern}, "www.example.com")


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{"not": {"pattern": "^a|b$"}}, {"pattern": "m$", "not": {"pattern": "[0-9]{3}"}}])
@pytest.mark.parametrize("name", ["hostname", "idn-hostname", "email", "idn-email", "uri", "iri"])
def test_so_is_a_pattern_beside_a_format(real_vocabulary: Vocabulary, name: str, beside: dict[str, Any]) -> None:
    texts = {"email": "me@example.com", "uri": "http://example.com", "hostname": "example.com"}
    text = texts[name.replace("idn-", "").replace("ir", "ur")]
    assert written(real_vocabulary, {"type": "string", "format": name} | beside, text)
