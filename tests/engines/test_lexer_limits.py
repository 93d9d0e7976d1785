"""The work of LLGuidance's lexer within a call: patterns that take more than its default limits are still enforced."""

import json
from typing import Any

import pytest

from constrained_k2 import Vocabulary
from constrained_k2.engines.llguidance.engine import LLGuidanceEngine
from tests.kit.grammars import takes_masked

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
