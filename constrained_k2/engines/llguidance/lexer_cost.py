"""Sets LLGuidance's limits on grammar size and lexer work, and estimates a lexer's memory.

A lexer is lazy: its regular expressions and states are made when a text first needs them. So its memory depends on the
grammar and on the texts so far, not on the length of the grammar's text: ``{"multipleOf": 9999}`` takes 5 MB, and 50 MB
if the schema has other multiples too.
"""

import re
from typing import Any

import llguidance

MAX_GRAMMAR_SIZE = 50_000
"""Max symbols of a grammar."""
# Fewer symbols than by default, so that a schema of 100 bytes ("maxItems": 100000) is refused within 0.2 s instead of
# compiling for seconds. More items in a row than by default, since objects may have thousands of optional properties.
# Five times the default lexer work per step: then a pattern combined with a length takes up to 25 ms, but compiles.
# A narrowed or relaxed grammar may do five times that work.
_SIZES: dict[str, Any] = {"max_grammar_size": MAX_GRAMMAR_SIZE, "max_items_in_row": 20_000, "step_max_items": 200_000}
LIMITS = llguidance.LLParserLimits(**_SIZES, step_lexer_fuel=1_000_000)
# Lower limits for a client's grammar. Its other costs are bounded by CPU time (client_text.py).
CLIENT_LIMITS = llguidance.LLParserLimits(**_SIZES | {"step_max_items": 100_000}, step_lexer_fuel=400_000)
EASED_LIMITS = llguidance.LLParserLimits(**_SIZES, step_lexer_fuel=5_000_000)
LEXER_BYTES = 64_000
"""The memory of a lexer that has spent no fuel, with its parser."""
BYTES_PER_FUEL = 12
"""Measured with LLGuidance 1.7.6 as the growth of the heap, for 90 schemas of all kinds of leaves, on the real
vocabulary: 5 to 7 bytes if a grammar of multiples is compiled, 5 to 20 for the states that texts need later."""

_NO_TOKEN = (1 << 31) - 1
_FUEL = re.compile(r'"lexer_cost": (\d+)')


def spent_fuel(matcher: llguidance.LLMatcher) -> int:
    """Return the fuel that a matcher's lexer has spent for all copies of the matcher; 0 if the matcher has failed.

    The matcher is unchanged. LLGuidance (1.7.6) reports the number only in its errors, and updates it with each mask.
    So a copy computes a mask, and then fails on purpose. This takes 0.1 ms.
    """
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    probe.consume_token(_NO_TOKEN)
    found = _FUEL.search(probe.get_error())
    return 0 if found is None else int(found[1])


def lexer_bytes(matcher: llguidance.LLMatcher) -> int:
    """Estimate the memory of a matcher's lexer in bytes."""
    return LEXER_BYTES + BYTES_PER_FUEL * spent_fuel(matcher)
