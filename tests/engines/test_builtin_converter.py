"""LLGuidance's builtin converter, where it replaces our grammars: named with its reason, bounded, and seldom needed."""

import json
from typing import Any

import llguidance
import pytest

from benchmarks.schemas import corpora
from constrained_k2 import Compiler, ConstrainedK2Error, SchemaTooCostly, UnsupportedSchema, Vocabulary
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.engines.llguidance import engine as llguidance_engine
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine, LLGuidanceGrammar
from constrained_k2.engines.llguidance.grammar_text import Refused, builtin_text, our_text
from constrained_k2.engines.protocol import ArgumentGrammar
from tests.data import data, mcp_servers

AS_JSON_SCHEMA = GrammarOptions(root="any", undeclared_keys="allow")
STEP = 200  # of MaskBench's schemas, beside those that are known to need the converter
KNOWN = {
    "Github_hard---o55827": "alternatives multiply to more than",
    "Github_hard---o90607": "alternatives multiply to more than",
    "Github_trivial---o78117": "too many expressions",
    "Github_ultra---o13934": "grammar size (number of symbols) too big",
    "Kubernetes---kb_1161_Normalized": "unfolds into more than",
}
"""The schemas of MaskBench that the converter writes, of 11,305, and why."""


@pytest.fixture
def without_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise SchemaTooCostly("it has too many parts", "", "Simplify it", "nodes")

    monkeypatch.setattr(llguidance_engine, "our_text", fail)


def compiled(**schema: Any) -> LLGuidanceGrammar:
    properties = {name: {"type": "integer"} for name in "ab"}
    return LLGuidanceEngine(Vocabulary.of_bytes()).compile(
        json.dumps({"type": "object", "properties": properties, "required": ["a", "b"], **schema}), "forbid"
    )


def accepts(grammar: ArgumentGrammar, text: str) -> bool:
    matcher = grammar.matcher("schema")
    return all(map(matcher.accept, text.encode())) and matcher.is_complete()


def test_our_grammars_are_not_said_to_be_the_converters() -> None:
    grammar = compiled()
    assert not grammar.coverage.builtin and grammar.coverage.to_json()["builtin"] == ""
    assert accepts(grammar, '{"b":1,"a":2}')


@pytest.mark.usefixtures("without_ours")
def test_coverage_names_the_converter_and_its_order() -> None:
    coverage = compiled(additionalProperties=False).coverage
    assert coverage.builtin == coverage.to_json()["builtin"] == "it has too many parts"
    (use,) = coverage.narrowed
    assert use.pointer == "#/properties" and "in its order" in use.reason and coverage.is_sound
    open_keys = compiled().coverage
    assert open_keys.narrowed == coverage.narrowed
    (use,) = open_keys.relaxed
    assert use.pointer == "#/properties" and "escapes" in use.reason
    assert compiled().coverage.noting("#/type", "read_as", "x").builtin


def test_a_keyword_that_only_the_converter_enforces_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def relaxing(*arguments: Any) -> Any:
        text = our_text(*arguments)
        object.__setattr__(text, "coverage", text.coverage.noting("#/required", "relaxed", "too hard"))
        return text

    monkeypatch.setattr(llguidance_engine, "our_text", relaxing)
    coverage = compiled(additionalProperties=False).coverage
    assert coverage.builtin == "ours relaxes #/required: too hard" and not coverage.relaxed
    assert not compiled().coverage.builtin, "the converter would relax something too"


@pytest.mark.usefixtures("without_ours")
def test_whitespace_stays_bounded() -> None:
    grammar = compiled(additionalProperties=False)
    assert accepts(grammar, '{"a":1,"b":2}') and accepts(grammar, '{"a" : 1 ,\n  "b": 2}')
    assert not accepts(grammar, '{"b":1,"a":2}'), "this is our grammar, so this test shows nothing"
    for before in ("", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,"b":2'):
        matcher = grammar.matcher("schema")
        assert all(map(matcher.accept, before.encode()))
        assert sum(matcher.accept(ord(" ")) for _ in range(200)) < 100, before


@pytest.mark.slow
@pytest.mark.parametrize("undeclared_keys", ["allow", "forbid"])
def test_no_tool_of_public_servers_needs_it(real_vocabulary: Vocabulary, undeclared_keys: Any) -> None:
    compiler, options = Compiler(real_vocabulary), GrammarOptions(undeclared_keys=undeclared_keys)
    schemas = [json.dumps(tool["function"].get("parameters") or {}) for tools in mcp_servers() for tool in tools]
    assert len(schemas) > 100
    assert not [text for text in schemas if compiler.grammar(text, "", options=options).coverage.builtin]


@pytest.mark.slow
def test_the_schemas_of_maskbench_that_need_it(real_vocabulary: Vocabulary) -> None:
    compiler, needed, count = Compiler(real_vocabulary), dict[str, str](), 0
    for count, case in enumerate(corpora.maskbench(data(corpora.MASKBENCH)), 1):
        if case.name not in KNOWN and count % STEP:
            continue
        try:
            reason = compiler.grammar(case.schema, "", options=AS_JSON_SCHEMA).coverage.builtin
        except ConstrainedK2Error:
            continue
        if reason:
            needed[case.name] = reason
    assert needed.keys() == KNOWN.keys()
    assert all(KNOWN[name] in reason for name, reason in needed.items()), needed
    assert len(needed) <= 0.002 * count


def test_a_grammar_with_too_many_members_is_not_given_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {f"k{number}": {"const": number} for number in range(170)}
    items = [{"$ref": "#/$defs/all", "required": [name]} for name in properties]
    document = {"type": "object", "properties": {"a": {"prefixItems": items}}, "additionalProperties": False}
    schema = json.dumps(document | {"$defs": {"all": {"properties": properties, "additionalProperties": False}}})
    read: list[str] = []

    def new(grammar: LLGuidanceGrammar) -> Any:
        read.append(grammar.text)
        return made(grammar)

    made = LLGuidanceGrammar._new
    monkeypatch.setattr(LLGuidanceGrammar, "_new", new)
    with pytest.raises(UnsupportedSchema, match="grammar size .* too big: 28902 members"):
        LLGuidanceEngine(Vocabulary.of_bytes()).compile(schema)
    assert not any("%if" in text for text in read)


def test_the_engine_counts_more_than_two_symbols_for_a_member() -> None:
    engine, count = LLGuidanceEngine(Vocabulary.of_bytes()), 300
    document = {"properties": {f"k{number}": True for number in range(count)}, "additionalProperties": False}
    text = our_text(document, engine._patterns).text
    limits = llguidance.LLParserLimits(max_grammar_size=2 * count)
    matcher = llguidance.LLMatcher(engine.tokenizer, text, log_level=0, limits=limits)
    assert "grammar size" in matcher.get_error()


def test_the_converter_is_not_asked_where_it_would_relax_a_keyword() -> None:
    document = {"properties": {"day": {"format": "date"}}, "additionalProperties": False}
    assert builtin_text(document).coverage.relaxed
    with pytest.raises(Refused, match="relaxes a keyword"):
        builtin_text(document, if_exact=True)
    assert builtin_text({"properties": {"a": {}}, "additionalProperties": False}, if_exact=True).text
