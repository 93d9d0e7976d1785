"""The league of MaskBench: verdicts, sums, and the second opinion on schemas called unsatisfiable."""

import json

import pytest

from benchmarks.league import Status, Verdict, disproof, main, row
from benchmarks.schemas.arms import Arm, Outcome, Work
from benchmarks.schemas.corpora import Case, Instance
from tests.kit.data import data

CASE = Case("c", '{"type":"integer"}', (Instance("1", valid=True), Instance('"1"', valid=False)))


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("passing", Outcome(accepted=(True, False))),
        ("unsatisfiable", Outcome(refusal="#: no value satisfies this schema")),
        ("refused", Outcome(refusal="too long")),
        ("timeout", Outcome(refusal="not done after 20 s", ran_out=True)),
        ("died", Outcome(accepted=(True, False), died="too many expressions")),
        ("invalid accepted", Outcome(accepted=(False, True))),
        ("valid rejected", Outcome(accepted=(False, False))),
    ],
)
def test_the_first_fault_is_the_status(status: Status, outcome: Outcome) -> None:
    assert Verdict.of(CASE, outcome).status == status


def test_an_arms_row() -> None:
    outcomes = [
        Outcome(accepted=(True, True), create_ms=4, mask_us=(1.0, 3.0)),
        Outcome(accepted=(True, True), relaxed=("#/x: why",), create_ms=2, mask_us=(2.0,)),
        Outcome(refusal="too long", create_ms=900),
        Outcome(accepted=(True, False), create_ms=3, mask_us=(9.0,)),
    ]
    found = row("ours, strict", [Verdict.of(CASE, outcome) for outcome in outcomes])
    assert found[1:10] == [4, "**25.00%**", "2 (2)", "1 (1)", "0 (0)", 0, 1, 0, 0]
    assert (found[10], found[12]) == (3, 4), "what is refused has no grammar to wait for"
    assert found[13] == 2.5 and found[14] == pytest.approx(8.8, abs=0.1)
    refused = row("ours, strict", [Verdict.of(CASE, outcomes[2])])
    assert refused[10:] == [0.0] * 5


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        (
            {"allOf": [{"enum": [9007199254740992.0]}, {"not": {"not": {"enum": [9007199254740992]}}}]},
            "9007199254740992",
        ),
        ({"not": {"propertyNames": False}}, '{"a":0}'),
        ({"type": "object", "required": ["a"], "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "{"),
        ({"type": "object", "required": ["a"], "oneOf": [{"required": ["a"]}, {"minProperties": 1}]}, ""),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
    ],
)
def test_a_schema_with_an_instance_is_not_unsatisfiable(schema: object, instance: str) -> None:
    found = disproof(Case("c", json.dumps(schema)))
    assert found.startswith(instance) if instance else not found


@pytest.mark.slow
def test_strict_tools_are_refused_what_is_relaxed() -> None:
    relaxed = '{"type":"string","pattern":"^(?=a)b"}'
    with Arm("ours, strict", None) as strict:
        assert strict.run(Work(relaxed)).refusal
        assert strict.run(Work(CASE.schema, ("1", '"1"'), masked=True)).accepted == (True, False)


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_arm(capsys: pytest.CaptureFixture[str]) -> None:
    data("schemas/maskbench.jsonl.xz")
    arms = ["--arm", "ours, llguidance", "--arm", "llguidance's builtin"]
    assert main(["--step", "2000", *arms]) == 0
    printed = capsys.readouterr().out
    assert "| constrained_k2, other tools | 6 |" in printed
    assert "| LLGuidance's converter | 6 |" in printed
