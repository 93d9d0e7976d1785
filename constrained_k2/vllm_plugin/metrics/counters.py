"""Counts masks in each process and carries the totals to the process that exposes them.

A worker in a process of its own (tensor or pipeline parallelism) adds its totals to the pickled ``ModelRunnerOutput``
of the one rank whose output is used. The engine core adds what is new of all totals to the ``SchedulerStats`` for one
front end of several; there ``PrometheusStatLogger`` records them. Nothing is added where nothing has been counted, nor
sent with ``--disable-log-stats``. Snapshots hold totals, not differences: one lost or read twice does no harm.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from constrained_k2.compiler.cache import CompileCounts
from constrained_k2.turn.batch import MaskCount
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase

FIELD = "constrained_k2"
"""Our attribute of vLLM's objects."""


@dataclass(slots=True, eq=False)
class EngineCounters:
    """Totals of one process that computes masks. Only the masking thread adds to them; other threads only read.

    ``constant`` rows are outside call ids and arguments, ``header`` rows inside ``functions.NAME:INDEX``. The mask
    forbade the unmasked argmax of ``changed_rows`` of the ``examined_rows``: int64 ``[1]`` each, to be summed; arrays,
    so that devices can copy counts into them.
    """

    source: str = field(default_factory=lambda: secrets.token_hex(8))  # a random id of this process
    constant: MaskCount = field(default_factory=MaskCount)
    header: MaskCount = field(default_factory=MaskCount)
    arguments: MaskCount = field(default_factory=MaskCount)
    masked_steps: int = 0
    ended_early: int = 0  # requests, by an error in the engine
    grammars: CompileCounts = field(default_factory=CompileCounts)
    examined_rows: int = 0
    changed_rows: list[npt.NDArray[np.int64]] = field(default_factory=list)

    @property
    def age(self) -> int:
        """A number that grows with every count; 0 before the first."""
        return self.masked_steps + self.ended_early + self.grammars.compiled + self.grammars.hits

    def snapshot(self) -> dict[str, Any]:
        """The totals as plain values for any serializer."""
        grammars = self.grammars.snapshot()
        totals: dict[str, float] = {
            "masked_steps": self.masked_steps,
            "ended_early": self.ended_early,
            "hits": grammars["hits"],
            "compiled": grammars["compiled"],
            "examined_rows": self.examined_rows,
            "changed_rows": sum(int(count[0]) for count in self.changed_rows),
        }
        for kind, masks in (("constant", self.constant), ("header", self.header), ("arguments", self.arguments)):
            totals |= {f"{kind}_rows": masks.rows, f"{kind}_seconds": masks.seconds}
        return {"source": self.source, "totals": totals, "recent": grammars["recent"]}


engine_counters = EngineCounters()
"""This process's counters; global, since the publisher holds no reference to the processor or backend that masks."""

MASK_COUNTS = dict.fromkeys(Phase, engine_counters.constant) | {
    Phase.CALL_ID: engine_counters.header,
    Phase.ARGUMENTS: engine_counters.arguments,
}


def fill(matcher: ToolCallMatcher, bitmask: Any, row: int) -> None:
    """Fill a row as :meth:`ToolCallMatcher.fill_bitmask` does, and count it."""
    count = MASK_COUNTS[matcher.phase]
    start = perf_counter()
    matcher.fill_bitmask(bitmask, row)
    count.seconds += perf_counter() - start
    count.rows += 1


class Published:
    """The totals that have been published so far, by process."""

    def __init__(self) -> None:
        self._totals: dict[str, dict[str, float]] = {}

    def news(self, snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The non-zero ``totals`` and the ``compile_seconds`` since the last call, of all processes; None without."""
        totals: dict[str, float] = {}
        durations: list[float] = []
        for snapshot in snapshots:
            now: dict[str, float] = snapshot["totals"]
            before = self._totals.pop(snapshot["source"], {})
            for name, total in now.items():
                if difference := total - before.get(name, 0):
                    totals[name] = totals.get(name, 0) + difference
            if new := int(now["compiled"] - before.get("compiled", 0)):
                durations += snapshot["recent"][-new:]
            self._totals[snapshot["source"]] = now
            while len(self._totals) > 64:  # processes that ended long ago
                del self._totals[next(iter(self._totals))]
        return {"totals": totals, "compile_seconds": durations} if totals else None


def has_counted() -> bool:
    """Whether anything was counted in this process."""
    return engine_counters.age > 0


class NewTotals:
    """The totals of a process, each time that they have changed."""

    def __init__(self) -> None:
        self._sent = 0  # the age of the totals that were taken last

    def take(self) -> dict[str, Any] | None:
        """The totals; None if nothing was counted since the last call."""
        if engine_counters.age == self._sent:
            return None
        self._sent = engine_counters.age
        return engine_counters.snapshot()


class Collected:
    """The totals that one scheduler knows."""

    def __init__(self) -> None:
        self._published = Published()
        self._workers: dict[str, dict[str, Any]] = {}  # the totals of each process that came since the last time
        self._own = NewTotals()

    def take(self, totals: dict[str, Any]) -> None:
        """Note the totals that came with a worker's output."""
        if totals["source"] != engine_counters.source:  # else it was pickled within this process
            self._workers[totals["source"]] = totals

    def news(self) -> dict[str, Any] | None:
        """The counts added since the last call, in this process and in the workers; None if there are none."""
        own, workers = self._own.take(), self._workers
        if own is None and not workers:
            return None
        self._workers = {}
        return self._published.news([own or engine_counters.snapshot(), *workers.values()])
