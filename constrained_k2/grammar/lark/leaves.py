"""Prints the plans of strings and numbers: terminals, and multiples as LLGuidance's builtin ``%json``.

StringPlan(…, '/"a.*"/')               T0: /"a.*"/
NumberPlan(Number(multiple=0.01))     %json {"type": "number", "minimum": 0, "multipleOf": 0.01}
"""

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from constrained_k2.grammar.lark.direct_model import MANY_TEXTS
from constrained_k2.grammar.lark.terminals import ANY_CHARACTER, literal, one_of
from constrained_k2.grammar.plan.leaves import (
    decimal,
    is_in_parts,
    is_long,
    is_read_exactly,
    is_text,
    number_expression,
    without_point,
)
from constrained_k2.grammar.plan.nodes import NumberPlan, StringPlan
from constrained_k2.grammar.spelling import JSON, RAW, Spelling
from constrained_k2.schema.doubles import LARGEST_EXACT
from constrained_k2.schema.shapes import Node, Number, Shape, String, common_multiple, meet, tighten

if TYPE_CHECKING:
    from constrained_k2.grammar.lark.writer import LarkWriter

_UNSIGNED = "/[0-9].*/"  # an expression for what has no sign
_MAX_DECIMALS = 8  # of a multiple whose trailing zeros may be left out: each takes an alternative
_PART = 1 << 10  # characters of the parts of long strings
_LEAF = {"x-guidance": {"whitespace_flexible": False}}  # so that all lexemes stay in one class


def number_body(writer: "LarkWriter", plan: NumberPlan) -> str:
    """Return the body of a rule for numbers."""
    shape, expression = plan.shape, plan.expression
    if shape.multiple:
        writer.model.has_builtin = True
        return _by_sign(shape, _multiples)
    if not expression:
        return writer.any_number
    if not shape.once:  # such states differ by all of a number's digits: LLGuidance is faster
        writer.model.terminals[shape] = expression
    if not writer.signs_apart:
        return writer.terminal(expression)

    def half(part: Number) -> str:
        return writer.terminal(f"{number_expression(shape, part)} & {_UNSIGNED}")

    return _by_sign(shape, half, zero_below=not shape.once)


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


def _multiples(shape: Number) -> str:
    """Return the grammar of the multiples in a range from zero up.

    LLGuidance (1.7.6) writes all decimals of ``multipleOf`` or none. So for each number of decimals there is an
    alternative with the multiples that have no more: 1.50 is a multiple of 0.25, and 1.5 one of 0.5.
    """
    kind, low, high = "integer" if shape.integer else "number", shape.low, shape.high
    if high is not None:
        high = min(high, Fraction(LARGEST_EXACT))
    _, decimals = without_point(shape.multiple)
    fewer = range(1, decimals) if decimals <= _MAX_DECIMALS else ()
    steps = [*(common_multiple(shape.multiple, Fraction(1, 10**count)) for count in fewer), shape.multiple]
    ways = []
    for step in steps:
        number = tighten(Number(low=low, high=high, multiple=step))
        if number is not None and number.low is not None and is_read_exactly(step):
            schema = {"type": kind, "minimum": decimal(number.low), "multipleOf": decimal(step)}
            ways.append(_builtin(schema if number.high is None else schema | {"maximum": decimal(number.high)}))
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _builtin(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(_LEAF | schema)}"


def string_body(writer: "LarkWriter", plan: StringPlan, form: Spelling) -> str:
    """Return the body of a rule for strings; empty if they become one terminal with others of the node."""
    shape, expression = plan.shape, plan.expression
    if not expression:
        if not is_in_parts(shape):
            return RAW.terminal if form is RAW else "STRING"
        text, quote = _in_parts(writer, shape, RAW.character if form is RAW else ANY_CHARACTER), literal(form.quote)
        return f"{quote} {text} {quote}" if form.quote else text
    writer.has_long_texts |= is_long(shape)
    if form is JSON and shape != String(shape.shortest, shape.longest):
        writer.model.terminals[shape] = expression
    if not plan.is_joined:
        return writer.terminal(expression)
    writer.strings[expression] = None
    return ""


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
