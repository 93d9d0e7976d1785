"""Writes number ranges as regexes that match only JSON numbers whose parsed value is in the range.

Numbers have up to ``MAX_DIGITS`` digits on either side of the point: this stops a model that loops on a digit. Numbers
with an exponent have one digit before the point, which is not zero. So their exponents are compared first, then their
digits. Integers have no exponent: many clients read ``1e3`` as a float. Numbers that must not be integers have up to 15
digits, so that no parser that uses doubles reads one as an integer.
"""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, groupby, takewhile
from operator import eq

from constrained_k2.grammar.plan.nodes import Wider
from constrained_k2.schema.doubles import LARGEST_EXACT, double_from
from constrained_k2.schema.shapes import Number

MAX_DIGITS = 40
_LARGEST = 10**MAX_DIGITS - 1
_MAX_EXPONENT = 299
_BEYOND = 10 ** (_MAX_EXPONENT + 9)  # above all numbers with an exponent that unbounded ranges allow
_MORE = f"[0-9]{{0,{MAX_DIGITS}}}"
_ZEROS = f"0{{0,{MAX_DIGITS}}}"
_ANY_FRACTION = rf"(?:\.[0-9]{{1,{MAX_DIGITS}}})?"
_DOUBLE = "/-?[0-9]+[.eE][-+.0-9eE]*/"  # numbers that are read as doubles
_SMALL = r"/-?[1-9](?:\.[0-9]{1,14})?[eE]-0?(?:[1-9][0-9]?|[12][0-9]{2})/"  # numbers below one, with an exponent
_NO_INTEGER = rf"(/-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*/ & /-?[0-9.]{{3,16}}/ | {_SMALL})"


def number_range(shape: Number) -> str | Wider:
    """Return the body of a terminal for a range of numbers, ignoring ``multiple``; empty if any number is allowed."""
    # Rounding the bounds inwards to MAX_DIGITS decimals does not change which numbers are within them.
    low = None if shape.low is None else Fraction(math.ceil(shape.low * 10**MAX_DIGITS), 10**MAX_DIGITS)
    high = None if shape.high is None else Fraction(math.floor(shape.high * 10**MAX_DIGITS), 10**MAX_DIGITS)
    if (low or 0) > _LARGEST or (high or 0) < -_LARGEST or (low is not None and high is not None and low > high):
        reason = f"numbers have at most {MAX_DIGITS} digits before and after the point"
        keywords = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        return Wider(replace(shape, low=None, high=None), keywords, reason)
    if shape.integer:
        is_bounded = low is not None or high is not None
        zero = "-0|" if is_bounded and (low or 0) <= 0 <= (high or 0) else ""
        return f"/{zero}{integers(None if low is None else int(low), None if high is None else int(high))}/"
    alternatives = []
    if low is not None and low >= -_BEYOND:
        alternatives.append(_from(low, is_open=shape.low_open and low == shape.low))
    if high is not None and high <= _BEYOND:
        alternatives.append(_to(high, is_open=shape.high_open and high == shape.high))
    if shape.fraction:
        alternatives.append(_NO_INTEGER)
    return " & ".join(alternatives)


def _from(low: Fraction, *, is_open: bool) -> str:
    """Return a terminal's body for the numbers that are read as ``low`` or more."""
    if abs(low) < LARGEST_EXACT:
        return f"/{at_least(low, is_open=is_open)}/"
    first = math.ceil(low) + (is_open and low.denominator == 1)
    doubles = at_least(double_from(low, is_open=is_open), is_open=False)
    return f"({_whole(first, None)}/{doubles}/ & {_DOUBLE})"


def _to(high: Fraction, *, is_open: bool) -> str:
    """Return a terminal's body for the numbers that are read as ``high`` or less."""
    if abs(high) < LARGEST_EXACT:
        return f"/{at_most(high, is_open=is_open)}/"
    last = math.floor(high) - (is_open and high.denominator == 1)
    doubles = at_most(-double_from(-high, is_open=is_open), is_open=False)
    return f"({_whole(None, last)}/{doubles}/ & {_DOUBLE})"


