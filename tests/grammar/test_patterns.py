"""Patterns beside Python's ``re``: as expressions, as states, which cost little, and their shortest completions."""

import json
import re
from itertools import product
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.completions import shortest_suffix, without_assertions
from constrained_k2.grammar.patterns.states import PatternStates, of_format
from constrained_k2.grammar.patterns.string_states import KnownStrings, StringState
from constrained_k2.grammar.patterns.translation import found_anywhere
from constrained_k2.schema.shapes import Shape, String
from constrained_k2.schema.string_formats import FORMATS
from tests.kit.budget import tries

TOKENIZER = llguidance.LLTokenizer("byte")
TEXTS = [
    *("".join(text) for length in range(5) for text in product("ab-", repeat=length)),
    '"',
    '"a',
    'a"b',
    "\\",
    "\n",
]
EXACT = [
    # anchors in groups, alternatives and repetitions
    "^^a$$", "^$", "^$a*$", "a^", "$b", "(^a)|b$", "(?:^|-)a", "a(?:-|$)", "^(?:a|b$|-)*", "^(-?(a|b*)($|-))*$",
    "^([^-]+(-|$)){2,}$", "(?:^a|b$|-){2,3}", "(?:^a|b$){3}", "(?:^a?|b$){2,5}$", "(?:^$|a){2}", "(?:$|^b){2,9}",
    # back-references
    r"(a|b)\1", r"^(a|b)(-)?\1$", r"^([ab]{1,2})-?\1$", r"^(?:(a|b)\1|-)*$", r"([ab])-\1",
    r"(?:a)b|(?:)", "^(?i:A)", "(?s:a.b)",
]  # fmt: skip
LEFT = [
    "^(?=a)a", "(?!a)b|c", "(?:(?=a))?b",
    "a(?=b)", "^.*(?<!-)$", "(?<=a)b", "^(?:(?!ab).)*$", "^((?!aa)[ab]){1,3}$", "(?=^a|b$).", r"\ba", r"^\B",
    "(a+)\\1", "(a)*\\1", "(?>a|ab)b", "(?=(a))\\1", "(?m:^a)",
]  # fmt: skip


def by_python(pattern: str, texts: list[str]) -> dict[str, bool]:
    """Which texts contain a match: in ECMA-262, ``$`` is the end alone, and an empty text has a place of ``\\B``."""
    in_python = re.sub(r"(?<!\\)\$", r"\\Z", pattern).replace(r"\B", r"(?!\b)")
    return {text: re.search(in_python, text, re.ASCII) is not None for text in texts}


def check(pattern: str, texts: dict[str, bool] | None = None) -> None:
    """Compare with these verdicts, by default those of Python for short texts."""
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: FOUND\nFOUND: {found_anywhere(pattern)}")
    matcher = llguidance.LLMatcher(TOKENIZER, grammar, log_level=0)
    for text, is_found in (by_python(pattern, TEXTS) if texts is None else texts).items():
        copy, spelled = matcher.deep_copy(), json.dumps(text, ensure_ascii=False).encode()
        accepted = copy.try_consume_tokens([*spelled]) == len(spelled) and copy.is_accepting()
        assert not matcher.is_error() and accepted == is_found, (pattern, text)


@pytest.mark.parametrize("pattern", EXACT[:-2])
def test_all_short_texts(pattern: str) -> None:
    check(pattern)


@pytest.mark.parametrize("pattern", EXACT[-2:])
def test_flags_of_a_group(pattern: str) -> None:
    check(pattern, by_python(pattern, [*TEXTS, "AB", "aB", "Ab", "A", "a\nb"]))


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("^(a)?b\\1$", {"b": True, "aba": True, "ab": False, "ba": False}),  # in Python, it fails with its group
        ("^(?:(a)|b)\\1$", {"b": True, "aa": True, "ba": False}),
        ("^(?<q>[\"']?)a\\k<q>$", {"a": True, '"a"': True, "'a\"": False, '"a': False}),
        ("/^a$/", {"a": False, "/a/": False, "/^a$/": False}),
        ("^\\p{Lu}\\p{L}*$", {"Ba": True, "É": True, "ab": False, "A1": False}),
        (r"^\u{1F600}[\ud83d\ude01]\cA$", {"😀😁\1": True, "😀😀\1": False, "u": False}),
        ("^(?i:[^a]É)$", {"bé": True, "Aé": False, "É": False}),
    ],
)
def test_what_python_reads_in_another_way(pattern: str, texts: dict[str, bool]) -> None:
    check(pattern, texts)


