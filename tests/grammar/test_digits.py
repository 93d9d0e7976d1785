"""Ranges of numbers as regular expressions, against arithmetic."""

import random
import re
from fractions import Fraction

import pytest

from constrained_k2.grammar.lark.digits import MAX_DIGITS, at_least, at_most, integers, number_range
from constrained_k2.grammar.lark.terminals import NoExactGrammar
from constrained_k2.schema.shapes import Number

BOUNDS = [Fraction(text) for text in ("0", "1", "1.5", "0.05", "2.25", "-1", "-0.3", "10", "-10.01", "99.9", "0.999")]
NUMBERS = [
    *(
        [
            "0",
            "0.0",
            "1",
            "1.0",
            "1.5",
            "1.50",
            "1.49",
            "1.51",
            "0.05",
            "0.050",
            "0.0500001",
            "0.04",
            "0.049",
            "0.1",
            "2.25",
            "2.2",
            "2.3",
            "-1",
            "-1.0",
            "-0.3",
            "-0.30",
            "-0.29",
        ]
    ),
    *(
        [
            "-0.31",
            "-0.2",
            "10",
            "9",
            "9.99",
            "10.1",
            "-10.01",
            "-10.010",
            "-10.0",
            "-10",
            "-10.02",
            "-11",
            "99.9",
            "99.89",
            "99.91",
            "100",
            "100.0",
            "0.999",
            "0.99",
            "0.9990",
            "3.14",
        ]
    ),
]


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


def test_the_number_of_digits_is_bounded() -> None:
    assert re.fullmatch(integers(None, None), "9" * MAX_DIGITS)
    assert not re.fullmatch(integers(None, None), "9" * (MAX_DIGITS + 1))
    assert number_range(Number(low=Fraction(-(10**300)))) == ""  # the bound is beyond all numbers that can be written
    with pytest.raises(NoExactGrammar, match="digits"):
        number_range(Number(low=Fraction(10**50)))
