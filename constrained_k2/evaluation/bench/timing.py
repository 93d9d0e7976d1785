"""Times and what is said of them."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """A distribution.

    Attributes:
        count: How many were taken.
        mean: Their mean; as the others in the unit of what was measured.
        p50: The median.
        p99: The 99th percentile: the greatest where there are fewer than a hundred.
        max: The greatest.
    """

    count: int
    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Times":
        """The distribution of some samples, at least one."""
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
    """Since ``start``, a value of :func:`time.perf_counter_ns`."""
    return (time.perf_counter_ns() - start) / 1e3


@contextmanager
def collected_before() -> Iterator[None]:
    """Run a block without the garbage collector, which would be timed with whatever it falls into."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
