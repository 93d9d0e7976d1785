"""The shortest rests of texts: with them the texts match, and no shorter ones do."""

import re
from itertools import product

import pytest

from constrained_k2.grammar.patterns.completions import shortest_suffix, without_assertions
from constrained_k2.grammar.patterns.states import PatternStates

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
