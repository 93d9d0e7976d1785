"""Grammars that LLGuidance reads for certain, as far as their size tells."""

import re
from itertools import accumulate
from typing import Final

from constrained_k2.schema.shapes import Number

MAX_TEXT: Final = 16_000
"""Characters of a small grammar, at most."""
MAX_GROUPS: Final = 10
"""Groups in one another in a small grammar, at most: LLGuidance 1.7.6 reads 20 of an object's members, and not 30."""
MAX_HARD: Final = 16
"""Terminals with patterns in a small grammar, at most. They do not count in its size."""
MAX_HARD_TEXT: Final = 64_000
"""Characters of these in all: more takes over 15 ms to read, too long within a step."""
_LARGEST, _MOST_PARTS = 10**15, 10**17  # of a bound, and of a whole that it counts: a double has up to 17 digits
_BRACKETS = re.compile(r"[()]")


def groups_in(text: str) -> int:
    """Return the number of groups in one another in a grammar's text."""
    depths = accumulate(1 if bracket == "(" else -1 for bracket in _BRACKETS.findall(text))
    return max(depths, default=0)


def is_small(text: str) -> bool:
    """Return True for a grammar that is neither long nor deep, and leaves nothing to the builtin converter."""
    return len(text) <= MAX_TEXT and "%json" not in text and groups_in(text) <= MAX_GROUPS


def is_usual(shape: Number) -> bool:
    """Return True for numbers whose bounds have few digits."""
    bounds = [bound for bound in (shape.low, shape.high) if bound is not None]
    return all(abs(bound) <= _LARGEST and bound.denominator <= _MOST_PARTS for bound in bounds)
