"""Calls go on where LLGuidance reaches a limit while it writes: with a grammar of shorter strings, or without patterns."""

import json
from typing import Any

import llguidance
import pytest

from constrained_k2 import SchemaTooCostly, Vocabulary
from constrained_k2.engines.llguidance import engine as llguidance_engine
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from constrained_k2.vocabulary.bitmask import allocate_bitmask

# The first two schemas of MaskBench that LLGuidance's default limits take and then fail on.
WORDS = {"type": "string", "minLength": 1, "maxLength": 5000, "pattern": "^$|(^(?:\\S+\\s+){0,99}\\S+$)"}
ROLES = {
    "type": "string",
    "oneOf": [{"pattern": role} for role in ("customer", "maker", "operator", "admin", "designer")],
}


def limits(fuel: int) -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(step_lexer_fuel=fuel)


def written(vocabulary: Vocabulary, schema: Any, value: str, *, may_relax: bool = False) -> tuple[bool, str]:
    """True if a value is accepted with a mask before each token, and the effort of the grammar at its end."""
    grammar = LLGuidanceEngine(vocabulary).compile(json.dumps({"properties": {"a": schema}, "type": "object"}))
    matcher, row = grammar.matcher("schema", may_relax=may_relax), allocate_bitmask(1, vocabulary.size)[0]
    for token_id in vocabulary.encode(json.dumps({"a": value}, separators=(",", ":"))):
        matcher.fill(row)
        if not row[token_id >> 5] >> (token_id & 31) & 1:
            return False, matcher.grammar.effort
        assert matcher.accept(token_id)
    return matcher.is_complete(), matcher.grammar.effort


@pytest.mark.slow
@pytest.mark.parametrize(("value", "is_valid"), [("two words", True), ("x " * 100 + "x", False), ("", False)])
def test_shorter_strings_take_over(real_vocabulary: Vocabulary, value: str, is_valid: bool) -> None:
    accepted, effort = written(real_vocabulary, WORDS, value)
    assert accepted == is_valid and effort in {"exact", "narrow"}


@pytest.mark.slow
def test_more_effort_takes_over(real_vocabulary: Vocabulary) -> None:
    assert written(real_vocabulary, ROLES, "the maker") == (True, "narrow")
    assert written(real_vocabulary, ROLES, "maker, admin") == (False, "narrow")


@pytest.mark.slow
def test_only_a_tool_that_is_not_strict_loses_its_patterns(
    real_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llguidance_engine, "LIMITS", limits(200_000))
    monkeypatch.setattr(llguidance_engine, "NEXT_BEST_LIMITS", limits(200_000))
    assert written(real_vocabulary, ROLES, "maker, admin", may_relax=True) == (True, "relaxed")
    with pytest.raises(SchemaTooCostly, match="too many expressions"):
        written(real_vocabulary, ROLES, "the maker")


@pytest.mark.slow
def test_a_call_goes_on_from_the_same_text(real_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llguidance_engine, "LIMITS", limits(200_000))
    grammar = LLGuidanceEngine(real_vocabulary).compile(
        json.dumps({"properties": {"n": {"type": "integer"}, "a": WORDS}, "required": ["n", "a"]})
    )
    matcher, row = grammar.matcher("schema"), allocate_bitmask(1, real_vocabulary.size)[0]
    ids = real_vocabulary.encode('{"n":7,"a":"several words of a text"}')
    for token_id in ids:
        fork = matcher.fork()
        matcher.fill(row)
        assert matcher.accept(token_id) and fork.accept(token_id)
    assert matcher.is_complete() and matcher.grammar.effort == "narrow"
    matcher.rollback(len(ids))
    assert all(map(matcher.accept, ids)) and matcher.is_complete()
    assert grammar.effort == "exact" and grammar.matcher("schema").grammar is grammar  # for other calls


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
    accepted, effort = written(real_vocabulary, {"type": "string", "pattern": pattern}, "www.example.com")
    assert accepted and effort == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{"not": {"pattern": "^a|b$"}}, {"pattern": "m$", "not": {"pattern": "[0-9]{3}"}}])
@pytest.mark.parametrize("name", ["hostname", "idn-hostname", "email", "idn-email", "uri", "iri"])
def test_so_is_a_pattern_beside_a_format(real_vocabulary: Vocabulary, name: str, beside: dict[str, Any]) -> None:
    texts = {"email": "me@example.com", "uri": "http://example.com", "hostname": "example.com"}
    text = texts[name.replace("idn-", "").replace("ir", "ur")]
    accepted, effort = written(real_vocabulary, {"type": "string", "format": name} | beside, text)
    assert accepted and effort == "exact"
