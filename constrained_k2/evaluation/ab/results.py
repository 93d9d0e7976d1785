"""Scores a run from its records; a run can be scored at any time, any number of times."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab import compare
from constrained_k2.evaluation.ab.arms import Arm, read_arm
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.effects import Effects, effects
from constrained_k2.evaluation.ab.figures import FIGURES, CountTable, totals, value, verifier_summary
from constrained_k2.evaluation.ab.latency import Latency
from constrained_k2.evaluation.answer import FAILURES, Record
from constrained_k2.evaluation.judge import COLUMNS, FORM, KINDS, Judgement, judge
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server_metrics import masked_argmax_share

MAX_EXAMPLES = 12  # examples per arm and kind of failure


class Example(NamedTuple):
    """An answer that is not right."""

    sample: Sample
    record: Record
    judgement: Judgement


@dataclass(slots=True)
class ArmResult:
    """All answers of one arm, those of unpaired samples included."""

    arm: Arm
    table: CountTable = field(repr=False)  # [samples, counts]
    kinds: Counter[str] = field(default_factory=Counter)  # kind of failure -> answers
    reasons: Counter[str] = field(default_factory=Counter)  # finish_reason -> answers
    latency: Latency = field(default_factory=Latency)
    examples: dict[str, list[Example]] = field(default_factory=dict)  # kind of failure -> MAX_EXAMPLES answers or fewer


@dataclass(slots=True)
class Results:
    """A scored run; :func:`score` makes it."""

    directory: RunDirectory
    arms: dict[str, ArmResult]  # in the order in which they were given
    baseline: str  # the arm that the others are compared with
    categories: list[str]  # of the samples
    paired: NDArray[np.bool_]  # [samples]: all arms answered it in all repetitions; only these are compared
    intervals: dict[str, dict[str, compare.Interval]]  # arm -> figure, over the paired samples
    differences: dict[str, dict[str, compare.Difference]]  # arm -> figure, to the baseline
    pairings: dict[str, dict[str, compare.Pairing]]  # arm -> count -> McNemar's test against the baseline
    pass_hat: dict[str, dict[int, float]]  # arm -> k -> pass^k
    argmax_share: float | None  # share of masked tokens where the mask ruled out the most likely one
    effects: list[Effects] = field(default_factory=list)  # of the constraint, by arm that was asked again

    def rows(self, arm: str, category: str | None = None) -> CountTable:
        """[paired samples, counts] of an arm, of one category or all."""
        mask = self.paired if category is None else self.paired & (np.array(self.categories) == category)
        return self.arms[arm].table[mask]

    @property
    def constrained(self) -> list[str]:
        """The arms that this package constrains."""
        return [name for name, result in self.arms.items() if result.arm.is_constrained]

    @property
    def findings(self) -> list[str]:
        """Problems found in the arms that this package constrains."""
        return [text for name in self.constrained for text in self._problems(name)]

    @property
    def headline(self) -> str:
        """The first sentence of a report. It names the checked arms, because other arms are not checked."""
        if self.findings:
            return "Problems found:"
        if not self.constrained:
            return "Not checked: this package constrains no arm of this run."
        if not self.differences:
            return f"No problem found in {self.baseline}; no other arm was compared with it."
        samples = f"{int(self.paired.sum()):,} of {len(self.categories):,} samples"
        return f"No problem found in {', '.join(self.constrained)}; {samples} were compared with {self.baseline}."

    def _problems(self, name: str) -> Iterator[str]:
        for kind, count in self.arms[name].kinds.items():
            if kind in FORM:
                yield f"{name}: {count} answers with {KINDS[kind]}, which the constraint should rule out"
            if kind in FAILURES:
                yield f"{name}: {count} requests without an answer: {KINDS[kind]}"
        counts = totals(self.rows(name))
        if missing := counts["due"] - counts["served"]:
            yield f"{name}: {missing} answers without right calls although a call was required"
        for other, differences in self.differences.items():
            for figure in FIGURES:
                found = differences[figure.name]
                title, points = figure.title.strip(), (found.difference or 0.0) * 100
                if name == other and found.is_worse:
                    yield f"{name}: {title} is worse than in {self.baseline} ({points:+.1f} points)"
                if name == self.baseline and other not in self.constrained and found.is_better:
                    yield f"{name}: {title} is worse than in {other} ({-points:+.1f} points)"

    def to_json(self) -> dict[str, Any]:
        """The content of ``scores.json``: shares from 0 to 1, and milliseconds; None where a denominator is 0."""
        return {
            "samples": len(self.categories),
            "paired_samples": int(self.paired.sum()),
            "baseline": self.baseline,
            "findings": self.findings,
            "masked_argmax_share": self.argmax_share,
            "changes": [each.to_json() for each in self.effects],
            "arms": {name: self._arm_to_json(name, result) for name, result in self.arms.items()},
        }

    def _arm_to_json(self, name: str, result: ArmResult) -> dict[str, Any]:
        shares = {each: totals(self.rows(name, each)) for each in dict.fromkeys(self.categories)}
        against: dict[str, Any] | None = None
        if name != self.baseline:
            known = ((figure, each) for figure, each in self.differences[name].items() if each.difference is not None)
            against = {"figures": {figure: each._asdict() for figure, each in known}}
            against["mcnemar"] = {column: test._asdict() for column, test in self.pairings[name].items()}
        return {
            "figures": {key: asdict(each) for key, each in self.intervals[name].items() if each.value is not None},
            "counts": totals(self.rows(name)),
            "k2vv_summary": verifier_summary(totals(result.table), result.reasons, result.arm.model),
            "failures": dict(result.kinds),
            "latency": result.latency.to_json(),
            "pass^k": self.pass_hat[name],
            "against_baseline": against,
            "categories": {each: {row.name: value(row, sums)[2] for row in FIGURES} for each, sums in shares.items()},
        }


def score(directory: RunDirectory, *, baseline: str | None = None) -> Results:
    """Judge all records of a run and compare its arms with ``baseline``; raises ``InvalidRequest`` without records.

    By default the baseline is the first unconstrained arm with records, else the first arm with records.
    """
    if baseline is not None and baseline not in directory.arms:
        remedy = f"Use one of: {', '.join(directory.arms)}"
        raise InvalidRequest(f"there is no arm {baseline!r}", str(directory.path), remedy)
    categories = {sample.key: sample.category for sample in directory.read_samples()}
    rows = {key: number for number, key in enumerate(categories)}
    found = {name: _score_arm(directory, name, rows) for name in directory.arms}
    arms = {name: result for name, result in found.items() if result.table.any()}
    if not arms:
        raise InvalidRequest("no arm has a record", str(directory.path))
    unconstrained = [name for name, result in arms.items() if not result.arm.is_constrained]
    base = baseline or [*unconstrained, *arms][0]
    if base not in arms:
        raise InvalidRequest("has no record", f"arm {base}")
    wanted, requests = directory.sampling.repetitions, COLUMNS.index("requests")
    paired = np.all([result.table[:, requests] == wanted for result in arms.values()], axis=0)
    tables = {name: result.table[paired] for name, result in arms.items()}
    intervals, differences = compare.intervals(tables, base, directory.sampling.seed)
    pairings = {
        name: {side: compare.mcnemar(tables[base], tables[name], side) for side in ("right", "in_form")}
        for name in differences
    }
    passes = {name: compare.pass_hat_k(table, wanted) for name, table in tables.items()}
    share = masked_argmax_share(directory.read_counters())
    compared = paired, intervals, differences, pairings, passes
    return Results(directory, arms, base, [*categories.values()], *compared, share, _effects(directory))


def _effects(directory: RunDirectory) -> list[Effects]:
    changes = list(directory.changes())
    keys = {change.key for change in changes}
    samples = {sample.key: sample for sample in directory.read_samples() if sample.key in keys} if keys else {}
    return effects(changes, samples, directory.wire_format)


def _score_arm(directory: RunDirectory, name: str, rows: Mapping[str, int]) -> ArmResult:
    arm = read_arm({"name": name} | directory.arms[name])
    result = ArmResult(arm, np.zeros((len(rows), len(COLUMNS)), np.int32))
    wire_format = directory.wire_format
    for record in directory.records(name):
        sample = directory.sample(record.key)
        judgement = judge(sample, record, wire_format)
        result.table[rows[record.key]] += np.array(judgement.counts, np.int32)
        result.latency.add(record)
        result.reasons.update([record.finish_reason] * bool(record.finish_reason))
        if judgement.kind:
            result.kinds[judgement.kind] += 1
            examples = result.examples.setdefault(judgement.kind, [])
            examples += [Example(sample, record, judgement)] * (len(examples) < MAX_EXAMPLES)
    return result
