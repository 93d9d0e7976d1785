"""Drops (declines) calls by changing logits, if declared function names are improbable."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch

from constrained_k2.kernels.declining import NamedRows
from constrained_k2.vllm_plugin.shared.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.shared.row_plan import NamedRow
from constrained_k2.vllm_plugin.shared.row_probe import PendingCopies

_CALLS = 4096
"""The most calls that are remembered, so that none is counted twice."""


class Declining:
    """Declines calls; :meth:`count` counts those that were required though the model did not mean them."""

    def __init__(self, counters: EngineCounters = engine_counters) -> None:
        self._counters = counters
        self._chances = PendingCopies[Sequence[NamedRow]]()
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
            self._chances.send(named, measured.chances)

    def count(self) -> None:
        """Count the calls whose chances have come since the last time."""
        for rows, chances in self._chances.take():
            for row, chance in zip(rows, chances, strict=True):
                is_known = row.call is None or row.call in self._counted
                if row.intent.closing is None and chance < row.intent.threshold and not is_known:
                    self._counters.unmeant_calls += 1
                    self._counted[row.call] = None
                    if len(self._counted) > _CALLS:
                        self._counted.popitem(last=False)


declining = Declining()
"""The instance of this process: global, since pickled messages to the worker cannot refer to an object in it."""
