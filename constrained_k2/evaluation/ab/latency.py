"""Latency distributions in constant memory."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from constrained_k2.evaluation.answer import SUCCESS, Record

_LOWEST = 0.01  # ms, the end of the first bin
_RATIO = 1.05  # of two bins' ends: a quantile is right to within 2.5 %
_BINS = 400  # up to 3,000,000 ms


@dataclass(slots=True)
class Histogram:
    """Counts of milliseconds in bins that grow by 5 %; the first bin and the last are open."""

    counts: list[int] = field(default_factory=lambda: [0] * _BINS)

    def add(self, milliseconds: float) -> None:
        """Count one time."""
        bin_number = math.ceil(math.log(max(milliseconds, _LOWEST) / _LOWEST, _RATIO))
        self.counts[min(bin_number, _BINS - 1)] += 1

    def quantile(self, share: float) -> float | None:
        """Milliseconds that a share (0 to 1) of all times do not exceed; None without times."""
        seen = list(accumulate(self.counts))
        if not seen[-1]:
            return None
        bin_number = bisect_left(seen, max(1, math.ceil(share * seen[-1])))
        return _LOWEST * _RATIO ** (bin_number - 0.5) if bin_number else _LOWEST

    def cumulative(self) -> Iterator[tuple[float, float]]:
        """``(milliseconds, share of times up to there)`` at the end of every bin that is not empty."""
        total = sum(self.counts)
        for bin_number, seen in enumerate(accumulate(self.counts)):
            if self.counts[bin_number]:
                yield _LOWEST * _RATIO**bin_number, seen / total


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
        for gap in record.gaps_ms:
            self.gap.add(gap)
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