def _whole(low: int | None, high: int | None) -> str:
    """Return the integers of a range as the first of several alternatives; empty if there are none."""
    is_empty = (low is not None and low > _LARGEST) or (high is not None and high < -_LARGEST)
    return "" if is_empty else f"/{integers(low, high)}/ | "


def at_least(low: Fraction, *, is_open: bool) -> str:
    """Return a regex of the numbers that are at least ``low``; above ``low`` if ``is_open``."""
    if low >= 0:
        zero = [rf"-0(?:\.0{_ZEROS})?"] if not low and not is_open else []
        return f"(?:{'|'.join([*zero, *_numbers_from(low, is_open=is_open)])})"
    alternatives = [f"{integers(0, None)}{_ANY_FRACTION}", *(f"-{each}" for each in _numbers_to(-low, is_open=is_open))]
    alternatives += _scientific_from(Fraction(0), is_open=False)
    return f"(?:{'|'.join(alternatives)})"


def at_most(high: Fraction, *, is_open: bool) -> str:
    """Return a regex of the numbers that are at most ``high``; below ``high`` if ``is_open``."""
    if high < 0:
        return f"(?:{'|'.join(f'-{each}' for each in _numbers_from(-high, is_open=is_open))})"
    above_zero = f"-(?:{'|'.join(_magnitudes_from(Fraction(0), is_open=True))})"
    alternatives = [f"-{integers(0, None)}{_ANY_FRACTION}" if high or not is_open else above_zero]
    alternatives += [f"-{each}" for each in _scientific_from(Fraction(0), is_open=False)]
    alternatives += _numbers_to(high, is_open=is_open)
    return f"(?:{'|'.join(alternatives)})"


def _numbers_from(low: Fraction, *, is_open: bool) -> list[str]:
    return [*_magnitudes_from(low, is_open=is_open), *_scientific_from(low, is_open=is_open)]


def _numbers_to(high: Fraction, *, is_open: bool) -> list[str]:
    return [*_magnitudes_to(high, is_open=is_open), *_scientific_to(high, is_open=is_open)]


def _scientific_from(low: Fraction, *, is_open: bool) -> list[str]:
    """Return regexes of the positive numbers with an exponent from a non-negative ``low`` up."""
    if not low:
        return [f"[1-9]{_ANY_FRACTION}[eE]{_exponents(-_MAX_EXPONENT, _MAX_EXPONENT)}"]
    power, whole, fraction = _normalized(low)
    digits = [f"[{whole + 1}-9]{_ANY_FRACTION}"] if whole < 9 else []
    digits += _same_whole_from(whole, fraction, is_open=is_open)
    alternatives = [("[1-9]" + _ANY_FRACTION, power + 1, _MAX_EXPONENT), (f"(?:{'|'.join(digits)})", power, power)]
    return _with_exponents(alternatives)


def _scientific_to(high: Fraction, *, is_open: bool) -> list[str]:
    """Return regexes of the positive numbers with an exponent up to a non-negative ``high``."""
    if not high:
        return []
    power, whole, fraction = _normalized(high)
    digits = [f"[1-{whole - 1}]{_ANY_FRACTION}"] if whole > 1 else []
    digits += _same_whole_to(whole, fraction, is_open=is_open)
    alternatives = [("[1-9]" + _ANY_FRACTION, -_MAX_EXPONENT, power - 1)]
    return _with_exponents([*alternatives, (f"(?:{'|'.join(digits)})", power, power)] if digits else alternatives)


def _with_exponents(alternatives: list[tuple[str, int, int]]) -> list[str]:
    """Return regexes of numbers with exponents, from (digits, lowest exponent, highest exponent), cut to the limit."""
    clamped = [(each, max(low, -_MAX_EXPONENT), min(high, _MAX_EXPONENT)) for each, low, high in alternatives]
    return [f"{each}[eE]{_exponents(low, high)}" for each, low, high in clamped if low <= high]


