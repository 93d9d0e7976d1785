"""Ask a pretrained model public questions, constrained and not, and have the leaderboard judge its calls.

The questions come from the Berkeley function-calling leaderboard; the model has seen none of their functions in its
training. This serves the model of scripts/smollm2 in four arms, writes the report of `constrained-k2 ab` into --output,
and prints the judgement of the leaderboard's own checker. The same command resumes an interrupted run.

example: python -m benchmarks.questions --count 1500 --temperature 0
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from scipy import stats  # type: ignore[import-untyped]

from benchmarks.report import Cell, table
from constrained_k2.evaluation.ab.directory import RunDirectory, Sampling, begin
from constrained_k2.evaluation.ab.loaders import numbered_keys
from constrained_k2.evaluation.ab.report import write_reports
from constrained_k2.evaluation.ab.results import score
from constrained_k2.evaluation.ab.runner import Limits
from constrained_k2.evaluation.ab.serving import TEMPERATURE, Sending
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.judge import decode_arguments, judge
from constrained_k2.evaluation.sample import Sample
from scripts.smollm2.checkpoint import write_checkpoint
from scripts.smollm2.leaderboard import Leaderboard
from scripts.smollm2.questions import drawn_tests, questions

_MAX_TOKENS = 400  # the longest right answer has some 300


def main() -> int:
    """Ask, judge and print; return 1 if the report has findings."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.questions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1500, help="questions an arm (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=TEMPERATURE, help="(default: %(default)s)")
    parser.add_argument(
        "--explained", type=int, default=0, help="questions asked again for what the constraint changed"
    )
    parser.add_argument("--output", type=Path, default=Path("questions_output"), help="(default: %(default)s)")
    options = parser.parse_args()
    model = options.output / "model"
    if not (model / "model.safetensors").exists():
        write_checkpoint(model)
    sampling = Sampling(options.temperature, _MAX_TOKENS)
    tests = drawn_tests(questions().tests, options.count)
    source = f"{len(tests)} questions of the Berkeley function-calling leaderboard"
    directory = begin(options.output, source, numbered_keys(tests), sampling)
    Sending(directory, Limits(concurrency=16), explained=options.explained, is_shown=sys.stderr.isatty()).serve(model)
    results = score(directory)
    for line in judged_by_the_leaderboard(directory, Leaderboard()):
        print(line)
    print(*(str(path) for path in write_reports(results)), results.headline, *results.findings, sep="\n")
    return int(bool(results.findings))


def judged_by_the_leaderboard(directory: RunDirectory, leaderboard: Leaderboard) -> Iterator[str]:
    """Yield a run's tables: right answers of each category, pairs, and the answers on which the two judges differ."""
    samples = {sample.key: sample for sample in directory.read_samples()}
    asked = Counter(sample.category for sample in samples.values())
    right: dict[str, dict[str, bool]] = {}
    ours: dict[str, Counter[tuple[bool, bool]]] = {}
    harm: Counter[str] = Counter()
    for arm in directory.arms:
        right[arm], ours[arm] = {}, Counter()
        for record in directory.records(arm):
            sample = samples[record.key]
            judgement = judge(sample, record, directory.wire_format)
            right[arm][record.key] = is_right(leaderboard, sample, record)
            ours[arm][right[arm][record.key], bool(judgement.counts.right)] += 1
            harm[arm] += sample.expected == () and judgement.counts.executable > 0
    arms = list(directory.arms)
    rows: list[list[Cell]] = [
        [
            f"{category} ({count})",
            *(sum(found for key, found in right[arm].items() if samples[key].category == category) for arm in arms),
        ]
        for category, count in asked.items()
    ]
    irrelevant = sum(sample.expected == () for sample in samples.values())
    rows.append([f"executable calls that nobody asked for ({irrelevant})", *(harm[arm] for arm in arms)])
    yield table(["right answers, judged by the leaderboard", *arms], rows)
    first, *others = arms
    pairs: list[list[Cell]] = []
    for arm in others:
        both = right[first].keys() & right[arm].keys()
        lost = sum(right[first][key] and not right[arm][key] for key in both)
        won = sum(right[arm][key] and not right[first][key] for key in both)
        p = float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
        pairs.append([arm, won, lost, p])
    yield table([f"compared with {first}", "only this right", f"only {first} right", "McNemar's p"], pairs)
    judges: list[list[Cell]] = [
        [arm, *(ours[arm][pair] for pair in ((True, True), (True, False), (False, True)))] for arm in arms
    ]
    yield table(["right by", "both judges", "the leaderboard alone", "ours alone"], judges)


def is_right(leaderboard: Leaderboard, sample: Sample, record: Record) -> bool:
    """Have the leaderboard judge an answer; one that failed or was cut is wrong."""
    if record.status != SUCCESS or record.is_cut:
        return False
    return leaderboard.is_right(sample, [(name, decode_arguments(text)[0]) for _, name, text in record.calls])


if __name__ == "__main__":
    sys.exit(main())
