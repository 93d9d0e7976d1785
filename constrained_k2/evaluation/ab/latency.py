"""Latency distributions in constant memory."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from constrained_k2.evaluation.answer import SUCCESS, Record

_RATIO = 1.05  # of two bins' ends: a quantile is right to within 2.5 %
ENDS = 0.01 * _RATIO ** np.arange(400)  # ms, of the bins: up to 3,000,000


@dataclass(slots=True)
class Histogram:
    """Counts of milliseconds in bins that grow by 5 %; the first bin and the last are open."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), np.int64))

    def add(self, milliseconds: ArrayLike) -> None:
        """Count one time, or several."""
        np.add.at(self.counts, np.searchsorted(ENDS[:-1], milliseconds), 1)

    def quantile(self, share: float) -> float | None:
        """Milliseconds that a share (0 to 1) of all times do not exceed; None without times."""
        seen = self.counts.cumsum()
        if not seen[-1]:
            return None
        end = ENDS[np.searchsorted(seen, max(1, math.ceil(share * seen[-1])))]
        return float(max(ENDS[0], end / _RATIO**0.5))


@dataclass(slots=True)
class Latency:
    """The times and rates of an arm's complete answers; failed ones are left out."""

    ttft: Histogram = field(default_factory=Histogram)  # from the request to the first token
    gap: Histogram = field(default_factory=Histogram)  # between tokens, as they reach the client
    duration: Histogram = field(default_factory=Histogram)  # from the request to the end of the answer
    tokens: int = 0
    calls: int = 0
    milliseconds: float = 0.0  # sum of all durations; answers overlap, so this is not wall time
    counted_milliseconds: float = 0.0  # the part of it from answers whose tokens the server counts

    def add(self, record: Record) -> None:
        """Count an answer."""
        if record.status != SUCCESS:
            return
        if record.ttft_ms is not None:
            self.ttft.add(record.ttft_ms)
        self.gap.add(record.gaps_ms)
        self.duration.add(record.duration_ms)
        self.milliseconds += record.duration_ms
        self.calls += len(record.calls)
        if record.completion_tokens is not None:
            self.tokens += record.completion_tokens
            self.counted_milliseconds += record.duration_ms

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of one answer, prefill included; None if no server counts tokens."""
        return self.tokens / self.counted_milliseconds * 1e3 if self.counted_milliseconds else None

    def to_json(self) -> dict[str, float | None]:
        """Quantiles and rates, to four significant digits."""
        times = {"ttft_ms": self.ttft, "inter_token_ms": self.gap, "duration_ms": self.duration}.items()
        found = {f"{name}_p{share}": each.quantile(share / 100) for name, each in times for share in (50, 90, 99)}
        found["tokens_per_second"] = self.tokens_per_second
        found["calls_per_second"] = self.calls / self.milliseconds * 1e3 if self.milliseconds else None
        return {name: None if value is None else float(f"{value:.4g}") for name, value in found.items()}