def _normalized(number: Fraction) -> tuple[int, int, str]:
    """Return the exponent, the digit before the point, and the digits after it."""
    whole, fraction = _digits(number)
    power = len(str(whole)) - 1 if whole else len(fraction.lstrip("0")) - len(fraction) - 1
    return power, *_digits(number / Fraction(10) ** power)


def _exponents(low: int, high: int) -> str:
    """Return a regex of the exponents of a range, with or without a plus sign and one zero in front."""
    alternatives = [f"-0?{each}" for each in _magnitudes(max(1, -high), -low)] if low < 0 else []
    alternatives += [rf"\+?0?{each}" for each in _magnitudes(max(low, 0), high)] if high >= 0 else []
    return f"(?:{'|'.join(alternatives)})"


def _magnitudes_from(low: Fraction, *, is_open: bool) -> list[str]:
    """Return regexes of the numbers without exponent from a non-negative ``low`` up."""
    whole, fraction = _digits(low)
    alternatives = [f"{integers(whole + 1, None)}{_ANY_FRACTION}"] if whole < _LARGEST else []
    return [*alternatives, *_same_whole_from(whole, fraction, is_open=is_open)]


def _same_whole_from(whole: int, fraction: str, *, is_open: bool) -> list[str]:
    """Return regexes of the numbers with this whole part whose decimals are at least ``fraction``."""
    if not fraction and not is_open:
        return [f"{whole}{_ANY_FRACTION}"]
    more = f"{_ZEROS}[1-9]{_MORE}" if is_open else _MORE
    return [rf"{whole}\.{fraction}{more}", *(rf"{whole}\.{each}{_MORE}" for each in _greater(fraction))]


def _magnitudes_to(high: Fraction, *, is_open: bool) -> list[str]:
    """Return regexes of the non-negative numbers without exponent up to ``high``."""
    whole, fraction = _digits(high)
    alternatives = [f"{integers(0, whole - 1)}{_ANY_FRACTION}"] if whole else []
    return [*alternatives, *_same_whole_to(whole, fraction, is_open=is_open)]


def _same_whole_to(whole: int, fraction: str, *, is_open: bool) -> list[str]:
    """Return regexes of the numbers with this whole part whose decimals are at most ``fraction``."""
    alternatives = []
    if not is_open:
        alternatives.append(rf"{whole}(?:\.{fraction}{_ZEROS})?" if fraction else rf"{whole}(?:\.0{_ZEROS})?")
    if fraction:
        alternatives.append(str(whole))
        alternatives += [rf"{whole}\.{beginning}" for beginning in _beginnings(fraction)]
        alternatives += [rf"{whole}\.{each}{_MORE}" for each in _less(fraction)]
    return alternatives


def _beginnings(digits: str) -> list[str]:
    """Return regexes of the proper, non-empty prefixes of some digits: one for each run of equal digits."""
    alternatives = []
    for digit, start, end in _runs(digits):
        longest = end - start - (end == len(digits))
        alternatives += [f"{digits[:start]}{digit}{{1,{longest}}}"] if longest else []
    return alternatives


def _runs(digits: str) -> list[tuple[str, int, int]]:
    """Return the runs of equal digits as (digit, start, end). Doubles next to short decimals have long runs."""
    lengths = [(digit, len(list(run))) for digit, run in groupby(digits)]
    ends = accumulate(length for _, length in lengths)
    return [(digit, end - length, end) for (digit, length), end in zip(lengths, ends, strict=True)]


def _greater(digits: str) -> list[str]:
    """Return regexes of greater prefixes: for each run of equal digits, a part of the run, then a larger digit."""
    return [
        f"{digits[:start]}{_up_to(digit, end - start - 1)}[{int(digit) + 1}-9]"
        for digit, start, end in _runs(digits)
        if digit < "9"
    ]


