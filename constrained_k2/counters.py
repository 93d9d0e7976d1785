"""What the engine's side counts while it masks, and how it is told further: totals that only grow.

Totals rather than differences are handed out, so a snapshot that is lost or read twice does no harm; whoever publishes
them takes the difference to what it has published (:class:`Published`).
"""

import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_RECENT = 64
_MOST_SOURCES = 64

Counts = dict[str, float]
"""Totals, or differences of totals, by name."""


class CompileCounts:
    """The grammars that a compiler was asked for. Its methods may be called from several threads.

    Attributes:
        hits: How many were remembered.
        compiled: How many were compiled, those included of which it turned out that there is none.
        recent: What the last of these took, in seconds, the newest last.
    """

    __slots__ = ("_lock", "compiled", "hits", "recent")

    def __init__(self) -> None:
        self.hits = 0
        self.compiled = 0
        self.recent: deque[float] = deque(maxlen=_RECENT)
        self._lock = threading.Lock()

    def add(self, seconds: float | None) -> None:
        """Note one: how long it took, or None if it was remembered."""
        with self._lock:
            if seconds is None:
                self.hits += 1
            else:
                self.compiled += 1
                self.recent.append(seconds)

    def snapshot(self) -> dict[str, Any]:
        """``hits``, ``compiled`` and ``recent`` of one moment."""
        with self._lock:
            return {"hits": self.hits, "compiled": self.compiled, "recent": list(self.recent)}


class MaskCount:
    """The rows masked in one kind of phase.

    Attributes:
        rows: How many, in all. Under speculative decoding each draft position is a row.
        seconds: What finding their masks took on the host, in all.
    """

    __slots__ = ("rows", "seconds")

    def __init__(self) -> None:
        self.rows = 0
        self.seconds = 0.0


class EngineCounters:
    """The totals of one process that masks. Plain numbers, added to by the one thread that masks; others only read.

    Attributes:
        source: What tells this process from others.
        constant: Rows outside a call's header and arguments, whose mask is a constant.
        header: Rows inside ``functions.NAME:INDEX``.
        arguments: Rows inside a call's arguments.
        masked_steps: Steps of the engine in which at least one row was masked.
        ended_early: Requests that were ended because something failed in the engine.
        grammars: The grammars that were asked for. To be handed to the compiler that the engine uses.
        examined_rows: Masked rows of which it was looked up whether the mask forbade the model's first choice.
        changed_rows: The rows of which it did: int64 ``[1]`` each, their sum counts. Arrays, for devices to copy
            counts into.
    """

    __slots__ = (
        "arguments",
        "changed_rows",
        "constant",
        "ended_early",
        "examined_rows",
        "grammars",
        "header",
        "masked_steps",
        "source",
    )

    def __init__(self) -> None:
        self.source = secrets.token_hex(8)
        self.constant = MaskCount()
        self.header = MaskCount()
        self.arguments = MaskCount()
        self.masked_steps = 0
        self.ended_early = 0
        self.grammars = CompileCounts()
        self.examined_rows = 0
        self.changed_rows: list[npt.NDArray[np.int64]] = []

    @property
    def age(self) -> int:
        """A number that grows with whatever is counted; 0 as long as nothing has been."""
        return self.masked_steps + self.ended_early + self.grammars.compiled + self.grammars.hits

    def snapshot(self) -> dict[str, Any]:
        """The totals as plain values that any serializer takes."""
        grammars = self.grammars.snapshot()
        totals: Counts = {
            "masked_steps": self.masked_steps,
            "ended_early": self.ended_early,
            "hits": grammars["hits"],
            "compiled": grammars["compiled"],
            "examined_rows": self.examined_rows,
            "changed_rows": sum(int(count[0]) for count in self.changed_rows),
        }
        for kind, masks in (("constant", self.constant), ("header", self.header), ("arguments", self.arguments)):
            totals[f"{kind}_rows"] = masks.rows
            totals[f"{kind}_seconds"] = masks.seconds
        return {"source": self.source, "totals": totals, "recent": grammars["recent"]}


engine_counters = EngineCounters()
"""This process's. One for all: a process has one engine, and what publishes it sees neither processor nor backend."""


class Published:
    """What has been published of the totals of each process."""

    def __init__(self) -> None:
        self._totals: dict[str, Counts] = {}

    def news(self, snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
        """What has come since the last time.

        Args:
            snapshots: One of each process, see :meth:`EngineCounters.snapshot`.

        Returns:
            ``totals``, the differences that are not 0, summed over the processes, and ``compile_seconds``, the new
            durations (the last 64 of a process at most); None if there is nothing new.
        """
        totals: Counts = {}
        durations: list[float] = []
        for snapshot in snapshots:
            now: Counts = snapshot["totals"]
            before = self._totals.pop(snapshot["source"], {})
            for name, total in now.items():
                if difference := total - before.get(name, 0):
                    totals[name] = totals.get(name, 0) + difference
            if new := int(now["compiled"] - before.get("compiled", 0)):
                durations += snapshot["recent"][-new:]
            self._totals[snapshot["source"]] = now
            while len(self._totals) > _MOST_SOURCES:  # processes that ended long ago
                del self._totals[next(iter(self._totals))]
        return {"totals": totals, "compile_seconds": durations} if totals else None
