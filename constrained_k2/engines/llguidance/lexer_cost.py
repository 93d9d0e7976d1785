"""The work that LLGuidance's lexer of a grammar has done, and the memory that it takes.

A lexer is lazy: its regular expressions and states are made when a text first needs them, so its size depends on the
grammar and on its use, not on the length of the grammar's text: ``{"multipleOf": 9999}`` takes 5 MB, ten times that
beside other multiples.
"""

import re

import llguidance

LEXER_BYTES = 64_000
"""The memory of a lexer that has spent no fuel, with its parser."""
BYTES_PER_FUEL = 12
"""Measured with LLGuidance 1.7.6 as the growth of the heap, for 90 schemas of all kinds of leaves, on the real
vocabulary: 5 to 7 bytes if a grammar of multiples is compiled, 5 to 20 for the states that texts need later."""

_NO_TOKEN = (1 << 31) - 1
_FUEL = re.compile(r'"lexer_cost": (\d+)')


def spent_fuel(matcher: llguidance.LLMatcher) -> int:
    """Return the fuel that a matcher's lexer has spent, in all copies of it; 0 if the matcher has failed.

    The matcher stays as it was. LLGuidance (1.7.6) tells the number in its errors alone, and counts it anew with the
    masks: so a copy computes one and fails. This takes 0.1 ms.
    """
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    probe.consume_token(_NO_TOKEN)
    found = _FUEL.search(probe.get_error())
    return 0 if found is None else int(found[1])


def lexer_bytes(matcher: llguidance.LLMatcher) -> int:
    """Return about how many bytes a matcher's lexer takes."""
    return LEXER_BYTES + BYTES_PER_FUEL * spent_fuel(matcher)