@pytest.mark.parametrize("pattern", LEFT)
def test_what_has_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(Untranslatable):
        found_anywhere(pattern)


@st.composite
def patterns(draw: st.DrawFn, depth: int = 2) -> str:
    pieces = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", r"\w", r"\W", "^", "$"])
    if depth:
        inner = patterns(depth=depth - 1)
        group = st.tuples(st.sampled_from(["(?:", "("]), inner).map(lambda pair: f"{pair[0]}{pair[1]})")
        counts = st.sampled_from(["*", "?", "+", "{2}", "{0,2}", "{1,6}"])
        pieces |= group | st.tuples(inner, counts).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    alternatives = st.lists(st.lists(pieces, max_size=3).map("".join), min_size=1, max_size=2)
    return "|".join(draw(alternatives))


@settings(max_examples=tries(50, everything=150), deadline=None)
@given(patterns())
def test_random_patterns(pattern: str) -> None:
    try:
        found_anywhere(pattern)
    except Untranslatable:
        return
    check(pattern, by_python(pattern, TEXTS[:45]))


HOSTILE = [
    r"\b" * 900, "(?:^|a|$)" * 200, "(?:(?:^|a|$){2,9})" * 60, "(?:" * 80 + r"\b|a" + ")*" * 80, "(?=a|b)" * 280,
    "(?=(?=(?=(?=(?=a|b)|b)|b)|b)|b)" * 60, "((a|b)\\1)" * 180, "([a-p])" * 60 + "\\1\\2\\3\\4", "(?:(?!a).){1,9}" * 120,
    "(?:a?\\b){0,4}" * 90, "(?:(?:(?:\\b|a){0,4}|b){0,4}|-){0,4}" * 50, "((((){0,9}){0,9}){0,9}){0,9}\\1" * 50,
    "(?<=a)(?=b)" * 180, "^(?:(?!" + "a|" * 900 + "b).)*$", "(?i:[^a-\U0010ffff])" * 90,
]  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE, ids=[pattern[:24] for pattern in HOSTILE])
def test_hostile_patterns_are_short_or_given_up(pattern: str) -> None:
    try:
        size = len(found_anywhere(pattern))
    except Untranslatable:
        size = 0
    assert size < 1_000_000


def begin(*shapes: Shape, lengths: tuple[int, ...] = (), charges: list[int] | None = None) -> StringState:
    start = KnownStrings(lengths, (charges if charges is not None else []).append).start(shapes)
    assert start is not None
    return start


def pattern(text: str, **bounds: Any) -> String:
    return String(patterns=frozenset({text}), **bounds)


@pytest.mark.parametrize(
    ("shape", "one", "other"),
    [
        (pattern("^[a-z]+$"), "a", "abc"),
        (pattern("^[a-z]+$"), "1", "2b"),  # neither begins a string of the shape
        (pattern("ab"), "ab", "xxabxx"),  # the rest is free
        (pattern("ab"), "a", "a b a"),
        (pattern("^(a|b)*c$"), "ab", "bbbb"),
        (pattern("(a$|^b)"), "b", "bx"),
        (pattern("^a{2,}$"), "aa", "aaaa"),
        (pattern("^(?:x{0,2}y)*$"), "xy", "xxyy"),
        (String(absent=frozenset({"^a"})), "b", "xyz"),
        (String(excluded=frozenset({"abc"})), "x", "abd"),
        (String(shortest=2), "ab", "abc"),
        (pattern("^\\w+$", excluded=frozenset({"id"})), "x", "idx"),
    ],
)
def test_texts_with_equal_states(shape: String, one: str, other: str) -> None:
    start = begin(shape)
    assert start.after(one) is start.after(other)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_have_states(name: str) -> None:
    assert all(of_format(one).span for one in FORMATS[name].patterns)


