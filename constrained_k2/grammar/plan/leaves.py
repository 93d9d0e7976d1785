"""Plans strings and numbers as terminals; drops constraints that have no exact or affordable terminal.

{"type": "string", "pattern": "^a"}     /"a(?:CHARACTER)*"/; CHARACTER also matches an escape
{"type": "integer", "minimum": 3}       /(?:[3-9]|[1-9][0-9]{1,38}|[1-9][0-9]{39})/
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, Protocol, TypeGuard

from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.states import span_of
from constrained_k2.grammar.patterns.translation import found_anywhere, may_cost_much
from constrained_k2.grammar.plan.digits import MAX_DIGITS, number_range
from constrained_k2.grammar.plan.expressions import one_of, sized_string
from constrained_k2.grammar.plan.nodes import NEGATING, KeywordNote, NumberPlan, StringPlan, Wider
from constrained_k2.grammar.spelling import JSON, Spelling
from constrained_k2.schema.doubles import LARGEST_EXACT
from constrained_k2.schema.shapes import ListedValue, Number, Shape, String
from constrained_k2.schema.string_formats import patterns_of

Effort = Literal["exact", "narrow", "relaxed"]
"""The precision of a grammar: ``narrow`` shortens strings with patterns, ``relaxed`` drops patterns and formats."""

INTEGERS = KeywordNote(
    ("type", "multipleOf"), "narrowed", "1.0 and 1e3, which JSON Schema counts as integers, are never written"
)
INTEGER: Final = str(number_range(Number(integer=True)))
"""The body of the terminal for any integer."""
_DIGITS = f"[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
_INTEGER_ONCE = f"/0|-?{_DIGITS}/"
_NUMBER_ONCE = rf"/0|-?{_DIGITS}|-?(?:0|{_DIGITS})\.[0-9]{{0,{MAX_DIGITS - 1}}}[1-9]/"
_LARGEST_MULTIPLE = 10_000  # in units of its last decimal: LLGuidance has a state for each remainder
_MOST_TOGETHER, _MOST_RANGES = 1000, 64  # a step with 300 ranges takes 40 ms
_LONGEST_TERMINAL = 1 << 14  # characters of the longest string of one terminal
_EASY_LENGTH = 256  # max characters of a string with a pattern in a fallback grammar
_LONG = 512  # characters: LLGuidance tokenizes a forced text of this length in 1 ms, at each token


class CanBegin(Protocol):
    """Returns True if the engine can begin a string of a terminal with ``opening``: some patterns fail at once."""

    def __call__(self, expression: str, opening: str, *, is_long: bool) -> bool:
        """Ask the engine."""


@dataclass(slots=True)
class NumbersSoFar:
    """Totals over a node's numbers that are planned so far: numbers in one node cost the engine more than apart."""

    ranges: int = 0
    common: int = 1  # common multiple of all multiples, without decimal points


def string_expression(shape: String, form: Spelling = JSON) -> str | Wider:
    """Return the body of a terminal for strings of a shape, quotes included, each value in its one spelling."""
    longest, quote = "" if shape.longest is None else str(shape.longest), form.quote
    parts = [f"/{quote}{form.character}{{{shape.shortest},{longest}}}{quote}/"] if shape.shortest or longest else []
    demands = [("", pattern) for pattern in (*sorted(shape.patterns), *patterns_of(shape.formats))]
    for sign, pattern in [*demands, *(("~", pattern) for pattern in sorted(shape.absent))]:
        try:
            parts.append(sign + found_anywhere(pattern, form))
        except Untranslatable as error:
            without = replace(shape, patterns=shape.patterns - {pattern}, absent=shape.absent - {pattern})
            reason = f"this package has no grammar of the pattern {pattern[:60]!r}: {error}"
            return Wider(without, ("pattern",), reason)
    parts += [f"~{one_of(sorted(shape.excluded), form)}"] if shape.excluded else []
    if not (parts and shape.shortest + bool(longest) + len(shape.patterns) + len(shape.formats)):
        parts.insert(0, form.terminal)  # only exclusions: start from all strings
    return " & ".join(parts)


