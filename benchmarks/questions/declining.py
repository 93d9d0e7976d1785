"""Rules that decline a call by what the mask took from the model: the harm that each avoids, and its cost.

A rule scores each answer of an arm that declines nothing; answers with a call whose score is above a threshold would be
declined. The threshold with the fewest faults on one half of the questions is applied to the other half. Each
harmful answer that passes and each right answer that is declined is a fault.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scipy import stats  # type: ignore[import-untyped]

from benchmarks.report import Cell, table
from constrained_k2.evaluation.ab.directory import Change
from constrained_k2.evaluation.judge import judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.formats.base import WireFormat

_LEAST = 1e-6  # of a probability, whose logarithm is taken


class Answer(NamedTuple):
    """An answer with an executable call."""

    change: Change
    does_harm: bool  # a call that were not asked for
    is_right: bool


def _removed(change: Change) -> list[float]:
    return [each.forbidden or 0.0 for each in change.overrides or ()]


RULES: Mapping[str, Callable[[Change], float]] = {
    "improbable name (what `call_threshold` is for)": lambda change: 1 - min(change.chances, default=1.0),
    "bits removed over the answer": lambda change: -sum(math.log2(max(1 - p, _LEAST)) for p in _removed(change)),
    "most probability removed at one token": lambda change: max(_removed(change), default=0.0),
    "share of overridden tokens": lambda change: len(change.overrides or ()) / max(change.examined, 1),
    "tokens overridden by `required`": lambda change: sum(
        "required" in each.keywords for each in change.overrides or ()
    ),
    "bits a token of the whole answer": lambda change: (
        -sum(change.constrained_logprobs) / math.log(2) / max(len(change.constrained_logprobs), 1)
    ),
}
"""Title -> the score of an answer; the more, the less is it meant."""


class Outcome(NamedTuple):
    """The answers of a half that a threshold declines."""

    harmful: int
    harmful_declined: int
    right: int
    right_declined: int


def outcome(answers: Sequence[tuple[float, bool, bool]], threshold: float) -> Outcome:
    """Count ``(score, does_harm, is_right)`` whose score is above the threshold."""
    declined = [(harm, right) for score, harm, right in answers if score > threshold]
    return Outcome(
        sum(harm for _, harm, _ in answers),
        sum(harm for harm, _ in declined),
        sum(right for _, _, right in answers),
        sum(right for _, right in declined),
    )


def best_threshold(answers: Sequence[tuple[float, bool, bool]]) -> float:
    """Return the threshold with the fewest harmful answers made and right ones declined; the highest of several."""

    def faults(threshold: float) -> int:
        found = outcome(answers, threshold)
        return found.harmful - found.harmful_declined + found.right_declined

    return min(sorted({*(score for score, _, _ in answers), math.inf}, reverse=True), key=faults)


def executable_answers(
    changes: Sequence[Change], samples: Mapping[str, Sample], wire_format: WireFormat
) -> list[Answer]:
    """Return the answers with an executable call, in an order that any run has."""
    found = []
    for change in sorted(changes, key=lambda change: change.key):
        counts = judge(samples[change.key], change.constrained, wire_format).counts
        if change.is_whole and counts.executable:
            found.append(Answer(change, counts.unasked > 0, bool(counts.right)))
    return found


def rules(changes: Sequence[Change], samples: Mapping[str, Sample], wire_format: WireFormat) -> str:
    """Return the table of the rules, from greedy answers of an arm that declines nothing."""
    answers = executable_answers(changes, samples, wire_format)
    rows: list[list[Cell]] = []
    for title, score in RULES.items():
        scored = [(score(each.change), each.does_harm, each.is_right) for each in answers]
        threshold = best_threshold(scored[::2])
        found = outcome(scored[1::2], threshold)
        helped = f"{found.harmful_declined} of {found.harmful}"
        rows.append([title, _separation(scored), threshold, helped, f"{found.right_declined} of {found.right}"])
    columns = ["decline by", "separation", "threshold of one half", "harmful declined", "right declined"]
    return table(columns, rows)


def _separation(scored: Sequence[tuple[float, bool, bool]]) -> float | None:
    """Return the probability that a harmful answer scores more than a right one; 0.5 tells nothing."""
    harmful = [score for score, harm, _ in scored if harm]
    right = [score for score, _, is_right in scored if is_right]
    if not harmful or not right:
        return None
    return float(stats.mannwhitneyu(harmful, right).statistic) / (len(harmful) * len(right))
