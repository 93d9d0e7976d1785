"""The schema benchmark: arms that end when they take too long, walks, and the hostile corpus."""

import json
from pathlib import Path

import pytest

from benchmarks.schemas import __main__ as command
from benchmarks.schemas import corpora
from benchmarks.schemas.arms import Arm, Outcome, Work
from benchmarks.schemas.corpora import Case, Instance
from benchmarks.schemas.figures import SuiteFigures, percentile, signature
from benchmarks.schemas.report import PARTS
from benchmarks.schemas.walks import judge, walk
from constrained_k2 import Compiler, ConstrainedK2Error, Vocabulary
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
    with Arm("ours, llguidance", None, seconds=20) as arm:
        right = arm.run(Work(SCHEMA, ('{"n":3}', '{"n":2}'), masked=True))
        assert right.accepted == (True, False)
        assert len(right.mask_us) == 2 * len('{"n":3}')  # 2 may go on: 20
        arm._seconds = 0
        assert "not done" in arm.run(Work(SCHEMA)).refusal
        arm._seconds = 20
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
    with pytest.raises(SystemExit) as ended:
        command.main(["--shared", str(tmp_path / "data"), *options])
    assert ended.value.code == 2
    assert "is missing: run python -m scripts.fetch_data" in capsys.readouterr().err
    assert not (tmp_path / "baseline.json").exists()


def test_all_that_is_read_is_fetched() -> None:
    fetched = [path for repository in MANIFEST["repositories"] for path in repository["files"]]
    suites = [f"{corpora.SUITE}/{draft}/" for draft in corpora.DRAFTS]
    for path in (*suites, corpora.TOOLS, corpora.WALLE, corpora.MASKBENCH, "kimi_k2/tokenizer/"):
        assert any(file.startswith(path) for file in fetched), path


def test_walks_are_judged() -> None:
    case = Case("n", SCHEMA)
    grammar = COMPILER.grammar(SCHEMA, "schema")
    for seed in range(20):
        walked = walk(grammar, COMPILER.vocabulary, json.loads(SCHEMA), seed)
        assert walked.ended
        assert not judge(case, walked.text), walked
    assert "minimum" in judge(case, '{"n":2}')


def test_figures() -> None:
    case = Case("g", "{}", (Instance("1", valid=True), Instance("2", valid=False)), file="allOf")
    figures = SuiteFigures()
    figures.add(case, Outcome(accepted=(True, True)))
    figures.add(case, Outcome(relaxed=("#/x",), accepted=(False, False)))
    figures.add(case, Outcome(refusal="#: no value satisfies this schema"))
    assert figures.groups == {"whole": 1, "relaxed": 1, "refused": 1}
    assert figures.count("invalid", accepted=True, status="whole") == 1
    assert figures.required == {"whole": 1, "relaxed": 1, "empty": 1}
    assert figures.refusals == {"no value satisfies the schema": 1}
    assert signature(case, Outcome(accepted=(True, True))) == "whole +x"
    assert percentile([], 0.5) == 0
    assert percentile([3.0], 0.99) == 3
    assert percentile([float(n) for n in range(101)], 0.5) == pytest.approx(50)
