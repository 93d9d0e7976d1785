"""Masks of a whole batch: constants are written, the rest is computed by all threads without the interpreter lock."""

from collections.abc import Sequence

from constrained_k2.bitmask import Bitmask, bitmask_rows
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.matcher import ToolCallMatcher


def fill_bitmasks(
    matchers: Sequence[ToolCallMatcher], bitmask: Bitmask, rows: Sequence[int]
) -> list[tuple[int, ConstrainedK2Error]]:
    """Write what each matcher allows next into its row, as :meth:`ToolCallMatcher.fill_bitmask` does for one.

    Args:
        matchers: The matchers, each at most once, all of one vocabulary.
        bitmask: int32 ``[rows, words_per_row(size)]``, numpy or CPU torch; bit 1 = allowed.
        rows: The row of each, each at most once.

    Returns:
        The rows that could not be filled and why, as a rule none: an engine hit one of its own limits there. What
        stands in them then is undefined; the other rows are filled.

    Raises:
        ValueError: The bitmask has another shape, type or layout, or there are not as many rows as matchers.
        IndexError: It has no such row.
    """
    if not matchers:
        return []
    target = bitmask_rows(bitmask, matchers[0].vocabulary.size)
    batches: dict[type[ArgumentMatcher], list[tuple[ArgumentMatcher, int]]] = {}
    computed: list[tuple[ToolCallMatcher, int]] = []
    for matcher, row in zip(matchers, rows, strict=True):
        if not matcher.fill_at_hand(target[row]):
            arguments = matcher.arguments
            assert arguments is not None
            batches.setdefault(type(arguments), []).append((arguments, row))
            computed.append((matcher, row))
    failures = [failure for kind, batch in batches.items() for failure in kind.fill_batch(batch, target)]
    failed = {row for row, _ in failures}
    for matcher, row in computed:
        if row not in failed:
            matcher.narrow(target[row])
    return failures
