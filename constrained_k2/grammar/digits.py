"""Ranges of numbers as regular expressions over their digits: exact where engines round to doubles.

Numbers are written without an exponent here, and with up to ``MAX_DIGITS`` digits on either side of the point: a model
that loops on a digit comes to an end.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from constrained_k2.grammar.cannot_write import CannotWrite
from constrained_k2.schema.shapes import Number

MAX_DIGITS = 40
_LARGEST = 10**MAX_DIGITS - 1
_MORE = f"[0-9]{{0,{MAX_DIGITS}}}"
_ZEROS = f"0{{0,{MAX_DIGITS}}}"
_ANY_FRACTION = rf"(?:\.[0-9]{{1,{MAX_DIGITS}}})?"


def number_range(shape: Number) -> str:
    """A terminal's expression for the numbers of a range (multiples aside); empty for any number.

    Raises:
        CannotWrite: All of them have too many digits.
    """
    low, high = _trimmed(shape.low, math.ceil), _trimmed(shape.high, math.floor)
    if (low or 0) > _LARGEST or (high or 0) < -_LARGEST or (low is not None and high is not None and low > high):
        raise CannotWrite(
            f"numbers have up to {MAX_DIGITS} digits before and behind the point",
            ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            replace(shape, low=None, high=None),
        )
    if shape.integer:
        return f"/{integers(None if low is None else int(low), None if high is None else int(high))}/"
    ways = []
    if low is not None and low >= -_LARGEST:
        ways.append(f"/{at_least(low, is_open=shape.low_open and low == shape.low)}/")
    if high is not None and high <= _LARGEST:
        ways.append(f"/{at_most(high, is_open=shape.high_open and high == shape.high)}/")
    if shape.fraction:
        ways.append(rf"/-?(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})\.{_MORE}[1-9]{_MORE}/")
    return " & ".join(ways)


def _trimmed(bound: Fraction | None, rounded: Callable[[Fraction], int]) -> Fraction | None:
    """A bound with as many digits as are written: the same numbers are within it."""
    return None if bound is None else Fraction(rounded(bound * 10**MAX_DIGITS), 10**MAX_DIGITS)


def at_least(low: Fraction, *, is_open: bool) -> str:
    """A regex of the numbers from ``low`` up, without it if ``is_open``."""
    if low >= 0:
        return f"(?:{'|'.join(_magnitudes_from(low, is_open=is_open))})"
    ways = [f"{integers(0, None)}{_ANY_FRACTION}", *(f"-{way}" for way in _magnitudes_to(-low, is_open=is_open))]
    return f"(?:{'|'.join(ways)})"


def at_most(high: Fraction, *, is_open: bool) -> str:
    """A regex of the numbers up to ``high``, without it if ``is_open``."""
    ways = []
    if high >= 0:
        ways = [f"-{integers(0, None)}{_ANY_FRACTION}" if high or not is_open else f"-{_above_zero()}"]
        ways += _magnitudes_to(high, is_open=is_open)
    else:
        ways = [f"-{way}" for way in _magnitudes_from(-high, is_open=is_open)]
    return f"(?:{'|'.join(ways)})"


def _above_zero() -> str:
    return f"(?:{'|'.join(_magnitudes_from(Fraction(0), is_open=True))})"


def _magnitudes_from(low: Fraction, *, is_open: bool) -> list[str]:
    """The numbers from a non-negative one up."""
    whole, fraction = _digits(low)
    ways = [f"{integers(whole + 1, None)}{_ANY_FRACTION}"] if whole < _LARGEST else []
    if not fraction and not is_open:
        return [*ways, f"{whole}{_ANY_FRACTION}"]
    more = f"{_ZEROS}[1-9]{_MORE}" if is_open else _MORE
    ways.append(rf"{whole}\.{fraction}{more}")
    ways += [
        rf"{whole}\.{fraction[:place]}[{int(digit) + 1}-9]{_MORE}"
        for place, digit in enumerate(fraction)
        if digit < "9"
    ]
    return ways


def _magnitudes_to(high: Fraction, *, is_open: bool) -> list[str]:
    """The non-negative numbers up to one."""
    whole, fraction = _digits(high)
    ways = [f"{integers(0, whole - 1)}{_ANY_FRACTION}"] if whole else []
    if not is_open:
        ways.append(rf"{whole}(?:\.{fraction}{_ZEROS})?" if fraction else rf"{whole}(?:\.0{_ZEROS})?")
    if fraction:
        ways.append(str(whole))
        ways += [rf"{whole}\.{fraction[:place]}" for place in range(1, len(fraction))]
        ways += [
            rf"{whole}\.{fraction[:place]}[0-{int(digit) - 1}]{_MORE}"
            for place, digit in enumerate(fraction)
            if digit > "0"
        ]
    return ways


def _digits(number: Fraction) -> tuple[int, str]:
    """The whole part and the digits behind the point; JSON numbers have finitely many of them."""
    whole, rest = divmod(number.numerator, number.denominator)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, number.denominator)
        digits += str(digit)
    return whole, digits


def integers(low: int | None, high: int | None) -> str:
    """A regex of the integers from ``low`` to ``high`` (None: without end), each as JSON writes it."""
    low = -_LARGEST if low is None else max(low, -_LARGEST)
    high = _LARGEST if high is None else min(high, _LARGEST)
    if (low, high) == (-_LARGEST, _LARGEST):
        return f"-?(?:{'|'.join(_magnitudes(0, high))})"
    ways = []
    if low < 0:
        ways += [f"-{way}" for way in _magnitudes(max(1, -high), -low)]
    if high >= 0:
        ways += _magnitudes(max(low, 0), high)
    return f"(?:{'|'.join(ways)})"


def _magnitudes(low: int, high: int) -> list[str]:
    """The non-negative integers of a range: those with as many digits as a bound, and all between."""
    first, last = str(low), str(high)
    if set(last) == {"9"} and set(first[1:]) <= {"0"} and first[0] in "01":
        ways = [f"[1-9][0-9]{{{len(first) - 1},{len(last) - 1}}}"]
        return ["0", *ways] if first == "0" else ways
    if len(first) == len(last):
        return _same_length(first, last)
    ways = _same_length(first, "9" * len(first))
    if len(last) - len(first) > 1:
        ways.append(f"[1-9][0-9]{{{len(first)},{len(last) - 2}}}")
    return [*ways, *_same_length("1" + "0" * (len(last) - 1), last)]


def _same_length(first: str, last: str) -> list[str]:
    """The numbers from ``first`` to ``last``, which have as many digits."""
    shared = 0
    while shared < len(first) and first[shared] == last[shared]:
        shared += 1
    prefix, first, last = first[:shared], first[shared:], last[shared:]
    if not first:
        return [prefix]
    rest = len(first) - 1
    ways = []
    low, high = int(first[0]), int(last[0])
    if rest and set(first[1:]) != {"0"}:
        ways += [f"{prefix}{first[0]}{way}" for way in _from(first[1:])]
        low += 1
    if rest and set(last[1:]) != {"9"}:
        ways += [f"{prefix}{last[0]}{way}" for way in _up_to(last[1:])]
        high -= 1
    if low <= high:
        ways.append(f"{prefix}[{low}-{high}]{_any(rest)}")
    return ways


def _from(digits: str) -> list[str]:
    """The digits from these up to all nines."""
    return [digits] + [
        f"{digits[:place]}[{int(digit) + 1}-9]{_any(len(digits) - place - 1)}"
        for place, digit in enumerate(digits)
        if digit < "9"
    ]


def _up_to(digits: str) -> list[str]:
    """The digits from all zeros up to these."""
    return [digits] + [
        f"{digits[:place]}[0-{int(digit) - 1}]{_any(len(digits) - place - 1)}"
        for place, digit in enumerate(digits)
        if digit > "0"
    ]


def _any(count: int) -> str:
    return f"[0-9]{{{count}}}" if count else ""
