"""Adapts numeric bounds to JSON parsers that read integers exactly and round decimals to doubles.

    8306149361960154349099193546782749504295.874    read as a double, which is an integer
    5.0000000000000000001                           read as 5.0, so not above 5
    9007199254740993.0                              read as 9007199254740992.0

A decimal between two doubles is read as one of them. So a grammar compares decimals with bounds that are doubles.
"""

from fractions import Fraction
from math import inf, nextafter

from constrained_k2.schema.shapes import Number

LARGEST_EXACT = 2**53
"""Not every larger integer is a double."""


def number_of(value: float) -> Fraction:
    """The number that a JSON parser gets. A double below 2^53 counts as its shortest decimal: 0.1 is a tenth."""
    is_decimal = isinstance(value, float) and abs(value) < LARGEST_EXACT
    return Fraction(str(value)) if is_decimal else Fraction(value)


def above(value: Fraction) -> Number:
    """The numbers above ``value``, from the next double up; if that is not exact, with ``value`` as open bound."""
    is_fine = _is_fine(value) or value == -LARGEST_EXACT
    return Number(low=_beside(value, inf)) if is_fine else Number(low=value, low_open=True)


def below(value: Fraction) -> Number:
    """The numbers below ``value``."""
    is_fine = _is_fine(value) or value == LARGEST_EXACT
    return Number(high=_beside(value, -inf)) if is_fine else Number(high=value, high_open=True)


def double_from(low: Fraction, *, is_open: bool = False) -> Fraction:
    """The least double that is at least ``low`` (above ``low`` if ``is_open``), as its shortest decimal."""
    double = float(low)
    exact = Fraction(double)
    return Fraction(repr(nextafter(double, inf) if exact < low or (is_open and exact == low) else double))


def _is_fine(value: Fraction) -> bool:
    """True if no integer is between neighbouring doubles. Not for zero: doubles next to it have too many digits."""
    return 0 < abs(value) < LARGEST_EXACT


def _beside(value: Fraction, towards: float) -> Fraction:
    return Fraction(repr(nextafter(float(value), towards)))
