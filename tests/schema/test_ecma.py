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

# Pattern; texts that contain a match; texts that do not.
ENFORCED: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (r"^\p{L}$", ("a", "é", "中"), ("1", "p{L}", "")),
    (r"^[\p{L}\d]$", ("é", "1"), ("-", "٣")),
    (r"^\p{Script=Greek}$", ("α",), ("a",)),
    (r"^a\/b$", ("a/b",), ("a\\/b",)),
    (r"^\d$", ("7",), ("٣", "a")),
    (r"^\w\W$", ("a-", "_é"), ("aa", "éa")),
    (r"^\s$", (" ", "\ufeff", "\u2028", "\n"), ("\x1c", "a")),
    (r"^.$", ("a", "😀", "\x85"), ("\n", "\r", "\u2028")),
    (r"^(?<year>\d{2})$", ("12",), ("1",)),
    (r"^(?<a>['_])x\k<a>$", ("'x'", "_x_"), ("'x_",)),
    (r"^(?<$a>x)(?<é>y)$", ("xy",), ("x",)),
    (r"^(a|b)\1$", ("aa", "bb"), ("ab", "a")),
    (r"^[^]$", ("a", "\n", '"', "\\"), ("", "ab")),
    (r"^[^]a]$", ("ba]", "]a]"), ("b", "a]")),
    (r"^\cA[\cB]$", ("\x01\x02",), ("cAcB",)),
    (r"^\u{61}\u{1F600}$", ("a😀",), ("u" * 61, "a")),
    (r"^\uD83D\uDE00[\uD83D\uDE00]$", ("😀😀",), ("😀",)),
    (r"^\x41\u0042\0$", ("AB\0",), ("AB0",)),
    (r"^[\b]$", ("\b",), ("b",)),
    (r"^\-\_\@\'\#\ $", ("-_@'# ",), ("\\-",)),
    (r"^[\-\^\]\[]$", ("-", "^", "]", "["), ("\\",)),
    (r"^[\d-z]$", ("1", "-", "z"), ("a",)),
    (r"^[a-\d]$", ("a", "-", "1"), ("b",)),
    (r"^[a&&b]$", ("a", "&", "b"), ("c",)),
    (r"^[[a]$", ("[", "a"), ("]",)),
    (r"^[[:alpha:]]$", ("a]", ":]"), ("a", "b]")),
    (r"^[a-z&&[^b]]$", ("&]", "b]"), ("a", "b")),
    (r"^a{$|^{b}$|^c]}$", ("a{", "{b}", "c]}"), ("a", "b")),
    (r"^a{,b}$|^{,3x$", ("a{,b}", "{,3x"), ("ab", "x")),
    (r"^a{2,}?b{1}c{0,1}$", ("aab", "aaabc"), ("ab",)),
    (r"^(?i:é)(?s:.)$", ("É\n",), ("e\n", "Éab")),
    (r"^a|b$", ("ac", "cb"), ("ca",)),
    (r"^(?=.*[A-Z])(?=.*\d).{8,}$", ("Passw0rd",), ("password1", "Pass0")),
    (r"^(?!admin$|root$)[a-z]+$", ("admins",), ("admin", "root", "")),
    (r"^(?=a|b)[a-c]", ("ab", "b"), ("c", "ca")),
    (r"^(?!x)", ("", "ax"), ("x", "xa")),
    (r"^(?=[)(])[)x]", (")x",), ("x", "(x")),
    (r"^#\x20a b$", ("# a b",), ("#ab",)),
]
# Pattern; the reason, which names the part.
RELAXED: list[tuple[str, str]] = [
    (r"^a\b", "a word boundary"),
    ("[", "a class is not closed"),
    ("(?:a", "a group is not closed"),
    ("a)", "a parenthesis closes no group"),
    ("a\\", "it ends in a backslash"),
    ("*a", "nothing that '*' could repeat"),
    ("a++", "nothing that '+' could repeat"),
    ("a**", "nothing that '*' could repeat"),
    ("a{2}{3}", "nothing that '{3}' could repeat"),
    ("^+$", "nothing that '+' could repeat"),
    (r"\b+", "nothing that '+' could repeat"),
    ("(?<=a)?b", "nothing that '?' could repeat"),
    ("a{2,1}", "the counts of '{2,1}' are in the wrong order"),
    ("a{,}", "{,} has no lower count: write {0,}"),
    ("a{,2}", "{,2} has no lower count: write {0,2}"),
    ("[b-a]", "the range b-a is in the wrong order"),
    (r"^\a$", r"ECMA-262 has no escape \a"),
    (r"^\e[\h]$", r"ECMA-262 has no escape \e"),
    (r"\Q.\E", r"ECMA-262 has no escape \Q"),
    (r"\G\K\R\X", r"ECMA-262 has no escape \G"),
    (r"^\N{DIGIT ONE}$", r"ECMA-262 has no escape \N"),
    (r"\x1", r"ECMA-262 has no escape \x"),
    (r"\x{61}", r"ECMA-262 has no escape \x"),
    (r"\u12", r"ECMA-262 has no escape \u"),
    (r"\c1", r"ECMA-262 has no escape \c"),
    (r"\pL", r"ECMA-262 has no escape \p"),
    (r"\u{110000}", r"\u{110000} is beyond the last character of Unicode"),
    (r"\1", r"\1 refers to no group"),
    (r"(a)\2", r"\2 refers to no group"),
    (r"(a)\10", r"\10 refers to no group"),
    (r"\k<b>(?<a>x)", r"\k<b> refers to no group"),
    (r"(?<a>x)(?<a>y)", "two groups have the name 'a'"),
    (r"(?<1>x)", "a group cannot have the name '1'"),
    ("(?>a)", "'(?>a' begins no group"),
    ("(?#c)a", "'(?#c' begins no group"),
    ("^(?x) a$", "'(?x)' begins no group"),
    ("(?R)", "'(?R)' begins no group"),
    ("(?(1)a|b)", "'(?(1' begins no group"),
    ("(?'y'a)", "begins no group"),
    (r"a\.(?i)png", "'(?i)' begins no group"),
    ("(?ii:a)", "(?ii: says one modifier twice"),
    ("^(?m:^a$)$", "the modifier m"),
    ("^[]$", "the empty class []"),
    ("^a[]|b", "the empty class []"),
    (r"^\1(a)$", r"\1 before the end of its group"),
    (r"(a+)-\1", "a back-reference to a group of more than 16 texts"),
    (r"^\p{Foo}$", r"the property \p{Foo}"),
    ("a{99999999999}", "a count of more than 9 digits"),
    ("^(?=a)?b$", "lookaround, other than lookahead at the start of the pattern"),
]
LOOKS_INSIDE = "lookaround, other than lookahead at the start of the pattern; the rest of the pattern is enforced"
# Pattern with lookarounds inside -> (texts that match, texts that do not match even without the lookarounds).
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d{0,3}\.\d{0,2}0*$)$"  # as pydantic writes decimals
WITHOUT_LOOKS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (DECIMAL, ("12", "1.25", "-0.5"), ("", "-", "1.x", "1234.5", "1.2.3")),
    (r"(?<=a)b(?!c)", ("ab", "xab"), ("a", "ac")),
    (r"^(?=a)a|c", ("a", "bc"), ("b", "ba")),  # the anchor is of the first alternative only
    (r"^a(?!b(?:c|[)]))[a-c]$", ("aa", "ac"), ("a", "ad")),
    (r"^[(?=](?=a)[a-z)]\)(?<!\()$", ("(a)", "=a)"), ("a", "(a", "(a(")),
]
TEXTS = ("", "a", "b", "aa", "\\", '"', "\n", "é", "😀", "[", "x]", "9", "a{,2}", "\\1")


