"""Strings and numbers as terminals; multiples as LLGuidance's builtin ``%json``.

{"type": "string", "pattern": "^a"}     T0: /"a(?:CHARACTER)*"/, where a character may be an escape
{"multipleOf": 0.01}                    %json {"type": "number", "multipleOf": 0.01}
"""

import json
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeGuard

from constrained_k2.grammar.lark.digits import MAX_DIGITS, number_range
from constrained_k2.grammar.lark.direct_model import MANY_TEXTS
from constrained_k2.grammar.lark.terminals import ANY_CHARACTER, NEGATING, NoExactGrammar, literal, one_of, sized_string
from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.states import span_of
from constrained_k2.grammar.patterns.translation import found_anywhere, may_cost_much
from constrained_k2.grammar.spelling import JSON, RAW, Spelling
from constrained_k2.schema.doubles import LARGEST_EXACT
from constrained_k2.schema.shapes import Node, Number, Shape, String, Value, common_multiple, meet, tighten
from constrained_k2.schema.string_formats import patterns_of

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

INTEGER = number_range(Number(integer=True))
"""The terminal's expression for any integer."""
_UNSIGNED = "/[0-9].*/"  # an expression for what has no sign
_DIGITS = f"[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
_INTEGER_ONCE = f"/0|-?{_DIGITS}/"
_NUMBER_ONCE = rf"/0|-?{_DIGITS}|-?(?:0|{_DIGITS})\.[0-9]{{0,{MAX_DIGITS - 1}}}[1-9]/"
_LARGEST_MULTIPLE = 10_000  # counted in its last decimal: LLGuidance has a state for each remainder
_MAX_DECIMALS = 8  # of a multiple whose trailing zeros may be left out: each takes an alternative
_MOST_TOGETHER, _MOST_RANGES = 1000, 64  # a step with 300 ranges takes 40 ms
_LONGEST_TERMINAL, _PART = 1 << 14, 1 << 10  # characters: the longest string of one terminal, the parts of longer ones
_EASY_LENGTH = 256  # of a string with a pattern, where its lexer fails
_LONG = 512  # characters: LLGuidance tokenizes a forced text of this length in 1 ms, at each token
_LEAF = {"x-guidance": {"whitespace_flexible": False}}  # so that all lexemes stay in one class


def string_expression(shape: String, form: Spelling = JSON) -> str:
    """Return a terminal's expression for strings of a shape, quotes included, each value in its one spelling."""
    longest, quote = "" if shape.longest is None else str(shape.longest), form.quote
    parts = [f"/{quote}{form.character}{{{shape.shortest},{longest}}}{quote}/"] if shape.shortest or longest else []
    parts += (_found_anywhere(shape, found, form) for found in (*sorted(shape.patterns), *patterns_of(shape.formats)))
    parts += (f"~{_found_anywhere(shape, pattern, form)}" for pattern in sorted(shape.absent))
    parts += [f"~{one_of(sorted(shape.excluded), form)}"] if shape.excluded else []
    if not (parts and shape.shortest + bool(longest) + len(shape.patterns) + len(shape.formats)):
        parts.insert(0, form.terminal)  # only exclusions: start from all strings
    return " & ".join(parts)


def _found_anywhere(shape: String, pattern: str, form: Spelling) -> str:
    try:
        return found_anywhere(pattern, form)
    except Untranslatable as error:
        without = replace(shape, patterns=shape.patterns - {pattern}, absent=shape.absent - {pattern})
        reason = f"this package has no grammar of the pattern {pattern[:60]!r}: {error}"
        raise NoExactGrammar(reason, ("pattern",), without) from error


def leaf_has_value(shape: String | Number, has_match: Callable[[str], bool]) -> bool:
    """Return True if some string or number has a shape: patterns, lengths and exclusions may contradict each other."""
    try:
        if isinstance(shape, String):
            if is_endless(shape):
                return True
            demands = len(shape.patterns) + len(shape.formats) + len(shape.absent) + bool(shape.excluded)
            others = bool(shape.shortest) + (shape.longest is not None)
            if not demands:
                return True
            expression = string_expression(shape)
            return (demands + others == 1 and " & " not in expression) or has_match(expression)
        is_certain = not shape.fraction and (shape.integer or not _has_far_range(shape))
        return is_certain or bool(shape.multiple) or has_match(number_range(shape))
    except NoExactGrammar:
        return True  # a wider shape is written, if any