def leaf_has_value(shape: String | Number, has_match: Callable[[str], bool]) -> bool:
    """Return True if some value satisfies a shape: patterns, lengths and exclusions may contradict each other."""
    if isinstance(shape, String):
        demands = len(shape.patterns) + len(shape.formats) + len(shape.absent) + bool(shape.excluded)
        if not demands or is_endless(shape):
            return True
        expression = string_expression(shape)
        if isinstance(expression, Wider):
            return True
        others = bool(shape.shortest) + (shape.longest is not None)
        return (demands + others == 1 and " & " not in expression) or has_match(expression)
    is_certain = not shape.fraction and (shape.integer or not _has_far_range(shape))
    if is_certain or shape.multiple:
        return True
    expression = number_range(shape)
    return isinstance(expression, Wider) or has_match(expression)


def _has_far_range(shape: Number) -> bool:
    """Return True if both bounds are so far from zero that there may be no double between them."""
    return shape.low is not None and shape.high is not None and shape.low * shape.high > LARGEST_EXACT**2


def is_endless(shape: String) -> bool:
    """Return True if all long strings satisfy a shape, except finitely many excluded values."""
    return shape.longest is None and not (shape.patterns or shape.absent or shape.formats)


def is_long(shape: String) -> bool:
    """Return True if patterns may force a text of more than :data:`_LONG` characters."""
    if shape.shortest > _LONG and (shape.patterns or shape.absent or shape.formats):
        return True
    return any(span_of(pattern) > _LONG for pattern in shape.patterns | shape.absent)


def is_text(shape: Shape) -> TypeGuard[ListedValue]:
    """Return True for a listed string."""
    return isinstance(shape, ListedValue) and shape.value_kind == "string"


def is_in_parts(shape: String) -> bool:
    """Return True if a shape has only lengths, and one of them is too large for a single terminal."""
    too_large = max(shape.shortest, shape.longest or 0) > _LONGEST_TERMINAL
    return too_large and shape == String(shape.shortest, shape.longest)


def plan_string(shape: String, form: Spelling, effort: Effort, can_begin: CanBegin) -> StringPlan | Wider:
    """Plan strings: in any spelling if only the length matters, else each string in its one spelling."""
    shape, notes = _cheaper(shape, effort)
    if shape == String() or is_in_parts(shape):
        return StringPlan(shape, notes=notes)
    if form is JSON and shape == String(shape.shortest, shape.longest):
        return StringPlan(shape, sized_string(shape.shortest, shape.longest), notes=notes)
    expression = string_expression(shape, form)
    if isinstance(expression, Wider):
        return expression
    patterns = shape.patterns | shape.absent
    costly = patterns if shape.formats else frozenset(filter(may_cost_much, patterns))  # a format's pattern is long
    if costly and not can_begin(expression, form.quote, is_long=is_long(shape)):
        beside = " beside a format" if shape.formats else ""
        reason = f"the pattern {min(costly)[:60]!r}{beside} costs the engine too much"
        without = replace(shape, patterns=shape.patterns - costly, absent=shape.absent - costly)
        return Wider(without, ("pattern",), reason)
    # If several terminals match at once, their states multiply. LLGuidance's limits count the expressions of each
    # terminal, not these states. So strings are joined into one terminal. Strings with absent patterns are not: such
    # a pattern makes an expression for each state anyway.
    return StringPlan(shape, expression, is_joined=not shape.absent, notes=notes)


def _cheaper(shape: String, effort: Effort) -> tuple[String, tuple[KeywordNote, ...]]:
    """Return a shape that costs the lexer less, if the precision asks for it."""
    if effort == "exact" or not (shape.patterns or shape.absent or shape.formats):
        return shape, ()
    if effort == "relaxed":
        note = KeywordNote(("pattern", "format"), "relaxed", "the pattern costs the engine too much")
        return replace(shape, patterns=frozenset(), absent=frozenset(), formats=frozenset()), (note,)
    if shape.longest is None or not shape.shortest <= _EASY_LENGTH < shape.longest:
        return shape, ()
    reason = f"beside a pattern, no more than {_EASY_LENGTH} characters are written"
    return replace(shape, longest=_EASY_LENGTH), (KeywordNote(("maxLength",), "narrowed", reason),)


