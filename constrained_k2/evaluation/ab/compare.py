"""Paired statistics: whether two arms differ on the same samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats  # type: ignore[import-untyped]

from constrained_k2.evaluation.ab.figures import FIGURES, CountTable, Figure, weights
from constrained_k2.evaluation.judge import COLUMNS

RESAMPLES = 2000  # bootstrap resamples per interval
_SHOWN, _DECIDING = 0.95, 0.99  # confidence of the intervals in the report, and of those that call an arm worse
_BATCH = 100  # resamples that are summed at a time: 8 MB for 10,000 samples


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure of one arm with its 95 % confidence interval; all are shares, mostly from 0 to 1."""

    value: float | None  # as observed; None where the denominator is 0
    low: float = math.nan
    high: float = math.nan
    of: int = 0  # the denominator
    count: int = 0  # the numerator


class Difference(NamedTuple):
    """A figure of one arm minus the baseline's, with its 95 % confidence interval."""

    difference: float | None  # None where one of the denominators is 0
    low: float = math.nan
    high: float = math.nan
    # True if the 99 % interval excludes zero. At 95 %, one of some seventeen figures would often be called worse by
    # chance. Both are False for a neutral figure.
    is_worse: bool = False
    is_better: bool = False


class Pairing(NamedTuple):
    """McNemar's test of one arm against the baseline."""

    only_baseline: int  # samples that only the baseline got right, in all repetitions
    only_this: int
    p: float  # two-sided (McNemar 1947, exact binomial); the null hypothesis is that both arms are equally good


def intervals(
    tables: Mapping[str, CountTable], baseline: str, seed: int = 0
) -> tuple[dict[str, dict[str, Interval]], dict[str, dict[str, Difference]]]:
    """Every figure of every arm, and its difference to the baseline, by names: a percentile bootstrap over samples.

    A resample draws the same samples (rows of ``tables``) for all arms, each with all its repetitions: differences are
    paired, and repetitions do not count as independent. A share of exactly 0 or 1 is the same in every resample, so its
    interval is Clopper and Pearson's exact one, over what the denominator counts.
    """
    sides = np.stack([weights("top"), weights("bottom")], axis=1)  # [counts, 2, figures]
    sums = np.stack([np.tensordot(table, sides, 1) for table in tables.values()], axis=1)  # [samples, arms, 2, figures]
    whole = sums.sum(axis=0)
    observed, drawn = _shares(whole), _shares(_resample(sums, seed))  # [arms, figures], [resamples, arms, figures]
    base = list(tables).index(baseline)
    shares: dict[str, dict[str, Interval]] = {}
    differences: dict[str, dict[str, Difference]] = {}
    for number, arm in enumerate(tables):
        columns = zip(FIGURES, observed[number], drawn[:, number].T, *whole[number], strict=True)
        shares[arm] = {column[0].name: _interval(*column) for column in columns}
        if number != base:
            change, drawn_change = observed[number] - observed[base], drawn[:, number] - drawn[:, base]
            changes = zip(FIGURES, change, drawn_change.T, strict=True)
            differences[arm] = {each[0].name: _difference(*each) for each in changes}
    return shares, differences


def mcnemar(baseline: CountTable, other: CountTable, column: str) -> Pairing:
    """Compare how many samples two arms got right in all repetitions, as ``column`` counts: ``right``, ``in_form``."""
    right, requests = COLUMNS.index(column), COLUMNS.index("requests")
    first, second = ((table[:, right] == table[:, requests]) & (table[:, requests] > 0) for table in (baseline, other))
    b, c = int((first & ~second).sum()), int((second & ~first).sum())
    return Pairing(b, c, float(stats.binomtest(min(b, c), b + c).pvalue) if b + c else 1.0)


def pass_hat_k(table: CountTable, repetitions: int) -> dict[int, float]:
    """pass^k, the probability that k answers to a sample are all right, averaged over samples (arXiv 2406.12045).

    The unbiased estimate is comb(c, k) / comb(n, k) from c right answers in n repetitions.
    """
    right = table[table[:, COLUMNS.index("requests")] == repetitions, COLUMNS.index("right")]
    if not len(right):
        return {}
    return {k: float(np.mean(special.comb(right, k) / math.comb(repetitions, k))) for k in range(1, repetitions + 1)}


def _resample(sums: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """[samples, ...] -> [resamples, ...]: sums over samples drawn with replacement.

    ``scipy.stats.bootstrap`` would gather whole rows; counting how often each is drawn turns that into one product.
    """
    generator, count = np.random.default_rng(seed % (1 << 32)), len(sums)  # numpy takes no negative seed
    rows = sums.reshape(count, math.prod(sums.shape[1:])).astype(np.float64)
    batches = []
    for _ in range(RESAMPLES // _BATCH):
        picks = (generator.integers(0, max(1, count), count) for _ in range(_BATCH))
        batches.append(np.array([np.bincount(pick, minlength=count) for pick in picks]) @ rows)
    return np.vstack(batches).reshape(RESAMPLES, *sums.shape[1:])


def _shares(sums: NDArray[np.generic]) -> NDArray[np.float64]:
    """[..., 2, figures] numerators and denominators -> [..., figures]; NaN where the denominator is 0."""
    top, bottom = sums[..., 0, :].astype(np.float64), sums[..., 1, :].astype(np.float64)
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom != 0)


def _ends(draws: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    low, high = np.quantile(draws[~np.isnan(draws)], [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _interval(figure: Figure, value: float, draws: NDArray[np.float64], count: np.int64, of: np.int64) -> Interval:
    if math.isnan(value):
        return Interval(None)
    if 0 < value < 1:
        return Interval(float(value), *_ends(draws, _SHOWN), int(of), int(count))
    # With a share of 1 every counted answer is a hit, and a hit weighs two in f1.
    answers = int(of) // max(figure.top.values()) if value else int(of)
    exact = stats.binomtest(answers if value else 0, answers).proportion_ci(_SHOWN, method="exact")
    return Interval(float(value), float(exact.low), float(exact.high), int(of), int(count))


def _difference(figure: Figure, value: float, draws: NDArray[np.float64]) -> Difference:
    if math.isnan(value):
        return Difference(None)
    low, high = _ends(draws, _DECIDING)
    gain = ((low > 0) - (high < 0)) * {"higher": 1, "neutral": 0, "lower": -1}[figure.better]
    return Difference(float(value), *_ends(draws, _SHOWN), is_worse=gain < 0, is_better=gain > 0)
