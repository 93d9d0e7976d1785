"""Whether two arms differ: paired by sample, since both were asked the same."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from constrained_k2.evaluation.ab.figures import FIGURES, CountTable, Figure, weights
from constrained_k2.evaluation.ab.judge import COLUMNS

RESAMPLES = 2000
"""How many times the samples are drawn again for an interval."""

_SHOWN, _DECIDING = 0.95, 0.99  # confidence of intervals that are shown, and of those that call an arm worse
_BLOCK = 1 << 22  # weights that are drawn at a time


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and where it may lie.

    Attributes:
        value: As observed; None where nothing counts.
        low: The 95 % interval's lower end.
        high: Its upper end.
    """

    value: float | None
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of one arm less that of the baseline.

    Attributes:
        interval: The difference.
        is_worse: Whether the 99 % interval lies wholly on the worse side of zero: with some fifteen figures, a wider
            one than is shown, so that chance alone seldom calls an arm worse.
        is_better: The same on the better side.
    """

    interval: Interval
    is_worse: bool
    is_better: bool


@dataclass(frozen=True, slots=True)
class Pairing:
    """McNemar's test on samples that two arms answered.

    Attributes:
        only_first: Samples that only the first arm got right, in all repetitions.
        only_second: Samples that only the second did.
        p: The exact two-sided probability of a split at least as uneven, if both are equally good.
    """

    only_first: int
    only_second: int
    p: float


def intervals(tables: dict[str, CountTable], baseline: str, seed: int = 0) -> tuple[
    dict[str, list[Interval]], dict[str, list[Difference]]
]:  # fmt: skip
    """Every figure of every arm, and its difference to the baseline's, by bootstrap over samples.

    Samples are drawn with replacement, the same ones for all arms, each with all its repetitions: so differences are
    paired, and repetitions of a sample do not count as independent. A share of exactly 0 or 1 never changes when drawn
    again; its interval is the exact one of Clopper and Pearson instead, over what its denominator counts.

    Args:
        tables: Arm -> [samples, counts], rows alike.
        baseline: The arm that the others are held against.
        seed: Of the draws.

    Returns:
        Arm -> interval per figure; arm -> difference per figure (not for the baseline).
    """
    top, bottom = weights("top"), weights("bottom")
    sums = np.hstack([table @ side for table in tables.values() for side in (top, bottom)]).astype(np.float64)
    whole = sums.sum(axis=0)
    draws = _drawn_sums(sums, seed)
    width = 2 * len(FIGURES)
    slices = {arm: slice(place * width, (place + 1) * width) for place, arm in enumerate(tables)}
    observed = {arm: _ratio(whole[None, part])[0] for arm, part in slices.items()}
    drawn = {arm: _ratio(draws[:, part]) for arm, part in slices.items()}
    own = {
        arm: [
            _own_interval(figure, observed[arm][place], drawn[arm][:, place], whole[slices[arm]][len(FIGURES) + place])
            for place, figure in enumerate(FIGURES)
        ]
        for arm in tables
    }
    differences = {
        arm: [
            _difference(
                observed[arm][place] - observed[baseline][place],
                drawn[arm][:, place] - drawn[baseline][:, place],
                is_better_high=figure.is_better_high,
            )
            for place, figure in enumerate(FIGURES)
        ]
        for arm in tables
        if arm != baseline
    }
    return own, differences


def mcnemar(first: CountTable, second: CountTable, column: str) -> Pairing:
    """Compare how many samples two arms got right in all repetitions.

    Args:
        first: An arm's counts.
        second: Another's, rows alike.
        column: The count that tells: ``right``, ``in_form``, ...
    """
    place, requests = COLUMNS.index(column), COLUMNS.index("requests")
    mine = (first[:, place] == first[:, requests]) & (first[:, requests] > 0)
    other = (second[:, place] == second[:, requests]) & (second[:, requests] > 0)
    return Pairing(b := int((mine & ~other).sum()), c := int((other & ~mine).sum()), exact_p(b, c))


def exact_p(b: int, c: int) -> float:
    """The two-sided binomial probability of ``b`` against ``c`` discordant pairs (McNemar 1947, exact)."""
    n, k = b + c, min(b, c)
    term = total = 1  # comb(n, 0); whole numbers, since the ends of the sum are far below the smallest float
    for i in range(k):
        term = term * (n - i) // (i + 1)
        total += term
    return min(1.0, float(total * 2 / (1 << n))) if n < 1000 else min(1.0, _ratio_of_large(total * 2, n))


def pass_hat_k(table: CountTable, repetitions: int) -> dict[int, float]:
    """pass^k: how likely k answers to a sample are all right, averaged over samples (tau-bench, arXiv 2406.12045).

    The unbiased estimate comb(c, k) / comb(n, k) of c right ones in n repetitions; samples that were not answered in
    all repetitions are left out.
    """
    complete = table[table[:, COLUMNS.index("requests")] == repetitions]
    right = complete[:, COLUMNS.index("right")]
    return {
        k: float(np.mean([math.comb(int(c), k) / math.comb(repetitions, k) for c in right]))
        for k in range(1, repetitions + 1)
        if len(right)
    }


def _drawn_sums(sums: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """[samples, columns] -> [resamples, columns]: the sums over samples drawn with replacement."""
    generator = np.random.default_rng(seed)
    rows = len(sums)
    at_once = max(1, _BLOCK // max(1, rows))
    blocks = []
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        picks = generator.integers(0, max(1, rows), (size, rows)) + np.arange(size)[:, None] * rows
        times = np.bincount(picks.ravel(), minlength=size * rows).reshape(size, rows)  # how often each is drawn
        blocks.append(times @ sums)
    return np.vstack(blocks)


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, 2 * figures] numerators, then denominators -> [n, figures]; NaN where the denominator is 0."""
    top, bottom = np.hsplit(sums, 2)
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom != 0)


def _ends(draws: NDArray[np.float64], confidence: float) -> tuple[float, float]:
    known = draws[~np.isnan(draws)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _own_interval(figure: Figure, value: float, draws: NDArray[np.float64], denominator: float) -> Interval:
    if math.isnan(value):
        return Interval(None)
    if value in {0.0, 1.0}:
        # At a share of 1 all that counts are hits, and a hit weighs two in f1.
        count = denominator / max(figure.top.values()) if value else denominator
        end = ((1 - _SHOWN) / 2) ** (1 / count)
        return Interval(float(value), end, 1.0) if value else Interval(float(value), 0.0, 1 - end)
    return Interval(float(value), *_ends(draws, _SHOWN))


def _difference(value: float, draws: NDArray[np.float64], *, is_better_high: bool) -> Difference:
    if math.isnan(value):
        return Difference(Interval(None), is_worse=False, is_better=False)
    low, high = _ends(draws, _DECIDING)
    below, above = high < 0, low > 0
    worse, better = (below, above) if is_better_high else (above, below)
    return Difference(Interval(float(value), *_ends(draws, _SHOWN)), is_worse=worse, is_better=better)


def _ratio_of_large(numerator: int, power: int) -> float:
    """``numerator / 2**power`` where neither need fit a float."""
    shift = max(0, numerator.bit_length() - 64)
    return math.ldexp(float(numerator >> shift), shift - power)
