"""A run's figures, made of its records: at any time, of any run, again and again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from constrained_k2.errors import InvalidRequest
from constrained_k2.evaluation.ab import compare
from constrained_k2.evaluation.ab.arms import Arm, read_arm
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.ab.figures import FIGURES, CountTable, totals, value, verifier_summary
from constrained_k2.evaluation.ab.judge import COLUMNS, FORM, KINDS, Judgement, judge
from constrained_k2.evaluation.ab.latency import Latency
from constrained_k2.evaluation.ab.records import FAILURES, Record, read_records
from constrained_k2.evaluation.ab.sample import Sample
from constrained_k2.evaluation.server_metrics import masked_argmax_share

MAX_EXAMPLES = 12
"""How many answers of each kind of failure are kept for an arm."""

_PAIRED = ("right", "in_form")


@dataclass(frozen=True, slots=True)
class Example:
    """An answer that is not right."""

    sample: Sample
    record: Record
    judgement: Judgement


@dataclass(slots=True)
class ArmResult:
    """What one arm's records say.

    Attributes:
        arm: The arm.
        table: [samples, counts].
        kinds: Kind of failure -> how many answers.
        reasons: ``finish_reason`` -> how many answers.
        latency: What they took.
        examples: Some of each kind of failure.
        bad_lines: Lines of its file that are no record.
    """

    arm: Arm
    table: CountTable = field(repr=False)
    kinds: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    latency: Latency = field(default_factory=Latency)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    bad_lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Results:
    """What a run says.

    Attributes:
        directory: The run.
        arms: Name -> its result, in the order in which the arms were given.
        baseline: The arm that the others are held against.
        categories: Of the samples, in their order; row by row.
        paired: Which samples all arms answered in all repetitions; only these are compared.
        intervals: Arm -> interval per figure, over the paired samples.
        differences: Arm -> difference to the baseline per figure.
        pairings: Arm -> count -> McNemar's test against the baseline.
        pass_hat: Arm -> k -> pass^k.
        argmax_share: See :func:`~constrained_k2.evaluation.server_metrics.masked_argmax_share`.
        findings: What an operator should look into; the run is good if there are none.
    """

    directory: RunDirectory
    arms: dict[str, ArmResult]
    baseline: str
    categories: list[str]
    paired: Any
    intervals: dict[str, list[compare.Interval]]
    differences: dict[str, list[compare.Difference]]
    pairings: dict[str, dict[str, compare.Pairing]]
    pass_hat: dict[str, dict[int, float]]
    argmax_share: float | None
    findings: list[str]

    def rows(self, arm: str, category: str | None = None) -> CountTable:
        """An arm's counts over the paired samples, of one category or all."""
        mask = self.paired if category is None else self.paired & (np.array(self.categories) == category)
        table: CountTable = self.arms[arm].table[mask]
        return table

    def to_json(self) -> dict[str, Any]:
        """All figures, for scripts."""
        names = list(dict.fromkeys(self.categories))
        return {
            "samples": len(self.categories),
            "paired_samples": int(self.paired.sum()),
            "baseline": self.baseline,
            "findings": self.findings,
            "masked_argmax_share": self.argmax_share,
            "arms": {
                name: {
                    "figures": _figures(totals(self.rows(name)), self.intervals[name]),
                    "counts": totals(self.rows(name)),
                    "k2vv_summary": verifier_summary(totals(result.table), result.reasons, result.arm.model),
                    "failures": result.kinds,
                    "latency": result.latency.to_json(),
                    "pass^k": self.pass_hat[name],
                    "against_baseline": self._against(name),
                    "categories": {
                        category: {
                            figure.name: value(figure, totals(self.rows(name, category)))[2] for figure in FIGURES
                        }
                        for category in names
                    },
                }
                for name, result in self.arms.items()
            },
        }

    def _against(self, name: str) -> dict[str, Any] | None:
        if name == self.baseline:
            return None
        differences = {
            figure.name: {
                "difference": found.interval.value,
                "low": found.interval.low,
                "high": found.interval.high,
                "is_worse": found.is_worse,
                "is_better": found.is_better,
            }
            for figure, found in zip(FIGURES, self.differences[name], strict=True)
            if found.interval.value is not None
        }
        tests = {
            column: {"only_baseline": test.only_first, "only_this": test.only_second, "p": test.p}
            for column, test in self.pairings[name].items()
        }
        return {"figures": differences, "mcnemar": tests}