def _less(digits: str) -> list[str]:
    return [
        f"{digits[:start]}{_up_to(digit, end - start - 1)}[0-{int(digit) - 1}]"
        for digit, start, end in _runs(digits)
        if digit > "0"
    ]


def _up_to(digit: str, count: int) -> str:
    return f"{digit}{{0,{count}}}" if count else ""


def _digits(number: Fraction) -> tuple[int, str]:
    """Return the whole part and the digits after the point; JSON numbers have finitely many."""
    whole, rest = divmod(number.numerator, number.denominator)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, number.denominator)
        digits += str(digit)
    return whole, digits


def integers(low: int | None, high: int | None) -> str:
    """Return a regex of the integers from ``low`` to ``high`` (None: unbounded), as JSON spells them."""
    low = -_LARGEST if low is None else max(low, -_LARGEST)
    high = _LARGEST if high is None else min(high, _LARGEST)
    if (low, high) == (-_LARGEST, _LARGEST):
        return f"-?(?:{'|'.join(_magnitudes(0, high))})"
    alternatives = [f"-{each}" for each in _magnitudes(max(1, -high), -low)] if low < 0 else []
    if high >= 0:
        alternatives += _magnitudes(max(low, 0), high)
    return f"(?:{'|'.join(alternatives)})"


def _magnitudes(low: int, high: int) -> list[str]:
    """Return regexes of the non-negative integers of a range, by number of digits."""
    first, last = str(low), str(high)
    if set(last) == {"9"} and set(first[1:]) <= {"0"} and first[0] in "01":
        alternatives = [f"[1-9][0-9]{{{len(first) - 1},{len(last) - 1}}}"]
        return ["0", *alternatives] if first == "0" else alternatives
    if len(first) == len(last):
        return _same_length(first, last)
    between = [f"[1-9][0-9]{{{len(first)},{len(last) - 2}}}"] if len(last) - len(first) > 1 else []
    return [*_same_length(first, "9" * len(first)), *between, *_same_length("1" + "0" * (len(last) - 1), last)]


def _same_length(first: str, last: str) -> list[str]:
    """Return regexes of the numbers from ``first`` to ``last``, which have the same number of digits."""
    shared = len(list(takewhile(bool, map(eq, first, last))))
    prefix, first, last = first[:shared], first[shared:], last[shared:]
    if not first:
        return [prefix]
    rest = len(first) - 1
    alternatives: list[str] = []
    low, high = int(first[0]), int(last[0])
    if rest and set(first[1:]) != {"0"}:
        alternatives += [
            f"{prefix}{first[0]}{each}" for each in (first[1:], *_padded(_greater_places(first[1:]), rest))
        ]
        low += 1
    if rest and set(last[1:]) != {"9"}:
        alternatives += [f"{prefix}{last[0]}{each}" for each in (last[1:], *_padded(_less_places(last[1:]), rest))]
        high -= 1
    return (
        [*alternatives, *_padded([f"{prefix}[{low}-{high}]"], len(prefix) + rest + 1)] if low <= high else alternatives
    )


def _greater_places(digits: str) -> list[str]:
    """Return regexes of greater prefixes: for each index, the digits before it, then a larger digit."""
    return [f"{digits[:index]}[{int(digit) + 1}-9]" for index, digit in enumerate(digits) if digit < "9"]


def _less_places(digits: str) -> list[str]:
    return [f"{digits[:index]}[0-{int(digit) - 1}]" for index, digit in enumerate(digits) if digit > "0"]


def _padded(beginnings: list[str], length: int) -> list[str]:
    """Extend regexes that end in a class of one digit by any further digits, to ``length`` digits in all."""
    counts = [length - each.index("[") - 1 for each in beginnings]
    return [f"{each}[0-9]{{{count}}}" if count else each for each, count in zip(beginnings, counts, strict=True)]
