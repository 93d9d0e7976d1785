"""The tables of benchmarks.questions, from answers that are known."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.questions.declining import rules
from benchmarks.questions.forced import by_keyword, changed_right_answers, forced_values
from benchmarks.questions.judged import errors, judged_run, judges, pairs, right_answers
from constrained_k2.evaluation.ab.arms import Arm
from constrained_k2.evaluation.ab.directory import Change, Sampling, begin
from constrained_k2.evaluation.ab.loaders import read_samples
from constrained_k2.evaluation.answer import SUCCESS, Record
from constrained_k2.evaluation.sample import ExpectedCall, Sample
from constrained_k2.explain.view import WantedToken
from constrained_k2.formats.kimi_k2 import KIMI_K2
from scripts.smollm2.dialogs import right_calls
from scripts.smollm2.leaderboard import Leaderboard
from scripts.smollm2.questions import WHEEL, drawn_tests, questions, to_line
from tests.kit.data import fetched
from tests.kit.tools import tool

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


def rows_of(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def test_right_answers_and_harm_are_counted(tmp_path: Path) -> None:
    fetched(WHEEL)
    tests = [sample for sample in drawn_tests(questions().tests, 60) if not sample.expected or right_calls(sample)]
    assert len({sample.category for sample in tests}) == 10
    lines = tmp_path / "samples.jsonl"
    lines.write_text("".join(json.dumps(to_line(sample)) + "\n" for sample in tests))
    directory = begin(tmp_path / "run", "test", read_samples(lines), Sampling())
    directory.add_arms([Arm("plain", "http://x"), Arm("better", "http://x")])
    irrelevant = harm_done = 0
    for number, sample in enumerate(directory.read_samples()):
        calls = right_calls(sample) or []
        directory.add("better", answer(sample, calls))
        wrong = [] if calls else harmful_calls(sample)
        directory.add("plain", answer(sample, calls if number % 2 else wrong))
        irrelevant += not calls
        harm_done += bool(wrong) and not number % 2
    run = judged_run(directory, Leaderboard())
    table = right_answers(run)
    assert table.startswith("| right answers, says the leaderboard | plain | better |")
    *categories, everything, harmful, harm = rows_of(table)
    assert sum(int(better) for _, _, better in categories) >= len(tests) - 1
    assert everything[0] == f"all ({len(tests)})" and everything[2].startswith(("98", "100"))
    assert harmful[1:] == harm[1:] == [str(harm_done), "0"]
    assert harm[0] == f"the same, for the {irrelevant} questions that no function can answer"
    assert harm_done
    (name, won, lost, p), (_, harm_won, harm_lost, _), (_, form_won, form_lost, _) = rows_of(pairs(run))
    assert name == "better: right" and int(won) > 10 and lost == "0" and float(p) < 0.01
    assert (harm_won, harm_lost) == ("0", str(harm_done))
    assert (form_won, form_lost) == ("0", "0"), "the harmful calls are valid, so none has an error of form"
    assert rows_of(judges(run))[1][0] == "better"
    assert {cells[0]: cells[2] for cells in rows_of(errors(run))}["an answer without an error of form"] == str(
        len(tests)
    )


DAY = {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"]}


def asked(number: int, *expected: ExpectedCall) -> Sample:
    body = {"messages": [{"role": "user", "content": f"{number}"}], "tools": [tool("f", DAY)]}
    return Sample(number, "all", body, expected, key=f"{number}")


def changed(sample: Sample, before: dict[str, Any], after: dict[str, Any], removed: float, *causes: str) -> Change:
    """A call of ``f`` whose argument ``day`` the mask changed, taking so much probability from the model."""
    override = WantedToken(5, "ARGUMENTS", "f", "/day", causes, "x", "1", 0.9, removed)
    records = [answer(sample, [("f", arguments)]) for arguments in (after, before)]
    overrides = (override,) if removed else ()
    return Change("nearest", sample.key, records[0], records[1], overrides, 9, (-0.1,), "", (1.0,))


def test_what_the_mask_forced() -> None:
    right = ExpectedCall("f", {"day": (1,)})
    samples = [asked(number, right) for number in range(4)] + [asked(number) for number in range(4, 8)]
    changes = [
        changed(samples[0], {"day": "1"}, {"day": 1}, 0.2, "type"),  # repaired
        changed(samples[1], {"day": "x"}, {"day": 7}, 0.2, "type"),  # invented
        changed(samples[2], {"day": 1}, {"day": 7}, 0.2, "type"),  # harmed
        changed(samples[3], {"day": 1}, {"day": 1}, 0.0),
        *(changed(sample, {}, {"day": 1}, 0.9, "type", "required") for sample in samples[4:]),  # not asked for
    ]
    told = changes, {sample.key: sample for sample in samples}, KIMI_K2
    assert rows_of(by_keyword([*forced_values(*told)])) == [
        ["type, required", "4", "0", "0", "0", "0", "0"],
        ["type", "3", "3", "1", "2", "1", "1"],
    ]
    (line,) = changed_right_answers(*told)
    assert line == "nearest, all, 2: wrong now; /day: type: 'x', not '1'"
    found = {cells[0]: cells[1:] for cells in rows_of(rules(*told))}
    assert found["most probability removed at one token"] == ["1", "0.2", "2 of 2", "0 of 1"]
    assert found["improbable name (what `call_threshold` is for)"] == ["0.5", "inf", "0 of 2", "0 of 1"]


def test_tests_come_from_each_category_in_turn() -> None:
    fetched(WHEEL)
    tests = questions().tests
    drawn = drawn_tests(tests, 300)
    assert len(drawn) == 300 and drawn == drawn_tests(tests, 300) != drawn_tests(tests, 300, seed=1)
    assert drawn[:100] == drawn_tests(tests, 100)
    assert min(sum(sample.category == name for sample in drawn) for name in ("simple_python", "parallel")) >= 30
