"""Examines rows of logits before and after masking: did the mask forbid the likeliest token?

Reading a row of the logits takes a GPU some microseconds and a CPU most of a millisecond; so only some rows of some
steps are examined (:mod:`constrained_k2.vllm_plugin.shared.row_plan`).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from constrained_k2.kernels.examination import after_mask, before_mask
from constrained_k2.vllm_plugin.shared.counters import EngineCounters, engine_counters

About = TypeVar("About")
STEPS = 64
"""The most steps whose results are not read yet; those of older ones are lost."""


class _Step(NamedTuple):
    about: Any
    results: torch.Tensor  # on the host
    done: torch.cuda.Event | None


class PendingCopies(Generic[About]):
    """Results of steps on their way from the device to the host. Nothing waits for them; any thread may take them.

    They are copied into pinned memory on the stream of the model itself, ahead of the sampled tokens, and read once the
    copy is done.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._steps: deque[_Step] = deque(maxlen=STEPS)

    def send(self, about: About, results: torch.Tensor) -> None:
        """Copy a step's results to the host; ``about`` comes back with them."""
        on_host = torch.empty(results.shape, dtype=results.dtype, pin_memory=results.is_cuda)
        on_host.copy_(results, non_blocking=True)
        done = torch.cuda.Event() if results.is_cuda else None
        if done is not None:
            done.record()
        with self._lock:
            self._steps.append(_Step(about, on_host, done))

    def take(self) -> list[tuple[About, list[Any]]]:
        """Return the results whose copies have finished: (data sent with them, the tensor as nested lists)."""
        found: list[tuple[About, list[Any]]] = []
        if self._steps:
            with self._lock:
                while self._steps and ((done := self._steps[0].done) is None or done.query()):
                    step = self._steps.popleft()
                    found.append((step.about, step.results.tolist()))
        return found


class RowProbe:
    """Examines rows of logits; :meth:`count` counts those whose results have come, from any thread."""

    def __init__(self, counters: EngineCounters = engine_counters) -> None:
        self._counters = counters
        self._results = PendingCopies[None]()

    @contextmanager
    def around(self, logits: torch.Tensor, rows: Sequence[int] | torch.Tensor) -> Iterator[None]:
        """Examine rows of ``[rows, width]`` before and after they are masked, which is done within.

        Args:
            logits: The logits, masked in place.
            rows: At most :data:`SAMPLED_ROWS` of their rows; -1 for none. A tensor is int64, on the device.
        """
        if not len(rows):
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