def _has_far_range(shape: Number) -> bool:
    """Return True if both bounds are so far from zero that there may be no double between them."""
    return shape.low is not None and shape.high is not None and shape.low * shape.high > LARGEST_EXACT**2


def is_endless(shape: String) -> bool:
    """Return True if a string has a shape because all long ones do: excluded values are finitely many."""
    return shape.longest is None and not (shape.patterns or shape.absent or shape.formats)


def is_long(shape: String) -> bool:
    """Return True if patterns may force a text of more than :data:`_LONG` characters."""
    if shape.shortest > _LONG and (shape.patterns or shape.absent or shape.formats):
        return True
    return any(span_of(pattern) > _LONG for pattern in shape.patterns | shape.absent)


def note_integers(writer: "LarkWriter", keywords: tuple[str, ...] = ("type", "multipleOf")) -> None:
    """Note how the integers of the node that is being written are spelled."""
    writer.note(keywords, "narrowed", "1.0 and 1e3, integers to JSON Schema, are never written")


def number_rule(writer: "LarkWriter", shape: Number) -> str:
    """Return the body of a rule for numbers."""
    if shape.integer:
        note_integers(writer)
    if not shape.multiple:
        if shape.fraction:
            reason = "numbers that must not be integers are written with at most 15 digits: readers round longer ones"
            writer.note(NEGATING, "narrowed", reason)
        expression = _number_expression(shape, shape)
        if not expression:
            return writer.any_number
        writer.ranges[writer.node] += 1
        if writer.ranges[writer.node] > _MOST_RANGES:
            reason = f"more than {_MOST_RANGES} ranges of numbers cost the engine too much"
            wider = replace(shape, low=None, high=None)
            raise NoExactGrammar(reason, ("not", "oneOf", "anyOf", "minimum", "maximum"), wider)
        if not shape.once:  # such states differ by all of a number's digits: LLGuidance is faster
            writer.model.terminals[shape] = expression
        if not writer.signs_apart:
            return writer.terminal(expression)
        return _by_sign(
            shape,
            lambda half: writer.terminal(f"{_number_expression(shape, half)} & {_UNSIGNED}"),
            zero_below=not shape.once,
        )
    if shape.fraction:
        reason = "integers cannot be excluded from multiples"
        raise NoExactGrammar(reason, ("not", "type", "oneOf", "multipleOf"), replace(shape, fraction=False))
    _check_multiple(writer, shape)
    writer.model.has_builtin = True
    return _by_sign(shape, _multiples)


def _number_expression(shape: Number, part: Number) -> str:
    """Return a terminal's expression for a part of the numbers of a shape; empty for any number."""
    spelled = "" if not shape.once else _INTEGER_ONCE if shape.integer else _NUMBER_ONCE
    return " & ".join(filter(None, (spelled, number_range(part))))


def _by_sign(shape: Number, write: Callable[[Number], str], *, zero_below: bool = True) -> str:
    """Return the body of a rule with the sign as a terminal of its own.

    ``write`` writes a range from zero up; ``zero_below``: zero may have a sign.
    """
    low, high = (None if bound is None else -bound for bound in (shape.high, shape.low))
    mirrored = replace(shape, low=low, low_open=shape.high_open, high=high, high_open=shape.low_open)
    zero = Fraction(0)
    halves = (meet(shape, Number(low=zero)), meet(mirrored, Number(low=zero, low_open=not zero_below)))
    above, below = (write(half) if isinstance(half, Number) else "" for half in halves)
    if above == below:
        return f'"-"? {above}'
    return " | ".join(filter(None, (above, below and f'"-" {below}')))


