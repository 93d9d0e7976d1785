"""Decides whether a grammar is so small and simple that compiling it can wait until a mask needs it."""

from collections.abc import Callable
from typing import Final

from constrained_k2.engines.llguidance.direct.rules import has_patterns
from constrained_k2.grammar.plan.leaves import INTEGER
from constrained_k2.grammar.plan.nodes import NumberPlan, ObjectPlan, Plan, StringPlan
from constrained_k2.schema.shapes import Number, String

MAX_TEXT: Final = 16_000
"""Characters of a small grammar, at most."""
MAX_HARD: Final = 16
"""Terminals with patterns in a small grammar, at most. They do not count in its size."""
MAX_HARD_TEXT: Final = 64_000
"""Characters of these terminals together, at most: more take LLGuidance over 15 ms to compile, too long for a step."""
_ANY_STRING = String()
_LARGEST, _MOST_PARTS = 10**15, 10**17  # max magnitude and max denominator of a bound: a double has up to 17 digits


def is_simple(plan: Plan, text: str, is_read: Callable[[str], bool]) -> bool:
    """Return True for a small JSON grammar whose hard terminals are strings that LLGuidance compiles one by one.

    ``is_read`` returns True for the expression of a terminal that LLGuidance compiles.
    """
    if plan.is_xtml or plan.has_long_texts:
        return False
    hard = set[str]()
    for node in plan.nodes:
        for one in node.alternatives:
            if isinstance(one, StringPlan):
                if one.is_joined or has_patterns(one):
                    hard.add(node.strings if one.is_joined else one.expression)
                elif one.shape != _ANY_STRING:
                    return False
            elif isinstance(one, NumberPlan):
                if not _is_easy(one, signs_apart=plan.signs_apart):
                    return False
            elif isinstance(one, ObjectPlan) and any(extra.is_hard for extra in one.extras):
                return False
    size = sum(map(len, hard))
    if len(text) - size > MAX_TEXT or len(hard) > MAX_HARD or size > MAX_HARD_TEXT:  # too much to compile within a step
        return False
    return all(map(is_read, hard))


def _is_easy(plan: NumberPlan, *, signs_apart: bool) -> bool:
    """Return True for numbers that never bring LLGuidance to a limit."""
    if plan.shape.multiple or not plan.expression:
        return not plan.shape.multiple
    return not signs_apart and (plan.expression == INTEGER or (not plan.shape.once and _is_usual(plan.shape)))


def _is_usual(shape: Number) -> bool:
    """Return True for numbers whose bounds have few digits."""
    bounds = [bound for bound in (shape.low, shape.high) if bound is not None]
    return all(abs(bound) <= _LARGEST and bound.denominator <= _MOST_PARTS for bound in bounds)
