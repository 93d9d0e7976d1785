"""Strings and numbers: terminals of ours where they can be, else LLGuidance's own ``%json``."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from constrained_k2.grammar.cannot_write import CannotWrite
from constrained_k2.grammar.digits import number_range
from constrained_k2.grammar.patterns import Untranslatable, found_anywhere
from constrained_k2.grammar.terminals import CHARACTER, one_of
from constrained_k2.schema.formats import patterns_of
from constrained_k2.schema.own_compilers import LARGEST_EXACT, LARGEST_MULTIPLE
from constrained_k2.schema.shapes import Number, String

if TYPE_CHECKING:
    from constrained_k2.grammar.lark import LarkWriter

_LEAF = {"x-guidance": {"whitespace_flexible": False}}  # so that all lexemes stay in one class


def string_expression(shape: String) -> str:
    """A terminal's expression for strings of a shape, quotes included, each value in its one spelling.

    Raises:
        CannotWrite: A pattern has no counterpart on JSON's spelling.
    """
    longest = "" if shape.longest is None else str(shape.longest)
    parts = [rf'/"{CHARACTER}{{{shape.shortest},{longest}}}"/'] if shape.shortest or longest else []
    wanted = (*sorted(shape.patterns), *patterns_of(shape.formats))
    parts += (_found_anywhere(shape, pattern) for pattern in wanted)
    parts += (f"~{_found_anywhere(shape, pattern)}" for pattern in sorted(shape.absent))
    if shape.excluded:
        parts.append(f"~{one_of(sorted(shape.excluded))}")
    if not (parts and shape.shortest + bool(longest) + len(shape.patterns) + len(shape.formats)):
        parts.insert(0, "PLAIN")  # what is only excluded leaves all others
    return " & ".join(parts)


def _found_anywhere(shape: String, pattern: str) -> str:
    try:
        return found_anywhere(pattern)
    except Untranslatable as error:
        without = replace(shape, patterns=shape.patterns - {pattern}, absent=shape.absent - {pattern})
        reason = f"the pattern {pattern[:60]!r} beside others, exclusions or a negation: {error}"
        raise CannotWrite(reason, ("pattern",), without) from error


def leaf_can_be(shape: String | Number, has_match: Callable[[str], bool]) -> bool:
    """Whether a string or number of a shape exists: patterns, lengths and exclusions may contradict each other.

    Args:
        shape: The shape.
        has_match: Whether any text matches a terminal's expression.
    """
    try:
        if isinstance(shape, String):
            return not _is_intersection(shape) or has_match(string_expression(shape))
        return not shape.fraction or bool(shape.multiple) or has_match(number_range(shape))
    except CannotWrite:
        return True  # something wider is written, if at all


def number_rule(writer: "LarkWriter", shape: Number) -> str:
    """The body of a rule for numbers."""
    if shape.integer:
        writer.note(("type", "multipleOf"), "narrowed", "1.0, an integer to JSON Schema, is never written")
    if not shape.multiple:
        expression = number_range(shape)
        return writer.terminal(expression) if expression else "NUMBER"
    if shape.fraction:
        reason = "fractions cannot be told from integers among multiples"
        raise CannotWrite(reason, ("not", "type", "oneOf", "multipleOf"), replace(shape, fraction=False))
    # LLGuidance (1.7.6) writes no negative multiples: they are written as a sign and the multiple.
    ways = []
    if shape.high is None or shape.high >= 0:
        ways.append(_multiples(writer, shape, shape.low, shape.high))
    if shape.low is None or shape.low < 0:
        ways.append(f'"-" {_multiples(writer, shape, _negated(shape.high), _negated(shape.low))}')
    return " | ".join(ways)


def _multiples(writer: "LarkWriter", shape: Number, low: Fraction | None, high: Fraction | None) -> str:
    """The non-negative multiples in a range, whose bounds are multiples themselves."""
    if _coefficient(shape.multiple) > LARGEST_MULTIPLE:
        reason = f"a multiple of more than {LARGEST_MULTIPLE} (its decimals counted) costs too much to keep"
        raise CannotWrite(reason, ("multipleOf",), replace(shape, multiple=Fraction(0)))
    schema: dict[str, Any] = {"type": "integer" if shape.integer else "number", "minimum": 0}
    schema["multipleOf"] = _decimal(shape.multiple)
    for name, bound in (("minimum", low), ("maximum", high)):
        if bound is not None and (bound > 0 or name == "maximum"):
            if bound > LARGEST_EXACT and name == "minimum":
                without = replace(shape, low=None, high=None)
                raise CannotWrite("multiples beyond 2^53 are not told apart", (name, "maximum"), without)
            schema[name] = _decimal(min(bound, Fraction(LARGEST_EXACT)))
            if bound > LARGEST_EXACT:
                writer.note(("minimum", "maximum"), "narrowed", "multiples beyond 2^53 are not written")
    return _leaf(schema)


def string_rule(writer: "LarkWriter", shape: String) -> str:
    """A string: in any spelling where only its length matters, else in the one spelling that patterns know."""
    if shape == String():
        return "STRING"
    if not (shape.excluded or shape.absent or shape.patterns or shape.formats):
        return _leaf({"type": "string"} | _sizes(shape))
    try:
        return writer.terminal(string_expression(shape))
    except CannotWrite as error:
        if shape.excluded or shape.absent:
            raise
        reason = f"{error}; the engine's own reading may let a quote or backslash through that a class excludes"
        writer.note(error.keywords, "relaxed", reason)
    # A class without the quote or the backslash lets them through (LLGuidance 1.7.6): hence not the first choice.
    patterns = [{"pattern": pattern} for pattern in sorted({*shape.patterns, *patterns_of(shape.formats)})]
    return _leaf({"type": "string", "allOf": patterns} | _sizes(shape))


def _leaf(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(_LEAF | schema)}"


def _is_intersection(shape: String) -> bool:
    """Whether a string must be several things at once, so that none may be all of them."""
    demands = len(shape.patterns) + len(shape.formats) + len(shape.absent) + bool(shape.excluded)
    return demands + bool(shape.shortest) + (shape.longest is not None) > 1 and demands > 0


def _sizes(shape: String) -> dict[str, int]:
    shortest = {"minLength": shape.shortest} if shape.shortest else {}
    return shortest if shape.longest is None else shortest | {"maxLength": shape.longest}


def _coefficient(number: Fraction) -> int:
    """A decimal number without its point."""
    while number.denominator != 1:
        number *= 10
    return number.numerator


def _negated(number: Fraction | None) -> Fraction | None:
    return None if number is None else -number


def _decimal(number: Fraction) -> int | float:
    if number.denominator == 1:
        return int(number)
    return float(Decimal(number.numerator) / Decimal(number.denominator))