def _check_multiple(writer: "LarkWriter", shape: Number) -> None:
    """Raise NoExactGrammar if the engine cannot write the multiples of a shape; note what is not written."""
    coefficient, decimals = _without_point(shape.multiple)
    reason, most = "", _MOST_TOGETHER if decimals else _LARGEST_MULTIPLE
    if coefficient > most:
        reason = f"multiples of more than {most} (without the decimal point) take too many states"
    elif (common := math.lcm(writer.multiples.get(writer.node, 1), coefficient)) > max(coefficient, _MOST_TOGETHER):
        reason = f"alternatives with a common multiple of more than {_MOST_TOGETHER} take too many states"
    elif not _is_read_exactly(shape.multiple):
        reason = f"the engine reads {_decimal(shape.multiple)} as a number with more digits"
    if reason:
        raise NoExactGrammar(reason, ("multipleOf",), replace(shape, multiple=Fraction(0)))
    writer.multiples[writer.node] = common
    bounds = ("minimum", "maximum")
    if (shape.low or 0) > LARGEST_EXACT or (shape.high or 0) < -LARGEST_EXACT:
        raise NoExactGrammar("multiples beyond 2^53 cannot be checked", bounds, replace(shape, low=None, high=None))
    if (shape.high or 0) > LARGEST_EXACT or (shape.low or 0) < -LARGEST_EXACT:
        writer.note(bounds, "narrowed", "multiples beyond 2^53 are not written")


def _without_point(multiple: Fraction) -> tuple[int, int]:
    """Return a decimal without its point, and the number of its decimals."""
    decimals = 0
    while multiple.denominator != 1:
        multiple, decimals = multiple * 10, decimals + 1
    return int(multiple), decimals


def _multiples(shape: Number) -> str:
    """Return the grammar of the multiples in a range from zero up.

    LLGuidance (1.7.6) writes all decimals of ``multipleOf`` or none. So for each number of decimals there is an
    alternative with the multiples that have no more: 1.50 is a multiple of 0.25, and 1.5 one of 0.5.
    """
    kind, low, high = "integer" if shape.integer else "number", shape.low, shape.high
    if high is not None:
        high = min(high, Fraction(LARGEST_EXACT))
    _, decimals = _without_point(shape.multiple)
    fewer = range(1, decimals) if decimals <= _MAX_DECIMALS else ()
    steps = [*(common_multiple(shape.multiple, Fraction(1, 10**count)) for count in fewer), shape.multiple]
    ways = []
    for step in steps:
        number = tighten(Number(low=low, high=high, multiple=step))
        if number is not None and number.low is not None and _is_read_exactly(step):
            schema = {"type": kind, "minimum": _decimal(number.low), "multipleOf": _decimal(step)}
            ways.append(_leaf(schema if number.high is None else schema | {"maximum": _decimal(number.high)}))
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _is_read_exactly(multiple: Fraction) -> bool:
    """True unless rounding adds digits: LLGuidance (1.7.6) multiplies a double by ten until it is whole."""
    value, power = float(multiple), 1
    while value % 1:
        value, power = value * 10, power * 10
    return Fraction(value) == multiple * power


def _eased(writer: "LarkWriter", shape: String) -> String:
    """Return a shape that costs a lexer less, if the writer is to write such ones."""
    if writer.effort == "exact" or not (shape.patterns or shape.absent or shape.formats):
        return shape
    if writer.effort == "relaxed":
        writer.note(("pattern", "format"), "relaxed", "the pattern costs the engine too much")
        return replace(shape, patterns=frozenset(), absent=frozenset(), formats=frozenset())
    if shape.longest is None or not shape.shortest <= _EASY_LENGTH < shape.longest:
        return shape
    writer.note(("maxLength",), "narrowed", f"beside a pattern, no more than {_EASY_LENGTH} characters are written")
    return replace(shape, longest=_EASY_LENGTH)


def string_rule(writer: "LarkWriter", shape: String) -> str:
    """Return the body of a rule for strings: in any spelling if only the length matters, else in the one spelling."""
    shape = _eased(writer, shape)
    if shape == String():
        return "STRING"
    if not (shape.excluded or shape.absent or shape.patterns or shape.formats):
        if _is_in_parts(shape):
            quote = literal(JSON.quote)
            return f"{quote} {_in_parts(writer, shape, ANY_CHARACTER)} {quote}"
        return writer.terminal(sized_string(shape.shortest, shape.longest))
    expression = writer.model.terminals[shape] = writable(writer, shape)
    return _string(writer, shape, expression)


