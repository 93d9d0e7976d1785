"""The leaderboard's judgement of a run's answers, the harm that they do, and their errors."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from scipy import stats  # type: ignore[import-untyped]

from benchmarks.report import Cell, table
from constrained_k2.evaluation.ab.directory import RunDirectory
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.judge import FORM, KINDS, Judgement, decode_arguments, judge
from constrained_k2.evaluation.sample import Sample
from scripts.smollm2.leaderboard import Leaderboard

_SHOWN = ("undeclared", "invalid_json", "invalid_arguments", "wrong_id", "truncated", "wrong_tool", "wrong_arguments")


class Judged(NamedTuple):
    """One answer, and what both judges say of it."""

    sample: Sample
    record: Record
    judgement: Judgement
    is_right: bool  # says the leaderboard

    @property
    def does_harm(self) -> bool:
        """True if an agent would run a call that were not asked for."""
        return self.judgement.counts.unasked > 0


Run = dict[str, dict[str, Judged]]
"""Arm -> key of a sample -> its answer."""


def judged_run(directory: RunDirectory, leaderboard: Leaderboard) -> Run:
    """Judge all answers of a run without repetitions."""
    samples = {sample.key: sample for sample in directory.read_samples()}

    def judged(record: Record) -> Judged:
        sample = samples[record.key]
        judgement = judge(sample, record, directory.wire_format)
        return Judged(sample, record, judgement, is_right(leaderboard, sample, record))

    return {arm: {record.key: judged(record) for record in directory.records(arm)} for arm in directory.arms}


def is_right(leaderboard: Leaderboard, sample: Sample, record: Record) -> bool:
    """Have the leaderboard judge an answer; one that failed or was cut is wrong."""
    if record.status != SUCCESS or record.is_cut:
        return False
    return leaderboard.is_right(sample, [(name, decode_arguments(text)[0]) for _, name, text in record.calls])


def right_answers(run: Run) -> str:
    """Return the table of right answers by category, with the 95 % interval of all, and of the answers that do harm."""
    asked = Counter(each.sample.category for each in next(iter(run.values())).values())
    idle = sum(count for category, count in asked.items() if "irrelevance" in category)
    rows = [
        _row(run, f"{category} ({count})", lambda each: each.is_right, category) for category, count in asked.items()
    ]
    rows.append([f"all ({asked.total()})", *(_share([each.is_right for each in arm.values()]) for arm in run.values())])
    rows.append(_row(run, "answers with executable calls that were not asked for", lambda each: each.does_harm))
    title = f"the same, for the {idle} questions that no function can answer"
    rows.append(_row(run, title, lambda each: each.does_harm and not each.sample.expected))
    return table(["right answers, says the leaderboard", *run], rows)


def pairs(run: Run) -> str:
    """Return the table of the answers on which an arm and the first one differ."""
    (first, base), *others = run.items()
    rows: list[list[Cell]] = []
    for name, arm in others:
        both = [(base[key], arm[key]) for key in base.keys() & arm.keys()]
        for title, found in (
            ("right", [(before.is_right, after.is_right) for before, after in both]),
            ("does harm", [(before.does_harm, after.does_harm) for before, after in both]),
            (
                f"does harm, where {first} has an error of form",
                [(before.does_harm, after.does_harm) for before, after in both if _kinds(before) & {*FORM}],
            ),
        ):
            won, lost = found.count((False, True)), found.count((True, False))
            p = float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
            rows.append([f"{name}: {title}", won, lost, p])
    return table([f"compared with {first}", "only this", f"only {first}", "McNemar's p"], rows)


def errors(run: Run) -> str:
    """Return the table of the answers with each kind of error, says our judge; an answer can have several."""
    kinds = {name: [_kinds(each) for each in arm.values()] for name, arm in run.items()}
    rows: list[list[Cell]] = [
        [KINDS[kind], *(sum(kind in found for found in arm) for arm in kinds.values())] for kind in _SHOWN
    ]
    sound = (sum(not found & {*FORM, "truncated"} for found in arm) for arm in kinds.values())
    rows.append(["an answer without an error of form", *sound])
    return table(["answers with", *run], rows)


def judges(run: Run) -> str:
    """Return the table of the answers that one of the two judges alone calls right."""
    rows: list[list[Cell]] = []
    for name, arm in run.items():
        found = Counter((each.is_right, bool(each.judgement.counts.right)) for each in arm.values())
        rows.append([name, found[True, True], found[True, False], found[False, True]])
    return table(["right, say", "both judges", "the leaderboard alone", "ours alone"], rows)


def _row(run: Run, title: str, holds: Callable[[Judged], bool], category: str = "") -> list[Cell]:
    """Count the answers of each arm for which something holds, of one category or of all."""
    counted = (
        sum(holds(each) for each in arm.values() if each.sample.category == (category or each.sample.category))
        for arm in run.values()
    )
    return [title, *counted]


def _share(holds: Iterable[bool]) -> str:
    found = list(holds)
    share = stats.binomtest(sum(found), len(found))
    ends = share.proportion_ci(0.95, method="exact")
    return f"{share.statistic:.1%} [{ends.low:.1%}, {ends.high:.1%}]"


def _kinds(each: Judged) -> set[str]:
    return {problem.partition(":")[0] for problem in each.judgement.problems}
