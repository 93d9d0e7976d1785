"""Times whole batches: the masks of many rows at once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.host.arms import Arm, Tools
from benchmarks.host.timing import Times, collected_before, microseconds
from benchmarks.host.workload import Turn, Workload
from constrained_k2.vocabulary.bitmask import allocate_bitmask

MIXES = ("inside", "mixed")
_TEXT_ROWS = 7  # of ten, in a mixed batch; the rest are in calls


@dataclass(frozen=True, slots=True)
class Fills:
    """Times of a batch's fills, in milliseconds."""

    first: Times  # fills while every row writes its turn for the first time
    steady: Times  # fills from the third time on


@dataclass(slots=True)
class _Row:
    """One request that writes steps ``first`` to ``last`` (exclusive) of its turn repeatedly."""

    turn: Turn
    first: int
    last: int
    start: Any = field(repr=False)
    matcher: Any = field(repr=False)
    step: int = 0


def batch_fills(  # noqa: PLR0913, PLR0917 - a cell of the table
    arms: Sequence[Arm], workload: Workload, tools: Tools, rows: int, mix: str, steps: int
) -> dict[str, Fills]:
    """Measure the milliseconds to fill the masks of a batch, by arm; the arms alternate step by step.

    Each row writes a turn of its own from a position of its own, one token after each fill. In the mix ``inside``,
    every row is always in the arguments of a call; in ``mixed``, seven of ten are in free text.
    """
    batches = []
    for arm in arms:
        arm.forget()
        compiled = arm.compile(arm.request(tools))
        batches.append([_row(arm, compiled, workload, tools, number, mix) for number in range(rows)])
    bitmask = allocate_bitmask(rows, workload.vocabulary.size)
    turn = max(row.last - row.first for row in batches[0]) + 1
    samples: dict[str, list[float]] = {arm.name: [] for arm in arms}
    with collected_before():
        for _ in range(2 * turn + steps):
            for arm, batch in zip(arms, batches, strict=True):
                matchers = [row.matcher for row in batch]
                start = time.perf_counter_ns()
                arm.fill_batch(matchers, bitmask)
                samples[arm.name].append(microseconds(start) / 1e3)
                _advance(arm, batch)
    return {name: Fills(Times.of(found[:turn]), Times.of(found[2 * turn :])) for name, found in samples.items()}


def _row(  # noqa: PLR0913, PLR0917 - as above
    arm: Arm, compiled: Any, workload: Workload, tools: Tools, number: int, mix: str
) -> _Row:
    turn = workload.turn(tools, number, calls=1)
    if mix == "mixed" and number % 10 < _TEXT_ROWS:
        first, last = 0, turn.phases.index("marker") - 1
    else:
        first = turn.phases.index("header") + turn.phases[turn.phases.index("header") :].index("structure")
        last = len(turn.ids) - 3  # the marker that ends the arguments
        if mix == "mixed":
            first = turn.phases.index("marker")
    start = arm.matcher(compiled)
    for token_id in turn.ids[:first]:
        if not arm.accept(start, token_id):
            raise RuntimeError(f"{arm.name} rejects a token of a turn that all arms must accept")
    row = _Row(turn, first, last, start, arm.fork(start), first)
    for _ in range(number % max(1, last - first)):
        _advance(arm, [row])
    return row


def _advance(arm: Arm, batch: Sequence[_Row]) -> None:
    for row in batch:
        if row.step >= row.last:
            row.matcher, row.step = arm.fork(row.start), row.first
            continue
        arm.accept(row.matcher, row.turn.ids[row.step])
        row.step += 1
