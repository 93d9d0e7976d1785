"""Copies results of steps from the device to the host without waiting for them.

They are copied into pinned memory on the stream of the model itself, ahead of the sampled tokens, and read once the
copy is done.
"""

from collections import deque
from threading import Lock
from typing import Any, Generic, NamedTuple, TypeVar

import torch

About = TypeVar("About")
_STEPS = 64
"""The most steps whose results are not read yet; those of older ones are lost."""


class _Step(NamedTuple):
    about: Any
    results: torch.Tensor  # on the host
    done: torch.cuda.Event | None


class PendingCopies(Generic[About]):
    """The results that were sent and have not been taken. Any thread may take them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._steps: deque[_Step] = deque(maxlen=_STEPS)

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
