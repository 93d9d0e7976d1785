"""The tables of benchmarks.questions, from answers that are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.questions import judged_by_the_leaderboard
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import Sampling, begin
from constrained_k2.evaluation.ab.loaders import numbered_keys
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.sample import Sample
from constrained_k2.formats.kimi_k2 import KIMI_K2
from scripts.smollm2.dialogs import right_calls
from scripts.smollm2.leaderboard import Leaderboard
from scripts.smollm2.questions import WHEEL, drawn_tests, questions
from tests.data import fetched

pytestmark = pytest.mark.slow  # reads 2 MB of questions


def answer(sample: Sample, calls: list[tuple[str, dict[str, Any]]]) -> Record:
    texts = [(name, json.dumps(arguments)) for name, arguments in calls]
    made = tuple((KIMI_K2.call_id(name, index), name, text) for index, (name, text) in enumerate(texts))
    return Record(sample.key, 0, status=SUCCESS, finish_reason="tool_calls" if made else "stop", calls=made)


def harmful_calls(sample: Sample) -> list[tuple[str, dict[str, Any]]]:
    """A valid call of a function whose required arguments may be any strings; no call if there is no such function."""
    for name, schema in sample.tools.items():
        required = [schema["properties"][key] for key in schema.get("required", ())]
        if all(part.get("type") == "string" and not part.keys() & {"enum", "format", "pattern"} for part in required):
            return [(name, dict.fromkeys(schema.get("required", ()), "x"))]
    return []


def test_right_answers_are_counted_by_the_leaderboard(tmp_path: Path) -> None:
    fetched(WHEEL)
    tests = [sample for sample in drawn_tests(questions().tests, 60) if not sample.expected or right_calls(sample)]
    assert len({sample.category for sample in tests}) == 10
    directory = begin(tmp_path / "run", "test", numbered_keys(tests), Sampling())
    directory.add_arms([Arm("plain", "http://x"), Arm("better", "http://x")])
    irrelevant = harm_done = 0
    for number, sample in enumerate(directory.read_samples()):
        calls = right_calls(sample) or []
        directory.add("better", answer(sample, calls))
        wrong = [] if calls else harmful_calls(sample)
        directory.add("plain", answer(sample, calls if number % 2 else wrong))
        irrelevant += not calls
        harm_done += bool(wrong) and not number % 2
    right, pairs, judges = judged_by_the_leaderboard(directory, Leaderboard())
    assert right.startswith("| right answers, judged by the leaderboard | plain | better |")
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in right.splitlines()[2:]]
    *categories, harm = rows
    assert sum(int(better) for _, _, better in categories) >= len(tests) - 1
    assert harm == [f"executable calls that nobody asked for ({irrelevant})", str(harm_done), "0"]
    assert harm_done
    name, won, lost, p = (cell.strip() for cell in pairs.splitlines()[-1].split("|")[1:-1])
    assert name == "better" and int(won) > 10 and lost == "0" and float(p) < 0.01
    assert judges.splitlines()[-1].startswith("| better | ")


def test_tests_come_from_each_category_in_turn() -> None:
    fetched(WHEEL)
    tests = questions().tests
    drawn = drawn_tests(tests, 300)
    assert len(drawn) == 300 and drawn == drawn_tests(tests, 300) != drawn_tests(tests, 300, seed=1)
    assert drawn[:100] == drawn_tests(tests, 100)
    assert min(sum(sample.category == name for sample in drawn) for name in ("simple_python", "parallel")) >= 30
