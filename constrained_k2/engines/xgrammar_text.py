"""What xgrammar makes of a structural tag, without a vocabulary: its EBNF."""

import xgrammar

from constrained_k2.schema.deep_stack import on_deep_stack


def ebnf(structural_tag: str, seconds: float) -> str:
    """The EBNF of a structural tag.

    Raises:
        TimeoutError: It takes too long.
    """
    return on_deep_stack(lambda: str(xgrammar.Grammar.from_structural_tag(structural_tag)), seconds)
