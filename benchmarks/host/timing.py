"""Clocks, and the distribution of times."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution."""

    count: int  # number of samples
    mean: float  # mean, like the others in the unit of the samples
    p50: float  # median
    p99: float  # 99th percentile; the maximum of fewer than 100 samples
    max: float  # maximum

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Times":
        """Return the distribution of one or more samples."""
        ordered = sorted(samples)
        last = len(ordered) - 1
        return cls(
            len(ordered),
            sum(ordered) / len(ordered),
            ordered[last // 2],
            ordered[min(last, len(ordered) * 99 // 100)],
            ordered[-1],
        )


def microseconds(start: int) -> float:
    """Return the microseconds since ``start``, a value of :func:`time.perf_counter_ns`."""
    return (time.perf_counter_ns() - start) / 1e3


@contextmanager
def collected_before() -> Iterator[None]:
    """Run a block with the garbage collector off, so that it is not timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
