"""Declines calls that are unlikely to mean a declared function, in the process that has the logits."""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import torch

from constrained_k2.kernels.declining import NamedRows
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.metrics.row_plan import NamedRow

_STEPS = 64
"""The most steps whose chances are not read yet; those of older ones are not counted."""

_CALLS = 4096
"""The most calls that are remembered, so that none is counted twice."""


class _Step(NamedTuple):
    """A step with calls that are required: their chances are on their way to the host."""

    rows: Sequence[NamedRow]
    chances: torch.Tensor
    done: torch.cuda.Event | None


class Declining:
    """Declines calls; :meth:`count` counts those that were required though the model did not mean them."""

    def __init__(self, counters: EngineCounters = engine_counters) -> None:
        self._counters = counters
        self._lock = Lock()
        self._steps: deque[_Step] = deque(maxlen=_STEPS)
        self._counted: OrderedDict[Hashable, None] = OrderedDict()

    @contextmanager
    def around(
        self, logits: torch.Tensor, rows: Sequence[int] | torch.Tensor, named: Sequence[NamedRow]
    ) -> Iterator[None]:
        """Measure rows of ``[rows, width]``, let the ``with`` body mask them, then decline the improbable ones.

        Args:
            logits: The logits, masked in place.
            rows: Which row each of ``named`` is; -1 for none. A tensor is int64, on the device.
            named: The rows that write functions' names; they share one threshold, since they are of one server.
        """
        if not named:
            yield
            return
        measured = NamedRows(
            [row.intent.meant for row in named], [row.intent.closing for row in named], rows, logits.device
        )
        measured.measure(logits)
        yield
        measured.decline(logits, named[0].intent.threshold)
        if any(row.intent.closing is None for row in named):
            self._record(named, measured.chances)

    def count(self) -> None:
        """Count the calls whose chances have come since the last time."""
        if not self._steps:
            return
        with self._lock:
            while self._steps and ((done := self._steps[0].done) is None or done.query()):
                step = self._steps.popleft()
                for row, chance in zip(step.rows, step.chances.tolist(), strict=True):
                    is_known = row.call is None or row.call in self._counted
                    if row.intent.closing is None and chance < row.intent.threshold and not is_known:
                        self._counters.unmeant_calls += 1
                        self._counted[row.call] = None
                        if len(self._counted) > _CALLS:
                            self._counted.popitem(last=False)

    def _record(self, named: Sequence[NamedRow], chances: torch.Tensor) -> None:
        """Copy chances to the host, behind all that was queued on the model's stream."""
        on_host = torch.empty(len(named), dtype=torch.float32, pin_memory=chances.is_cuda)
        on_host.copy_(chances, non_blocking=True)
        done = torch.cuda.Event() if chances.is_cuda else None
        if done is not None:
            done.record()
        with self._lock:
            self._steps.append(_Step(named, on_host, done))


declining = Declining()
"""The instance of this process: global, since pickled messages to the worker cannot refer to an object in it."""
