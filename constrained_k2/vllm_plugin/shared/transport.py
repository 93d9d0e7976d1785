"""Carries the counters of workers and the engine core to the API server, which exposes them.

A worker in a process of its own (tensor or pipeline parallelism) adds its totals to the pickled ``ModelRunnerOutput``
of the one rank whose output is used. The engine core adds what is new of all totals to the ``SchedulerStats`` for one
front end of several, at most ten times a second while requests run; there ``PrometheusStatLogger`` records them.
Nothing is added where nothing has been counted, nor sent with ``--disable-log-stats``. Snapshots hold totals, not
differences: one lost or read twice does no harm.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any

from vllm.v1.metrics.stats import SchedulerStats

from constrained_k2.vllm_plugin.shared.counters import COMPILED, engine_counters

FIELD = "constrained_k2"
"""Our attribute of vLLM's objects."""

_INTERVAL = 0.1
"""The least seconds between two reports of a scheduler while requests run: each costs both processes some 20 us."""


class Published:
    """The totals that have been published so far, by process."""

    def __init__(self) -> None:
        self._totals: dict[str, dict[str, float]] = {}

    def delta(self, snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The non-zero ``totals`` and the ``compile_seconds`` since the last call, of all processes; None without."""
        totals: dict[str, float] = {}
        durations: list[float] = []
        for snapshot in snapshots:
            now: dict[str, float] = snapshot["totals"]
            before = self._totals.pop(snapshot["source"], {})
            for name, total in now.items():
                if difference := total - before.get(name, 0):
                    totals[name] = totals.get(name, 0) + difference
            if new := int(now[COMPILED] - before.get(COMPILED, 0)):
                durations += snapshot["recent"][-new:]
            self._totals[snapshot["source"]] = now
            while len(self._totals) > 64:  # processes that ended long ago
                del self._totals[next(iter(self._totals))]
        return {"totals": totals, "compile_seconds": durations} if totals else None


class Collected:
    """The totals that one scheduler knows."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._next = 0.0  # when the next report may be made while requests run
        self._published = Published()
        self._workers: dict[str, dict[str, Any]] = {}  # the totals of each process that came since the last time

    def take(self, totals: dict[str, Any]) -> None:
        """Note the totals that came with a worker's output."""
        if totals["source"] != engine_counters.source:  # else it was pickled within this process
            self._workers[totals["source"]] = totals

    def delta(self, *, is_idle: bool = True) -> dict[str, Any] | None:
        """The counts added since the last report, in this process and in the workers; None if there are none.

        Args:
            is_idle: No request runs any more, so that this report may be the last one for long. Otherwise None is
                returned until it is time for another one.
        """
        if not is_idle:
            now = self._clock()
            if now < self._next:
                return None
            self._next = now + _INTERVAL
        workers, self._workers = self._workers, {}
        return self._published.delta([engine_counters.snapshot(), *workers.values()])


@dataclass
class _Field:
    constrained_k2: dict[str, Any] | None = None


def stats_fields(original: Any) -> Any:
    """Give ``SchedulerStats`` a field that its constructor does not take."""
    setattr(SchedulerStats, FIELD, None)  # what instances have that vLLM's __init__ makes
    SchedulerStats.__annotations__[FIELD] = _Field.__annotations__[FIELD]  # its type, for msgspec
    return {**original, FIELD: fields(_Field)[0]}
