"""Size limits below which a grammar certainly compiles, so admission does not run LLGuidance."""

from typing import Final

from constrained_k2.schema.shapes import Number

MAX_TEXT: Final = 16_000
"""Characters of a small grammar, at most."""
MAX_HARD: Final = 16
"""Terminals with patterns in a small grammar, at most. They do not count in its size."""
MAX_HARD_TEXT: Final = 64_000
"""Characters of these in all: more takes over 15 ms to read, too long within a step."""
_LARGEST, _MOST_PARTS = 10**15, 10**17  # of a bound, and of a whole that it counts: a double has up to 17 digits


def is_usual(shape: Number) -> bool:
    """Return True for numbers whose bounds have few digits."""
    bounds = [bound for bound in (shape.low, shape.high) if bound is not None]
    return all(abs(bound) <= _LARGEST and bound.denominator <= _MOST_PARTS for bound in bounds)
