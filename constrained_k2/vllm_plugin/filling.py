"""Filling mask rows, and counting what it takes."""

from time import perf_counter
from typing import Any

from constrained_k2.counters import engine_counters
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.phases import Phase

_COUNTS = dict.fromkeys(Phase, engine_counters.constant) | {
    Phase.HEADER: engine_counters.header,
    Phase.ARGUMENTS: engine_counters.arguments,
}


def fill(matcher: ToolCallMatcher, bitmask: Any, row: int) -> None:
    """Write what a matcher allows into a row of a bitmask; as :meth:`ToolCallMatcher.fill_bitmask`, and counted."""
    count = _COUNTS[matcher.phase]
    start = perf_counter()
    matcher.fill_bitmask(bitmask, row)
    count.seconds += perf_counter() - start
    count.rows += 1
