"""Counts the calls that each threshold would decline, from answers of an arm that declines none.

The answers are greedy.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from constrained_k2.evaluation.ab.changes import Change
from constrained_k2.evaluation.sample import Sample

THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)


class Outcome(NamedTuple):
    """The calls of some answers under a threshold.

    Attributes:
        threshold: The least probability of a call.
        unasked: Calls that are made, of functions that were not asked for.
        declined: Answers with a declined call.
        correct_declines: Declined answers that are missing no requested call.
        lost: Calls of functions that were asked for but are not made.
    """

    threshold: float
    unasked: int
    declined: int
    correct_declines: int
    lost: int

    @property
    def faults(self) -> int:
        """The calls that are made and should not be, and those that should be made and are not."""
        return self.unasked + self.lost


class Curve(NamedTuple):
    """The outcomes of every threshold, for two halves of the samples.

    ``chosen`` is the threshold with the fewest faults in the first half, the lowest of several.
    """

    first: tuple[Outcome, ...]
    second: tuple[Outcome, ...]
    chosen: float

    def to_json(self) -> dict[str, Any]:
        """As in ``scores.json``."""
        halves = {"first": self.first, "second": self.second}
        return {"chosen": self.chosen} | {name: [each._asdict() for each in half] for name, half in halves.items()}


def curve(changes: Sequence[Change], samples: Mapping[str, Sample]) -> Curve | None:
    """The curve of an arm's changes; None if it declines calls itself, or no server told probabilities."""
    ordered = sorted(changes, key=lambda change: change.key)  # so that a half is the same in every run
    known = [change for change in ordered if change.chances and samples[change.key].expected is not None]
    if not known or any(change.constrained.declined for change in changes):
        return None
    first, second = ([*_outcomes(known[half::2], samples)] for half in range(2))
    best = min(first, key=lambda outcome: (outcome.faults, outcome.threshold))
    return Curve(tuple(first), tuple(second), best.threshold)


def _outcomes(changes: Sequence[Change], samples: Mapping[str, Sample]) -> Iterable[Outcome]:
    for threshold in THRESHOLDS:
        unasked = declined = correct = lost = 0
        for change in changes:
            names = [name for _, name, _ in change.constrained.calls]
            left = Counter(call.name for call in samples[change.key].expected or ())
            made = next((at for at, chance in enumerate(change.chances) if chance < threshold), len(names))
            unasked += sum(name not in left for name in names[:made])
            if made < len(names):
                missed = ((left - Counter(names[:made])) & Counter(names[made:])).total()
                declined, correct, lost = declined + 1, correct + (not missed), lost + missed
        yield Outcome(threshold, unasked, declined, correct, lost)
