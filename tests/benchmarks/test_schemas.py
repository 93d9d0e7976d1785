"""The schema benchmark: arms that end when they take too long, walks, and the hostile corpus."""

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks.schemas import __main__ as command
from benchmarks.schemas import corpora
from benchmarks.schemas.__main__ import PARTS
from benchmarks.schemas.arms import Arm, Outcome, Work
from benchmarks.schemas.corpora import Case, Instance
from benchmarks.schemas.figures import SuiteFigures, signature
from benchmarks.schemas.judge import in_python, judge
from benchmarks.schemas.walks import Walk, Walks, walk_over
from constrained_k2 import Compiler, ConstrainedK2Error, Vocabulary
from constrained_k2.compiler.shared import GrammarOptions
from scripts.fetch_data import MANIFEST

COMPILER = Compiler(Vocabulary.of_bytes())  # without a deadline, which a busy machine would miss
REFUSED = {
    "enum of 100,000",
    "depth 500",
    "300 patternProperties",
    "5 MB of properties",
    "a key of 2 MB",
}
RELAXED = {"a reference to itself", "mutual references"}
SCHEMA = '{"type":"object","properties":{"n":{"type":"integer","minimum":3}},"required":["n"]}'


@pytest.mark.slow
def test_an_arm_that_takes_too_long_is_ended_and_goes_on() -> None:
    with Arm("ours, llguidance") as arm:
        right = arm.run(Work(SCHEMA, ('{"n":3}', '{"n":2}'), masked=True))
        assert right.accepted == (True, False)
        assert len(right.mask_us) == 2 * len('{"n":3}')  # 2 may go on: 20
        os.kill(arm.pid, signal.SIGSTOP)
        arm.seconds = 0.1
        assert "not done" in arm.run(Work(SCHEMA)).refusal
        arm.seconds = 20
        assert not arm.run(Work(SCHEMA)).refusal
        assert "surrogate" in arm.run(Work('{"const":"\\ud800"}')).refusal


@pytest.mark.parametrize("case", list(corpora.hostile()), ids=lambda case: case.name)
def test_hostile_schemas_end_with_a_grammar_or_a_clear_error(case: Case) -> None:
    if case.name in REFUSED:
        with pytest.raises(ConstrainedK2Error) as refused:
            COMPILER.grammar(case.schema, "schema")
        assert refused.value.problem and refused.value.remedy
    else:
        grammar = COMPILER.grammar(case.schema, "schema")
        assert grammar.matcher("schema").fork()
        assert grammar.coverage.relaxed or case.name not in RELAXED


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--write-baseline"], *(["--part", part] for part in PARTS if part != "hostile")])
def test_without_data_nothing_is_measured_or_written(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "BASELINE", tmp_path / "baseline.json")
    monkeypatch.setattr(command, "data_path", lambda path: tmp_path / "data" / path)
    with pytest.raises(SystemExit) as ended:
        command.main(options)
    assert ended.value.code == 2
    assert "is missing: run python -m scripts.fetch_data" in capsys.readouterr().err
    assert not (tmp_path / "baseline.json").exists()


def test_all_that_is_read_is_fetched() -> None:
    fetched = [path for repository in MANIFEST["repositories"] for path in repository["files"]]
    suites = [f"{corpora.SUITE}/{draft}/" for draft in corpora.DRAFTS]
    for path in (*suites, corpora.TOOLS, corpora.WALLE, corpora.MASKBENCH, "kimi_k2/tokenizer/"):
        assert any(file.startswith(path) for file in fetched), path


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (r"^\s$", "\ufeff", "a"),
        (r"^\w\d$", "a1", "\u00e91"),
        (r"^[\w.$]$", "$", "\u00e9"),
        (r"^\D.$", "a\u0085", "a\u2028"),
        ("^a$", "a", "a\n"),
    ],
)
def test_patterns_are_judged_as_those_of_ecma(pattern: str, matching: str, others: str) -> None:
    for schema, values in (
        ({"pattern": pattern}, (matching, others)),
        ({"patternProperties": {pattern: False}, "additionalProperties": True}, ({others: 1}, {matching: 1})),
    ):
        verdicts = [judge(Case("p", json.dumps(schema)), json.dumps(value)) for value in values]
        assert not verdicts[0] and verdicts[1], schema
    assert in_python({"enum": [{"pattern": "$"}]}) == {"enum": [{"pattern": "$"}]}


def test_judged_by_all_drafts_alike() -> None:
    assert "minimum" in judge(Case("n", SCHEMA), '{"n":2}') and not judge(Case("n", SCHEMA), '{"n":3}')
    old = '{"$schema":"http://json-schema.org/draft-04/schema#","properties":{"n":{"type":"integer"}}}'
    assert not judge(Case("i", old), '{"n":1.0}') and judge(Case("i", old), '{"n":1.5}')
    date = Case("d", '{"format":"date"}')
    assert not judge(date, '"0000-02-29"') and judge(date, '"0001-02-29"')


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("75.49", "0.01", True),
        ("75.495", "0.01", False),
        ("1e999999999", "3", False),
        ("3e999999999", "3", True),
        ("1e-999999999", "1", False),
        ("0e-999999999", "1", True),
        ("-1.50", "0.5", True),
        ("120", "1e2", False),
    ],
)
def test_multiples_are_judged_by_their_digits(value: str, unit: str, expected: bool) -> None:
    assert bool(judge(Case("m", f'{{"multipleOf":{unit}}}'), value)) is not expected


def test_walks_find_their_end_where_chance_does_not() -> None:
    """A word in a string, required keys beside many others, and a list that links itself."""
    node = {"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "word": {"pattern": "some words"}},
            "required": ["next", "word"], "patternProperties": {"^k": {}}}  # fmt: skip
    options = GrammarOptions(undeclared_keys="allow")
    found = walk_over([Case("n", json.dumps(node)), Case("refused", '{"not":{}}')], 60, COMPILER, options)
    assert (found.schemas, found.sound, dict(found.counts)) == (1, 1, {"ended": 30}) and not found.faults
    assert 0 < found.uniform < found.steps and "30 walks over 1 schemas (1 with nothing relaxed)" in str(found)


def test_faults_of_walks_are_counted() -> None:
    found = Walks()
    found.add(Walk("{", 1, 1, "no end: after 20000 bytes"), "", "a")
    found.add(Walk("{", 1, 1, "no token: none is allowed"), "", "b")
    found.add(Walk("{", 1, 1, "failed: too many states"), "", "c")
    found.add(Walk("{}", 2, 1), "is too short", "d")
    found.add(Walk("{}", 2, 1), "", "e")
    assert str(found).endswith("**1 invalid, 1 no end, 1 no token, 1 failed**.")
    assert [fault[0] for fault in found.faults] == list("abcd")


def test_figures() -> None:
    case = Case("g", "{}", (Instance("1", valid=True), Instance("2", valid=False)), file="allOf")
    figures = SuiteFigures.of([
        (case, Outcome(accepted=(True, True))),
        (case, Outcome(relaxed=("#/x",), accepted=(False, False))),
        (case, Outcome(refusal="#: no value satisfies this schema")),
        (case, Outcome(refusal="too long")),
    ])  # fmt: skip
    assert figures.groups == {"whole": 1, "relaxed": 1, "refused": 2}
    assert figures.count("invalid", accepted=True, status="whole") == figures.empty == 1
    assert signature(case, Outcome(accepted=(True, True))) == "whole +x"
