"""Filling mask rows, and counting what it takes."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from constrained_k2.batch import fill_bitmasks
from constrained_k2.bitmask import bitmask_rows
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


def fill_batch(matchers: Sequence[ToolCallMatcher], bitmask: Any, rows: Sequence[int]) -> list[int]:
    """Write what each matcher allows into its row; as :func:`constrained_k2.batch.fill_bitmasks`, and counted.

    Args:
        matchers: The matchers, each at most once, all of one vocabulary.
        bitmask: int32 ``[rows, words_per_row(size)]``, numpy or CPU torch.
        rows: The row of each, each at most once.

    Returns:
        The rows that are not filled, and not counted.

    Raises:
        Exception: A mistake in a matcher: nothing is known of any row.
    """
    if not matchers:
        return []
    target = bitmask_rows(bitmask, matchers[0].vocabulary.size)
    waiting: list[tuple[ToolCallMatcher, int]] = []
    start = perf_counter()
    for matcher, row in zip(matchers, rows, strict=True):
        if matcher.fill_at_hand(target[row]):
            count = _COUNTS[matcher.phase]
            now = perf_counter()
            count.seconds += now - start
            count.rows += 1
            start = now
        else:
            waiting.append((matcher, row))
    if not waiting:
        return []
    failures = fill_bitmasks([matcher for matcher, _ in waiting], bitmask, [row for _, row in waiting])
    engine_counters.arguments.seconds += perf_counter() - start
    engine_counters.arguments.rows += len(waiting) - len(failures)
    return [row for row, _ in failures]
