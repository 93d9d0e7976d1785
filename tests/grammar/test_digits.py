"""Ranges of numbers as regular expressions, against arithmetic."""

import random
import re
from fractions import Fraction

import llguidance
import pytest

from constrained_k2.grammar.plan.digits import MAX_DIGITS, at_least, at_most, integers, number_range
from constrained_k2.grammar.plan.nodes import Wider
from constrained_k2.schema.shapes import Number

BOUNDS = [Fraction(text) for text in ("0", "1", "1.5", "0.05", "2.25", "-1", "-0.3", "10", "-10.01", "99.9", "0.999")]
NUMBERS = [
    "0", "0.0", "1", "1.0", "1.5", "1.50", "1.49", "1.51", "0.05", "0.050", "0.0500001", "0.04", "0.049", "0.1",
    "2.25", "2.2", "2.3", "-1", "-1.0", "-0.3", "-0.30", "-0.29", "-0.31", "-0.2", "10", "9", "9.99", "10.1",
    "-10.01", "-10.010", "-10.0", "-10", "-10.02", "-11", "99.9", "99.89", "99.91", "100", "100.0", "0.999", "0.99",
    "0.9990", "3.14",
]  # fmt: skip


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_bounds(bound: Fraction, is_open: bool) -> None:
    above, below = re.compile(at_least(bound, is_open=is_open)), re.compile(at_most(bound, is_open=is_open))
    for text in NUMBERS:
        number = Fraction(text)
        assert bool(above.fullmatch(text)) == (number > bound or (number == bound and not is_open)), text
        assert bool(below.fullmatch(text)) == (number < bound or (number == bound and not is_open)), text


def test_integers() -> None:
    chance = random.Random(1)
    for _ in range(500):
        bounds = [chance.choice([None, chance.randint(-1200, 1200)]) for _ in range(2)]
        low, high = bounds
        if low is not None and high is not None and low > high:
            low, high = high, low
        regex = re.compile(integers(low, high))
        near = [bound + step for bound in (low, high, 0) if bound is not None for step in (-1, 0, 1)]
        for number in [*chance.sample(range(-13_000, 13_000), 40), *near]:
            inside = (low is None or number >= low) and (high is None or number <= high)
            assert bool(regex.fullmatch(str(number))) == inside, (low, high, number)


def test_integers_that_engines_round() -> None:
    regex = re.compile(integers(-(2**63), 2**63 - 1))
    for number in (2**63 - 1, -(2**63), 2**53 + 1):
        assert regex.fullmatch(str(number))
    for number in (2**63, -(2**63) - 1):
        assert not regex.fullmatch(str(number))


def expression_of(shape: Number) -> str:
    expression = number_range(shape)
    assert isinstance(expression, str)
    return expression


def test_the_number_of_digits_is_bounded() -> None:
    assert re.fullmatch(integers(None, None), "9" * MAX_DIGITS)
    assert not re.fullmatch(integers(None, None), "9" * (MAX_DIGITS + 1))
    assert number_range(Number(low=Fraction(-(10**310)))) == ""  # the bound is beyond all numbers that can be written
    wider = number_range(Number(low=Fraction(10**50)))
    assert isinstance(wider, Wider) and wider.shape == Number() and "digits" in wider.reason


def test_numbers_with_an_exponent_and_negative_zero() -> None:
    chance = random.Random(2)
    edges = ["0", "1", "-1", "0.1", "0.001", "9.99", "99.9", "500", "-1000", "1000000", "0.000000001234"]
    for _ in range(2000):
        low, high = sorted(Fraction(chance.choice(edges)) * chance.choice([1, 1, 3, -7]) for _ in range(2))
        if low == high:
            continue
        shape = Number(low=low, high=high, low_open=chance.random() < 0.5, high_open=chance.random() < 0.5)
        ways = [re.compile(way[1:-1]) for way in expression_of(shape).split(" & ")]
        digits = f"{chance.randint(1, 9)}{chance.choice(['', '.0', f'.{chance.randint(0, 999)}'])}"
        power = f"{chance.choice('eE')}{chance.choice(['', '+', '-', '-0', '+0'])}{chance.randint(1, 8)}"
        for text in (f"{digits}{power}", f"-{digits}{power}", "-0", "-0.0"):
            number = Fraction(text)
            above = number > low or (number == low and not shape.low_open)
            below = number < high or (number == high and not shape.high_open)
            assert all(way.fullmatch(text) for way in ways) == (above and below), (shape, text)


@pytest.mark.parametrize("bound", [10**39, 10**45, 10**300, 2 * 10**299])
def test_exponents_of_large_bounds(bound: int) -> None:
    expression = expression_of(Number(low=Fraction(-bound), high=Fraction(0)))
    power = len(str(bound)) - 1
    assert not matches(expression, f"-9e{power}")
    assert matches(expression, f"-9e{power - 1}")
    assert matches(expression, "-12")


def matches(expression: str, text: str) -> bool:
    """True if a text is one of a terminal's."""
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: T\nT: {expression}")
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte", slices=[]), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


def test_integers_may_be_negative_zero_where_zero_is_allowed() -> None:
    for low, high, expected in ((0, 5, True), (-1, None, True), (None, 0, True), (None, None, True), (1, 5, False)):
        bounds = (None if bound is None else Fraction(bound) for bound in (low, high))
        expression = expression_of(Number(True, False, next(bounds), False, next(bounds)))
        assert bool(re.fullmatch(expression[1:-1], "-0")) == expected
        assert not re.fullmatch(expression[1:-1], "1e0")
