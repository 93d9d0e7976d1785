"""Examines masked rows in the process that has the logits: does the mask forbid the likeliest token?

A step's results are a few numbers a row. They are copied into a pinned buffer on the stream of the model itself, ahead
of the sampled tokens, and read when the copy is known to be done; nothing waits for it. Reading a row of the logits
takes a GPU some microseconds and a CPU most of a millisecond; so only some rows of some steps are examined
(:mod:`.row_plan`).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import torch

from constrained_k2.kernels.examination import after_mask, before_mask
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.metrics.row_plan import SAMPLED_ROWS, PlannedRow

_BUFFERS = 8
"""The most examined steps whose results are not read yet."""


@dataclass(slots=True)
class _Step:
    """An examined step whose results are on their way."""

    plan: list[PlannedRow]
    results: torch.Tensor  # float32 [SAMPLED_ROWS, 5], on the host
    done: torch.cuda.Event | None


class RowProbe:
    """Examines the rows of a plan; :meth:`count` counts those whose results have come, from any thread."""

    def __init__(self, counters: EngineCounters = engine_counters) -> None:
        self._counters = counters
        self._lock = Lock()
        self._free: list[torch.Tensor] | None = None  # the buffers; None before the first step
        self._steps: deque[_Step] = deque()

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
        buffer = self.reserve(logits) if plan else None
        if buffer is None:
            yield
            return
        if not isinstance(rows, torch.Tensor):
            rows = torch.tensor(rows, dtype=torch.int64, pin_memory=logits.is_cuda).to(logits.device, non_blocking=True)
        before = [before_mask(part) for part in _parts(logits, rows)]
        yield
        after = _parts(logits, rows)
        results = torch.cat([after_mask(*known, part) for known, part in zip(before, after, strict=True)])
        results[:, 4].masked_fill_(rows < 0, 0.0)
        self.record(plan, buffer, results)

    def reserve(self, logits: torch.Tensor) -> torch.Tensor | None:
        """A buffer for a step's results; None if the device has not finished any of the steps that have them."""
        with self._lock:
            if self._free is None:
                made = torch.zeros((_BUFFERS, SAMPLED_ROWS, 5), dtype=torch.float32, pin_memory=logits.is_cuda)
                self._free = list(made.unbind())
            if not self._free:
                self._read()
            return self._free.pop() if self._free else None

    def record(self, plan: list[PlannedRow], buffer: torch.Tensor, results: torch.Tensor) -> None:
        """Copy a step's results, float32 ``[len(plan), 5]``, to its buffer; they are read later."""
        buffer[: len(plan)].copy_(results, non_blocking=True)
        done = torch.cuda.Event() if results.is_cuda else None
        if done is not None:
            done.record()
        with self._lock:
            self._steps.append(_Step(plan, buffer, done))

    def count(self) -> None:
        """Count the rows whose results have come since the last call."""
        if self._steps:
            with self._lock:
                self._read()

    def _read(self) -> None:
        """Read the results of the steps that are done."""
        assert self._free is not None
        while self._steps and ((done := self._steps[0].done) is None or done.query()):
            step = self._steps.popleft()
            for _, is_overridden, _, forbidden, allowed in step.results[: len(step.plan)].tolist():
                if allowed > 0 and forbidden >= 0.0:  # else the step has no such row, or the model's logits are NaN
                    self._counters.examined_rows += 1
                    self._counters.changed_rows += int(is_overridden)
            self._free.append(step.results)


def _parts(logits: torch.Tensor, rows: torch.Tensor) -> list[torch.Tensor]:
    """The rows in parts, each ``[n, width]``: on a CPU one by one, since one fits into its cache and needs no copy."""
    if logits.is_cuda:
        return [logits.index_select(0, rows.clamp(min=0))]
    return [logits[row : row + 1] for row in rows.clamp(min=0).tolist()]


row_probe = RowProbe()
"""The probe of this process: global, since what is pickled and sent holds no reference to the worker."""