@pytest.mark.parametrize("text", [r"a(?=b)", r"\bab", r"(a)\1", r"\p{L}+"])
def test_some_patterns_have_no_states(text: str) -> None:
    with pytest.raises(Untranslatable):
        (states := PatternStates(text)).after(states.start, "a")
    start = KnownStrings((), lambda _: None).start((pattern(text),))
    assert start is None or start.after("a") is None


@pytest.mark.parametrize(
    "text",
    [
        "^((a{0,60}){0,60}){0,60}$",
        "^(a?){0,900}$",
        ".*a.{500}",
        "^(" + "|".join(f"a{{0,{count}}}b" for count in range(150)) + ")*$",
        "^" + "(a|" * 40 + "b" + ")*" * 40 + "$",
    ],
)
def test_costly_patterns_are_given_up(text: str) -> None:
    charges: list[int] = []
    state = KnownStrings((), charges.append).start((pattern(text),))
    for _ in range(300):
        state = state and state.after("a")
    assert sum(charges) < 4 << 20
    assert state is None


PATTERNS = (
    "^a*b$", "ab|ba", "^(?:a|bb){2,3}$", "^(a?b?)+a$", "(^b|b$)", "^a{2}(?:b|)b?a{0,2}$", "^[^a]+a", "^(?:b{2})*$",
    "aab",
)  # fmt: skip


def rest(text: str, *patterns: str, least: int = 0) -> str | None:
    states = []
    for pattern in patterns:
        states.append((PatternStates(pattern), 0))
        state = states[-1][0].start
        for character in text:
            state = states[-1][0].after(state, character)
        states[-1] = states[-1][0], state
    return shortest_suffix(states, least)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("other", [None, "^.{2,}$", "b"])
def test_no_shorter_text_matches(pattern: str, other: str | None) -> None:
    """By Python's regular expressions, over all texts of two letters."""
    patterns = [pattern, *([other] if other else [])]
    for text in ("", "a", "b", "ab", "bba"):
        for least in (0, 2):
            every = ("".join(letters) for length in range(least, 6) for letters in product("ab", repeat=length))
            shortest = next((end for end in every if all(re.search(one, text + end) for one in patterns)), None)
            found = rest(text, *patterns, least=least)
            if shortest is None:
                assert found is None or len(found) > 5
            else:
                assert found is not None and len(found) <= len(shortest)
                assert len(found) >= least and all(re.search(one, text + found) for one in patterns)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("\\bword\\b", "word"), ("^(?:\\b0|\\B1)$", "0"), ("^\\p{Letter}[\\p{L}1]b$", "aab"),
    ],
)  # fmt: skip
def test_assertions_are_left_out(pattern: str, text: str) -> None:
    states = PatternStates(without_assertions(pattern))
    found = shortest_suffix([(states, states.start)])
    assert found == text and ("\\p" in pattern or re.search(pattern, found))


def test_characters_without_escapes_are_liked() -> None:
    assert [rest("", pattern) for pattern in ("^.$", "^[!-#]$", '^["-z]$', '^["#]$', '^"$', "^[\\x00-\\x1f]$")] == [
        "a", "!", "a", "#", '"', "\x00",
    ]  # fmt: skip


def test_the_search_is_bounded() -> None:
    assert rest("", "^a{500}$") == "a" * 500
    assert rest("", "^a{5000}$") is None
    assert rest("", "^(?:a|b|c){20}x$", "^(?:b|c|d){20}x$") == "b" * 20 + "x"
    states = [PatternStates(pattern) for pattern in ("^(?:a|b|c){20}x$", "^(?:b|c|d){20}x$")]
    assert shortest_suffix([(one, one.start) for one in states], max_places=10) is None
