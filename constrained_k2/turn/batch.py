"""Masks of a whole batch: constants are written here, engines compute the rest in parallel without the GIL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import Bitmask, bitmask_rows


@dataclass(slots=True)
class MaskCount:
    """Masks filled in some phases (under speculative decoding each draft position is a row), and their host time."""

    rows: int = 0
    seconds: float = 0.0


def fill_bitmasks(
    matchers: Sequence[ToolCallMatcher],
    bitmask: Bitmask,
    rows: Sequence[int],
    counts: Mapping[Phase, MaskCount] | None = None,
) -> list[tuple[int, ConstrainedK2Error]]:
    """Write each matcher's allowed tokens into its row, as :meth:`ToolCallMatcher.fill_bitmask` does for one.

    Args:
        matchers: The matchers, each at most once, all of one vocabulary.
        bitmask: int32 ``[rows, words_per_row(size)]``, numpy or CPU torch; bit 1 = allowed.
        rows: The row of each matcher, each at most once.
        counts: A count for every phase, to which filled rows and their time are added; None to skip the timing.

    Returns:
        The rows that could not be filled, with the error: an engine hit one of its own limits there. Their content is
        undefined and they are not counted; all other rows are filled.
    """
    if not matchers:
        return []
    target = bitmask_rows(bitmask, matchers[0].vocabulary.size)
    batches: dict[type[ArgumentMatcher], list[tuple[ArgumentMatcher, int]]] = {}
    computed: list[tuple[ToolCallMatcher, int]] = []
    start = perf_counter()
    for matcher, row in zip(matchers, rows, strict=True):
        if not matcher.try_fill(target[row]):
            arguments = matcher.arguments
            assert arguments is not None
            batches.setdefault(type(arguments), []).append((arguments, row))
            computed.append((matcher, row))
        elif counts is not None:
            count, now = counts[matcher.phase], perf_counter()
            count.seconds += now - start
            count.rows += 1
            start = now
    if not computed:
        return []
    failures = [failure for kind, batch in batches.items() for failure in kind.fill_batch(batch, target)]
    failed = {row for row, _ in failures}
    for matcher, row in computed:
        if row not in failed:
            matcher.finish_row(target[row])
    if counts is not None:
        counts[Phase.ARGUMENTS].seconds += perf_counter() - start
        counts[Phase.ARGUMENTS].rows += len(computed) - len(failures)
    return failures
