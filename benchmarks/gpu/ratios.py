"""Ratios of paired measurements, with an interval."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLED = 2_000


class Ratio(NamedTuple):
    """The geometric mean of ratios by rounds, and its 95 % interval by a bootstrap over the rounds."""

    mean: float
    low: float
    high: float


def ratio_of(ours: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Return the ratio of figures that were measured in the same rounds."""
    logs = np.log(np.asarray(ours) / np.asarray(baseline))
    drawn = np.random.default_rng(0).choice(logs, (_RESAMPLED, len(logs))).mean(axis=1)
    return Ratio(*np.exp([logs.mean(), *np.percentile(drawn, [2.5, 97.5])]).tolist())
