"""Inner anchors and back-references, beside Python's ``re`` on all short texts."""

import json
import re
from itertools import product

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.translation import found_anywhere, spelled_ways
from constrained_k2.grammar.spelling import RAW
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


def test_raw_text_has_no_quotes() -> None:
    assert '"' not in found_anywhere("^a|b$", RAW)


def test_each_way_to_match_is_a_regex() -> None:
    assert len(spelled_ways("^(?:a|b$|-)*")) == 2
    assert not spelled_ways("a^")


@st.composite
def patterns(draw: st.DrawFn, depth: int = 2) -> str:
    pieces = st.sampled_from(["a", "b", "-", ".", "[ab]", "[^a]", r"\w", r"\W", "^", "$"])
    if depth:
        inner = patterns(depth=depth - 1)
        group = st.tuples(st.sampled_from(["(?:", "("]), inner).map(lambda pair: f"{pair[0]}{pair[1]})")
        counts = st.sampled_from(["*", "?", "+", "{2}", "{0,2}", "{1,6}"])
        pieces |= group | st.tuples(inner, counts).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    ways = st.lists(st.lists(pieces, max_size=3).map("".join), min_size=1, max_size=2)
    return "|".join(draw(ways))


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