def score(directory: RunDirectory, *, baseline: str | None = None) -> Results:
    """Judge all records of a run and compare its arms.

    Args:
        directory: The run.
        baseline: The arm that the others are held against; by default the first with records that is not constrained,
            else the first with records.

    Raises:
        InvalidRequest: There is no such arm, or none has a record.
    """
    if baseline is not None and baseline not in directory.arms:
        raise InvalidRequest(
            f"there is no arm {baseline!r}", str(directory.path), f"Known: {', '.join(directory.arms)}"
        )
    places: dict[str, int] = {}
    offsets: list[int] = []
    categories: list[str] = []
    offset = 0
    with directory.samples_path.open("rb") as file:
        for line in file:
            sample = Sample.from_json(json.loads(line))
            places[sample.key] = len(places)
            categories.append(sample.category)
            offsets.append(offset)
            offset += len(line)
        found = {name: _score_arm(directory, name, places, offsets, file) for name in directory.arms}
    arm_results = {name: result for name, result in found.items() if result.table.any()}
    if not arm_results:
        raise InvalidRequest("no arm has a record", str(directory.path))
    requests = COLUMNS.index("requests")
    wanted = directory.sampling.repetitions
    paired = np.all([result.table[:, requests] == wanted for result in arm_results.values()], axis=0)
    free = (name for name, result in arm_results.items() if not result.arm.is_constrained)
    base = baseline or next(free, next(iter(arm_results)))
    if base not in arm_results:
        raise InvalidRequest("has no record", f"arm {base}")
    tables = {name: result.table[paired] for name, result in arm_results.items()}
    own, differences = compare.intervals(tables, base, directory.sampling.seed)
    pairings = {
        name: {column: compare.mcnemar(tables[base], tables[name], column) for column in _PAIRED}
        for name in tables
        if name != base
    }
    passes = {name: compare.pass_hat_k(table, wanted) for name, table in tables.items()}
    share = masked_argmax_share(directory.read_counters())
    results = Results(directory, arm_results, base, categories, paired, own, differences, pairings, passes, share, [])
    return replace(results, findings=list(_findings(results)))


def _score_arm(directory: RunDirectory, name: str, places: dict[str, int], offsets: list[int], file: Any) -> ArmResult:
    arm = read_arm({"name": name} | directory.arms[name])
    result = ArmResult(arm, np.zeros((len(places), len(COLUMNS)), np.int32))
    path = directory.records_path(name)
    last: dict[tuple[str, int], int] = {}  # of several records of one request (asked again after a failure), the last
    for number, record in enumerate(read_records(path)):
        if isinstance(record, Record):
            last[record.key, record.repetition] = number
    for number, record in enumerate(read_records(path)):
        if isinstance(record, str):
            result.bad_lines.append(record)
            continue
        place = places.get(record.key)
        if place is None or last[record.key, record.repetition] != number:
            continue
        file.seek(offsets[place])
        sample = Sample.from_json(json.loads(file.readline()))
        judgement = judge(sample, record)
        result.table[place] += np.array([getattr(judgement.counts, column) for column in COLUMNS], np.int32)
        result.latency.add(record)
        if record.finish_reason:
            result.reasons[record.finish_reason] = result.reasons.get(record.finish_reason, 0) + 1
        if judgement.kind:
            result.kinds[judgement.kind] = result.kinds.get(judgement.kind, 0) + 1
            examples = result.examples.setdefault(judgement.kind, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(Example(sample, record, judgement))
    return result


def _figures(counts: dict[str, int], intervals: Sequence[compare.Interval]) -> dict[str, Any]:
    found = {}
    for figure, interval in zip(FIGURES, intervals, strict=True):
        top, bottom, share = value(figure, counts)
        if share is not None:
            found[figure.name] = {
                "value": share,
                "of": bottom,
                "count": top,
                "low": interval.low,
                "high": interval.high,
            }
    return found


def _findings(results: Results) -> list[str]:
    """What is wrong: a constrained arm that wrote something wrong in form, or that is worse than the baseline."""
    found = []
    for name, result in results.arms.items():
        if not result.arm.is_constrained:
            continue
        found += [
            f"{name}: {count} answers with {KINDS[kind]}, which the constraint should rule out"
            for kind, count in result.kinds.items()
            if kind in FORM
        ]
        unanswered = {kind: count for kind, count in result.kinds.items() if kind in FAILURES}
        found += [f"{name}: {count} requests without an answer: {KINDS[kind]}" for kind, count in unanswered.items()]
        counts = totals(results.rows(name))
        if missing := counts["due"] - counts["served"]:
            found.append(f"{name}: {missing} answers without right calls although calls were due")
        for figure, difference in zip(FIGURES, results.differences.get(name, ()), strict=name != results.baseline):
            if figure.is_compared and difference.is_worse:
                assert difference.interval.value is not None
                change = f"{difference.interval.value * 100:+.1f} points"
                found.append(f"{name}: {figure.title.strip()} is worse than in {results.baseline} ({change})")
    return found
