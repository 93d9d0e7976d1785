"""The states of strings: texts in equal states go on equally, and no pattern makes them cost much."""

from typing import Any

import pytest

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.states import PatternStates, of_format
from constrained_k2.grammar.patterns.string_states import KnownStrings, StringState
from constrained_k2.schema.shapes import ListedValue, Shape, String
from constrained_k2.schema.string_formats import FORMATS


def begin(*shapes: Shape, lengths: tuple[int, ...] = (), charges: list[int] | None = None) -> StringState:
    start = KnownStrings(lengths, (charges if charges is not None else []).append).start(shapes)
    assert start is not None
    return start


def pattern(text: str, **bounds: Any) -> String:
    return String(patterns=frozenset({text}), **bounds)


def first_step(text: str) -> int:
    states = PatternStates(text)
    return states.after(states.start, "a")


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


def test_a_state_has_a_part_for_each_shape() -> None:
    start = begin(pattern("^a+$"), ListedValue('"ab"'))
    assert start.after("aa") is start.after("aaa")
    assert start.after("ab") is not start.after("a")
    assert start.after("ab") is not start.after("b")


def test_far_from_its_end_a_long_string_has_few_masks() -> None:
    start = begin(String(longest=400), lengths=(96, 128))
    far, farther, near = (start.after("x" * count) for count in (10, 200, 310))
    assert far is not None and farther is not None and near is not None
    assert far.representative is farther.representative is not None
    assert far.representative is not far
    assert near.representative is not far.representative  # 90 characters are left, and a token has 96
    last = start.after("x" * 390)
    assert last is not None and last.representative is last


def test_a_long_string_is_not_tracked_beyond_the_limit() -> None:
    state: StringState | None = begin(String(shortest=5_000))
    count = 0
    while state is not None:
        state, count = state.after("x"), count + 1
    assert 1_000 < count < 2_000


@pytest.mark.parametrize("name", FORMATS)
def test_formats_have_states(name: str) -> None:
    assert all(of_format(one).span for one in FORMATS[name].patterns)


@pytest.mark.parametrize("text", [r"a(?=b)", r"\bab", r"(a)\1", r"\p{L}+"])
def test_some_patterns_have_no_states(text: str) -> None:
    with pytest.raises(Untranslatable):
        first_step(text)
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
