"""Distributions of times, in a memory that does not grow."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from constrained_k2.evaluation.ab.records import SUCCESS, Record

_LOWEST = 0.01  # ms
_RATIO = 1.05  # of a bin's ends: a quantile is right to within 2.5 %
_BINS = 400  # up to 3,000,000 ms


@dataclass(slots=True)
class Histogram:
    """Counts of milliseconds in bins that grow by 5 %.

    Attributes:
        counts: By bin; the first holds everything below its end, the last everything above its start.
    """

    counts: list[int] = field(default_factory=lambda: [0] * _BINS)

    def add(self, milliseconds: float) -> None:
        """Count one."""
        place = math.ceil(math.log(max(milliseconds, _LOWEST) / _LOWEST, _RATIO))
        self.counts[min(place, _BINS - 1)] += 1

    @property
    def total(self) -> int:
        """How many were counted."""
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The milliseconds that a share (0 to 1) of all do not exceed; None if none were counted."""
        total = self.total
        if not total:
            return None
        rank, seen = max(1, math.ceil(share * total)), 0
        for place, count in enumerate(self.counts):
            seen += count
            if seen >= rank:
                return _LOWEST * _RATIO ** (place - 0.5) if place else _LOWEST
        raise AssertionError("unreachable: the counts reach their sum")

    def cumulative(self) -> Iterator[tuple[float, float]]:
        """``(milliseconds, share of all up to there)`` at the ends of the bins that hold any."""
        total, seen = self.total, 0
        for place, count in enumerate(self.counts):
            if count:
                seen += count
                yield _LOWEST * _RATIO**place, seen / total


@dataclass(slots=True)
class Latency:
    """What an arm's answers took; those that failed are left out.

    Attributes:
        ttft: From the request to the first token.
        gap: Between tokens, as they reach the client.
        duration: From the request to the end.
        tokens: Tokens that were written.
        calls: Calls that were made.
        milliseconds: The sum of all durations: the answers run at the same time, so this is no time on the clock.
        counted_milliseconds: Of these, those of answers whose tokens the server counts.
    """

    ttft: Histogram = field(default_factory=Histogram)
    gap: Histogram = field(default_factory=Histogram)
    duration: Histogram = field(default_factory=Histogram)
    tokens: int = 0
    calls: int = 0
    milliseconds: float = 0.0
    counted_milliseconds: float = 0.0

    def add(self, record: Record) -> None:
        """Take in one record."""
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
        """Of one answer, on average."""
        return self.tokens / self.counted_milliseconds * 1e3 if self.counted_milliseconds else None

    @property
    def calls_per_second(self) -> float | None:
        """Of one answer, on average."""
        return self.calls / self.milliseconds * 1e3 if self.milliseconds else None

    def to_json(self) -> dict[str, float | None]:
        """The quantiles."""
        times = {"ttft_ms": self.ttft, "inter_token_ms": self.gap, "duration_ms": self.duration}
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        found: dict[str, float | None] = {
            f"{name}_{label}": _rounded(times[name].quantile(share))
            for name in times
            for label, share in shares.items()
        }
        found |= {
            "tokens_per_second": _rounded(self.tokens_per_second),
            "calls_per_second": _rounded(self.calls_per_second),
        }
        return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
