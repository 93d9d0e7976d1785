"""Writes the Lark rules of strings, numbers, booleans, null, and (by values.py) enum and const.

StringPlan(…, '/"a.*"/')              T0: /"a.*"/
NumberPlan(Number(multiple=0.5))      "-"? %json {"type": "number", "minimum": 0, "multipleOf": 0.5}
"""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from constrained_k2.grammar.lark.definitions import Definitions
from constrained_k2.grammar.lark.terminals import NUMBER, SIGN_APART, literal
from constrained_k2.grammar.lark.values import value_text
from constrained_k2.grammar.plan.expressions import ANY_CHARACTER
from constrained_k2.grammar.plan.leaves import (
    decimal,
    is_in_parts,
    is_read_exactly,
    is_text,
    number_expression,
    without_point,
)
from constrained_k2.grammar.plan.nodes import Leaf, NumberPlan, PlanNode, StringPlan
from constrained_k2.grammar.spelling import JSON, RAW
from constrained_k2.schema.doubles import LARGEST_EXACT
from constrained_k2.schema.shapes import ListedValue, Number, String, common_multiple, constants, meet, tighten

_UNSIGNED = "/[0-9].*/"  # the body of a terminal for numbers without a sign
_MAX_DECIMALS = 8  # max decimals of multiples whose trailing zeros may be left out: each decimal adds an alternative
_PART = 1 << 10  # characters in each part of a long string
_LEAF = {"x-guidance": {"whitespace_flexible": False}}  # so that all lexemes stay in one class


def leaf_body(definitions: Definitions, node: PlanNode, leaf: Leaf, *, signs_apart: bool) -> str:
    """Return the rule body of one alternative of a node; empty if the terminal of the node's strings includes it."""
    if isinstance(leaf, StringPlan):
        return "" if leaf.is_joined else _string(definitions, leaf, is_raw=node.is_raw)
    if isinstance(leaf, NumberPlan):
        return _number(definitions, leaf, signs_apart=signs_apart)
    if isinstance(leaf, ListedValue) and node.joins_texts and is_text(leaf):
        return ""
    if isinstance(leaf, ListedValue) and node.is_raw:
        return literal(leaf.value)
    return " | ".join(value_text(value, definitions.choice, signs_apart=signs_apart) for value in constants(leaf))


def _number(definitions: Definitions, plan: NumberPlan, *, signs_apart: bool) -> str:
    shape, expression = plan.shape, plan.expression
    if shape.multiple:
        return _by_sign(shape, _multiples)
    if not expression:
        return SIGN_APART if signs_apart else NUMBER
    if not signs_apart:
        return definitions.terminal(expression)

    def half(part: Number) -> str:
        return definitions.terminal(f"{number_expression(shape, part)} & {_UNSIGNED}")

    return _by_sign(shape, half, zero_below=not shape.once)


def _by_sign(shape: Number, write: Callable[[Number], str], *, zero_below: bool = True) -> str:
    """Return the body of a rule for numbers, in which the sign is a separate terminal.

    ``write`` returns the body for a range of non-negative numbers. ``zero_below``: ``-0`` is allowed.
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
    """Return the grammar of the multiples in a non-negative range.

    LLGuidance (1.7.6) writes all decimals of ``multipleOf`` or none. So each smaller number of decimals has its own
    alternative: with ``multipleOf`` 0.25, 1.50 is written as a multiple of 0.25, and 1.5 as a multiple of 0.5.
    """
    kind, low, high = "integer" if shape.integer else "number", shape.low, shape.high
    if high is not None:
        high = min(high, Fraction(LARGEST_EXACT))
    _, decimals = without_point(shape.multiple)
    fewer = range(1, decimals) if decimals <= _MAX_DECIMALS else ()
    steps = [*(common_multiple(shape.multiple, Fraction(1, 10**count)) for count in fewer), shape.multiple]
    alternatives = []
    for step in steps:
        number = tighten(Number(low=low, high=high, multiple=step))
        if number is not None and number.low is not None and is_read_exactly(step):
            schema = {"type": kind, "minimum": decimal(number.low), "multipleOf": decimal(step)}
            alternatives.append(_builtin(schema if number.high is None else schema | {"maximum": decimal(number.high)}))
    return alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"


def _builtin(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps(_LEAF | schema)}"


def _string(definitions: Definitions, plan: StringPlan, *, is_raw: bool) -> str:
    if plan.expression:
        return definitions.terminal(plan.expression)
    form = RAW if is_raw else JSON
    if not is_in_parts(plan.shape):
        return RAW.terminal if is_raw else "STRING"
    text, quote = _in_parts(definitions, plan.shape, RAW.character if is_raw else ANY_CHARACTER), literal(form.quote)
    return f"{quote} {text} {quote}" if form.quote else text


def _in_parts(definitions: Definitions, shape: String, character: str) -> str:
    """Return the body of a rule for the characters of long strings, counted in parts of 1,024.

    16,500 characters are 16 parts and 116 characters. LLGuidance's lexer makes several expressions for each counted
    character of a terminal, and 250,000 at most.
    """
    parts, more = divmod(shape.shortest, _PART)
    alternatives: list[tuple[int, int, int, int | None]] = [(parts, parts, more, None)]
    if shape.longest is not None:
        most, rest = divmod(shape.longest, _PART)
        alternatives = [(parts, parts, more, rest)]
        if parts < most:
            alternatives = [(parts, parts, more, _PART - 1), (parts + 1, most - 1, 0, _PART - 1), (most, most, 0, rest)]

    def several(least: int, most: int | None) -> str:
        text = definitions.terminal(f"/{character}{{{max(least, 1)},{'' if most is None else most}}}/")
        return text if least else f"({text})?"

    return definitions.choice(
        [
            " ".join([f"{several(_PART, _PART)}{{{low},{high}}}"] * (high > 0) + [several(least, most)] * (most != 0))
            or '""'
            for low, high, least, most in alternatives
            if low <= high
        ]
    )