def _is_in_parts(shape: String) -> bool:
    """Return True if a length is too large for the count of one terminal."""
    return max(shape.shortest, shape.longest or 0) > _LONGEST_TERMINAL


def _in_parts(writer: "LarkWriter", shape: String, character: str) -> str:
    """Return the body of a rule for the characters of long strings, counted in parts of 1,024.

    16,500 characters are 16 parts and 116 more. LLGuidance's lexer makes some expressions for each counted character of
    a terminal, and at most 250,000.
    """
    parts, more = divmod(shape.shortest, _PART)
    ways: list[tuple[int, int, int, int | None]] = [(parts, parts, more, None)]
    if shape.longest is not None:
        most, rest = divmod(shape.longest, _PART)
        ways = [(parts, parts, more, rest)]
        if parts < most:
            ways = [(parts, parts, more, _PART - 1), (parts + 1, most - 1, 0, _PART - 1), (most, most, 0, rest)]

    def several(least: int, most: int | None) -> str:
        text = writer.terminal(f"/{character}{{{max(least, 1)},{'' if most is None else most}}}/")
        return text if least else f"({text})?"

    return writer.choice(
        [
            " ".join([f"{several(_PART, _PART)}{{{low},{high}}}"] * (high > 0) + [several(least, most)] * (most != 0))
            or '""'
            for low, high, least, most in ways
            if low <= high
        ]
    )


def _string(writer: "LarkWriter", shape: String, expression: str) -> str:
    """Return the body of a rule for strings; empty if they become one terminal with others of the node.

    The states of terminals that are read at once multiply, and LLGuidance's limits count the expressions that each of
    them makes, not these states. Strings that exclude each other's patterns make one for each state anyway.
    """
    if shape.absent:
        return writer.terminal(expression)
    writer.strings[expression] = None
    return ""


def is_text(shape: Shape) -> TypeGuard[Value]:
    """Return True for one string of a list."""
    return isinstance(shape, Value) and isinstance(shape.value, str)


def listed_strings(shapes: Iterable[Shape], form: Spelling) -> list[str]:
    """Return the expression of a long list's strings; none if they are few enough to be alternatives of a rule."""
    texts = [shape.value for shape in shapes if is_text(shape)]
    return [one_of(sorted(texts), form)] if len(texts) > MANY_TEXTS else []


def joined_strings(writer: "LarkWriter", node: Node, expressions: Collection[str]) -> list[str]:
    """Return the terminal of a node's strings, if it has any."""
    if not expressions:
        return []
    several = len(expressions) > 1
    joined = " | ".join(f"({expression})" if several else expression for expression in expressions)
    writer.model.nodes[node].strings = joined
    return [writer.terminal(joined)]


def raw_string_rule(writer: "LarkWriter", shape: String | Value) -> str:
    """Return the body of a rule for strings without quotes and escapes."""
    if isinstance(shape, Value):
        return literal(shape.value)
    shape = _eased(writer, shape)
    if shape == String():
        return RAW.terminal
    if shape == String(shape.shortest, shape.longest) and _is_in_parts(shape):
        return _in_parts(writer, shape, RAW.character)
    return _string(writer, shape, writable(writer, shape, RAW))


def writable(writer: "LarkWriter", shape: String, form: Spelling = JSON) -> str:
    """Return a terminal's expression, where the engine can begin to write its strings."""
    expression = string_expression(shape, form)
    patterns = shape.patterns | shape.absent
    writer.has_long_texts |= (long := is_long(shape))
    costly = patterns if shape.formats else frozenset(filter(may_cost_much, patterns))  # a format's pattern is long
    if costly and not writer.can_begin(expression, form.quote, is_long=long):
        beside = " beside a format" if shape.formats else ""
        reason = f"the pattern {min(costly)[:60]!r}{beside} costs the engine too much"
        raise NoExactGrammar(
            reason, ("pattern",), replace(shape, patterns=shape.patterns - costly, absent=shape.absent - costly)
        )
    return expression


def _leaf(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(_LEAF | schema)}"


def _decimal(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)