def tool(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": {"type": "string", **more}}, "required": ["p"]}


def takes(compiler: Compiler, schema: dict[str, Any], text: str) -> bool:
    return accepts(compiler, schema, json.dumps({"p": text}, ensure_ascii=False, separators=(",", ":")))


@pytest.mark.parametrize(("pattern", "found", "missing"), ENFORCED, ids=lambda case: str(case)[:30])
def test_enforced_patterns_have_their_language(pattern: str, found: tuple[str, ...], missing: tuple[str, ...]) -> None:
    coverage = schema_coverage(tool(pattern=pattern), undeclared_keys="allow")
    assert "#/properties/p/pattern" in [use.pointer for use in coverage.enforced]
    assert not syntax_problem(pattern)
    for text in found:
        assert takes(byte_compiler(), tool(pattern=pattern), text), text
    for text in missing:
        assert not takes(byte_compiler(), tool(pattern=pattern), text), text


@pytest.mark.parametrize(("pattern", "reason"), RELAXED, ids=[pattern for pattern, _ in RELAXED])
def test_relaxed_patterns_bound_nothing(pattern: str, reason: str) -> None:
    schema = tool(pattern=pattern, maxLength=5)
    coverage = schema_coverage(schema, undeclared_keys="allow")
    (use,) = coverage.relaxed
    assert use.pointer == "#/properties/p/pattern" and reason in use.reason
    for text in TEXTS:
        assert takes(byte_compiler(), schema, text), text
    assert not takes(byte_compiler(), schema, "aaaaaa")


@pytest.mark.parametrize(("pattern", "found", "missing"), WITHOUT_LOOKS)
def test_a_pattern_is_enforced_without_its_look_around(
    pattern: str, found: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    (use,) = schema_coverage(tool(pattern=pattern), undeclared_keys="allow").relaxed
    assert use.pointer == "#/properties/p/pattern" and LOOKS_INSIDE in use.reason
    for text in found:
        assert re.search(pattern, text) and takes(byte_compiler(), tool(pattern=pattern), text), text
    for text in missing:
        assert not re.search(pattern, text) and not takes(byte_compiler(), tool(pattern=pattern), text), text


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "reason"), RELAXED, ids=[pattern for pattern, _ in RELAXED])
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
        (_, found, missing) = next((case for case in ENFORCED if case[0] == pattern), (pattern, (), ()))
        coverage = compiler.grammar(json.dumps(tool(pattern=pattern)), "").coverage
        assert not coverage.relaxed
        assert all(takes(compiler, tool(pattern=pattern), text) for text in found)
        assert not any(takes(compiler, tool(pattern=pattern), text) for text in missing)


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