def plan_number(shape: Number, beside: NumbersSoFar) -> NumberPlan | Wider:
    """Plan numbers of one shape; ``beside`` counts the numbers of the same node that are planned so far."""
    notes: tuple[KeywordNote, ...] = (INTEGERS,) if shape.integer else ()
    if shape.multiple:
        return _plan_multiples(shape, beside, notes)
    if shape.fraction:
        reason = "numbers that must not be integers are written with at most 15 digits: readers round longer ones"
        notes += (KeywordNote(NEGATING, "narrowed", reason),)
    expression = number_expression(shape, shape)
    if isinstance(expression, Wider):
        return expression
    if expression and (shape.low, shape.high) != (None, None):
        beside.ranges += 1
        if beside.ranges > _MOST_RANGES:
            reason = f"more than {_MOST_RANGES} ranges of numbers cost the engine too much"
            keywords = ("not", "oneOf", "anyOf", "minimum", "maximum")
            return Wider(replace(shape, low=None, high=None), keywords, reason)
    return NumberPlan(shape, expression, notes)


def number_expression(shape: Number, part: Number) -> str | Wider:
    """Return the body of a terminal for a part of the numbers of a shape; empty for any number."""
    spelled, found = "" if not shape.once else _INTEGER_ONCE if shape.integer else _NUMBER_ONCE, number_range(part)
    return found if isinstance(found, Wider) else " & ".join(filter(None, (spelled, found)))


def _plan_multiples(shape: Number, beside: NumbersSoFar, notes: tuple[KeywordNote, ...]) -> NumberPlan | Wider:
    if shape.fraction:
        keywords = ("not", "type", "oneOf", "multipleOf")
        return Wider(replace(shape, fraction=False), keywords, "integers cannot be excluded from multiples")
    coefficient, decimals = without_point(shape.multiple)
    reason, most = "", _MOST_TOGETHER if decimals else _LARGEST_MULTIPLE
    if coefficient > most:
        reason = f"multiples of a number whose digits, without the point, exceed {most} take too many states"
    elif (common := math.lcm(beside.common, coefficient)) > max(coefficient, _MOST_TOGETHER):
        reason = f"alternatives with a common multiple of more than {_MOST_TOGETHER} take too many states"
    elif not is_read_exactly(shape.multiple):
        reason = f"the engine reads {decimal(shape.multiple)} as a number with more digits"
    if reason:
        return Wider(replace(shape, multiple=Fraction(0)), ("multipleOf",), reason)
    beside.common = common
    bounds = ("minimum", "maximum")
    if (shape.low or 0) > LARGEST_EXACT or (shape.high or 0) < -LARGEST_EXACT:
        return Wider(replace(shape, low=None, high=None), bounds, "multiples beyond 2^53 cannot be checked")
    if (shape.high or 0) > LARGEST_EXACT or (shape.low or 0) < -LARGEST_EXACT:
        notes += (KeywordNote(bounds, "narrowed", "multiples beyond 2^53 are not written"),)
    return NumberPlan(shape, notes=notes)


def without_point(multiple: Fraction) -> tuple[int, int]:
    """Return a decimal without its point, and the number of its decimals."""
    decimals = 0
    while multiple.denominator != 1:
        multiple, decimals = multiple * 10, decimals + 1
    return int(multiple), decimals


def is_read_exactly(multiple: Fraction) -> bool:
    """True unless rounding adds digits: LLGuidance (1.7.6) multiplies a double by ten until it is whole."""
    value, power = float(multiple), 1
    while value % 1:
        value, power = value * 10, power * 10
    return Fraction(value) == multiple * power


def decimal(number: Fraction) -> int | float:
    """Return a fraction as a JSON number."""
    return int(number) if number.denominator == 1 else float(number)
