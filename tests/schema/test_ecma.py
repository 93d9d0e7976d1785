"""Patterns by ECMA-262: an enforced one has exactly its language, a relaxed one bounds nothing and says why.

The texts were checked with Node 20, under the flag ``u``, or without it if only that takes the pattern; modifiers by hand.
"""

import json
import re
from typing import Any

import pytest

from constrained_k2 import Compiler, Vocabulary, schema_coverage
from constrained_k2.schema.ecma import NotAPattern, NotInPython, in_python, syntax_problem
from constrained_k2.schema.pattern import in_ecma
from tests.kit.compilers import accepts, byte_compiler
from tests.kit.data import table

TABLE: dict[str, dict[str, Any]] = table(__file__)
"""Pattern -> texts that contain a match, and texts that do not; for a relaxed one the reason, which names the part."""
LOOKS_INSIDE = "lookaround other than lookahead right after the first ^; the rest of the pattern is enforced"
TEXTS = ("", "a", "b", "aa", "\\", '"', "\n", "é", "😀", "[", "x]", "9", "a{,2}", "\\1")


def tool(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": {"type": "string", **more}}, "required": ["p"]}


def takes(compiler: Compiler, schema: dict[str, Any], text: str) -> bool:
    return accepts(compiler, schema, json.dumps({"p": text}, ensure_ascii=False, separators=(",", ":")))


def texts_of(kind: str) -> pytest.MarkDecorator:
    rows = [(pattern, texts["found"], texts["missing"]) for pattern, texts in TABLE[kind].items()]
    return pytest.mark.parametrize(("pattern", "found", "missing"), rows, ids=TABLE[kind])


each_relaxed = pytest.mark.parametrize(("pattern", "reason"), TABLE["relaxed"].items(), ids=TABLE["relaxed"])


@texts_of("enforced")
def test_enforced_patterns_have_their_language(pattern: str, found: list[str], missing: list[str]) -> None:
    coverage = schema_coverage(tool(pattern=pattern), undeclared_keys="allow")
    assert "#/properties/p/pattern" in [use.pointer for use in coverage.enforced]
    assert not syntax_problem(pattern)
    for text in found:
        assert takes(byte_compiler(), tool(pattern=pattern), text), text
    for text in missing:
        assert not takes(byte_compiler(), tool(pattern=pattern), text), text


@each_relaxed
def test_relaxed_patterns_bound_nothing(pattern: str, reason: str) -> None:
    schema = tool(pattern=pattern, maxLength=5)
    coverage = schema_coverage(schema, undeclared_keys="allow")
    (use,) = coverage.relaxed
    assert use.pointer == "#/properties/p/pattern" and reason in use.reason
    for text in TEXTS:
        assert takes(byte_compiler(), schema, text), text
    assert not takes(byte_compiler(), schema, "aaaaaa")


@texts_of("without lookaround")
def test_a_pattern_is_enforced_without_its_look_around(pattern: str, found: list[str], missing: list[str]) -> None:
    (use,) = schema_coverage(tool(pattern=pattern), undeclared_keys="allow").relaxed
    assert use.pointer == "#/properties/p/pattern" and LOOKS_INSIDE in use.reason
    for text in found:
        assert re.search(pattern, text) and takes(byte_compiler(), tool(pattern=pattern), text), text
    for text in missing:
        assert not re.search(pattern, text) and not takes(byte_compiler(), tool(pattern=pattern), text), text


@pytest.mark.slow
@each_relaxed
def test_xgrammar_gives_the_same_reasons(pattern: str, reason: str) -> None:
    (use,) = schema_coverage(tool(pattern=pattern), "xgrammar", undeclared_keys="allow").relaxed
    assert use.pointer == "#/properties/p/pattern" and reason in use.reason


@pytest.mark.parametrize("pattern", ["(", "a++", r"\Q", r"^\1(a)$", "^[]$"])
def test_keys_of_a_relaxed_pattern_have_any_value(pattern: str) -> None:
    schema = {"type": "object", "patternProperties": {pattern: {"type": "null"}}, "additionalProperties": False}
    assert {use.keyword for use in schema_coverage(schema).relaxed} == {"patternProperties", "additionalProperties"}
    for text in ('{"a":1}', '{"":[]}', "{}"):
        assert accepts(byte_compiler(), schema, text)


@pytest.mark.parametrize("pattern", ["(", "a++"])
def test_the_negation_of_no_pattern_bounds_nothing(pattern: str) -> None:
    schema = {"type": "object", "properties": {"p": {"type": "string", "not": {"pattern": pattern}}}}
    assert [use.pointer for use in schema_coverage(schema).relaxed] == ["#/properties/p/not/pattern"]
    assert all(takes(byte_compiler(), schema, text) for text in TEXTS)


@pytest.mark.slow
def test_xgrammar_has_the_same_language() -> None:
    compiler = Compiler(Vocabulary.of_bytes(), engine="xgrammar", undeclared_keys="allow")
    for pattern in (r"^[^]$", r"^[\d-z]$", r"^(?<$a>x)\k<$a>$", r"^[^]a]$", r"^\cA\u{61}\/$"):
        texts = TABLE["enforced"].get(pattern, {"found": [], "missing": []})
        coverage = compiler.grammar(json.dumps(tool(pattern=pattern)), "").coverage
        assert not coverage.relaxed
        assert all(takes(compiler, tool(pattern=pattern), text) for text in texts["found"])
        assert not any(takes(compiler, tool(pattern=pattern), text) for text in texts["missing"])


def test_flags_behind_the_anchor_are_read() -> None:
    assert in_ecma("^(?i)a|b$") == "(?i:^a|b$)"
    assert takes(byte_compiler(), tool(pattern="^(?i)a$"), "A")
    assert not takes(byte_compiler(), tool(pattern="^(?i)a$"), "xA")


def test_properties_are_spelled_by_the_caller() -> None:
    with pytest.raises(NotInPython, match=r"the property \\p\{L\}"):
        in_python(r"\p{L}")
    assert in_python(r"[\p{L}]\P{Lu}", lambda name: name[3:-1]) == "[L]Lu"
    with pytest.raises(NotAPattern):
        in_python("(", lambda name: name)


@pytest.mark.parametrize(
    "text", ["(" * 4000, "[" * 4000, "(?<" * 2000, r"\k<" * 2000, "a{" * 2000, "(?:" * 1500 + ")" * 1500]
)
def test_hostile_patterns_are_read(text: str) -> None:
    assert isinstance(syntax_problem(text), str)
