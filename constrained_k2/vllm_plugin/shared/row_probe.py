"""Examines masked rows in the process that has the logits: does the mask forbid the likeliest token?

Reading a row of the logits takes a GPU some microseconds and a CPU most of a millisecond; so only some rows of some
steps are examined (:mod:`constrained_k2.vllm_plugin.shared.row_plan`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from constrained_k2.kernels.examination import after_mask, before_mask
from constrained_k2.vllm_plugin.shared.arriving import PendingCopies
from constrained_k2.vllm_plugin.shared.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.shared.row_plan import PlannedRow


class RowProbe:
    """Examines the rows of a plan; :meth:`count` counts those whose results have come, from any thread."""

    def __init__(self, counters: EngineCounters = engine_counters) -> None:
        self._counters = counters
        self._results = PendingCopies[None]()

    @contextmanager
    def around(
        self, logits: torch.Tensor, rows: Sequence[int] | torch.Tensor, plan: list[PlannedRow]
    ) -> Iterator[None]:
        """Examine rows of ``[rows, width]`` before and after they are masked, which is done within.

        Args:
            logits: The logits, masked in place.
            rows: Which row each of the plan is; -1 for none. A tensor is int64, on the device.
            plan: At most :data:`SAMPLED_ROWS`.
        """
        if not plan:
            yield
            return
        if not isinstance(rows, torch.Tensor):
            rows = torch.tensor(rows, dtype=torch.int64, pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)
        before = [before_mask(part) for part in _parts(logits, rows)]
        yield
        after = _parts(logits, rows)
        results = torch.cat([after_mask(*known, part) for known, part in zip(before, after, strict=True)])
        results[:, 4].masked_fill_(rows < 0, 0.0)
        self.record(results)

    def record(self, results: torch.Tensor) -> None:
        """Take a step's results, float32 ``[rows, 5]``; they are counted later."""
        self._results.send(None, results)

    def count(self) -> None:
        """Count the rows whose results have come since the last call."""
        for _, results in self._results.take():
            for _, is_overridden, _, forbidden, allowed in results:
                if allowed > 0 and forbidden >= 0.0:  # else the step has no such row, or the model's logits are NaN
                    self._counters.examined_rows += 1
                    self._counters.changed_rows += int(is_overridden)


def _parts(logits: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
    """The rows in parts, each ``[n, width]``: on a CPU one by one, since one fits into its cache and needs no copy."""
    if logits.is_cuda:
        return [logits.index_select(0, rows.clamp(min=0))]
    return [logits[row : row + 1] for row in rows.clamp(min=0).tolist()]


row_probe = RowProbe()
"""The probe of this process: global, since what is pickled and sent holds no reference to the worker."""
