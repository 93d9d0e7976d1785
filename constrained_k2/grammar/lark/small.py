"""Grammars that LLGuidance reads for certain, as far as their size tells."""

import re
from itertools import accumulate

_MAX_TEXT = 16_000  # characters
_MAX_GROUPS = 10  # in one another: LLGuidance 1.7.6 reads 20 of an object's members, and not 30
_BRACKETS = re.compile(r"[()]")


def is_small(text: str) -> bool:
    """Return True for a grammar that is neither long nor deep, and leaves nothing to the builtin converter."""
    if len(text) > _MAX_TEXT or "%json" in text:
        return False
    depths = accumulate(1 if bracket == "(" else -1 for bracket in _BRACKETS.findall(text))
    return max(depths, default=0) <= _MAX_GROUPS
