"""Random schemas and clients' grammars hold the laws of masks, also beside one another.

``python -m tests.laws.fuzz``, also with ``--grammars``, and ``python -m tests.laws.soak`` try more of them.
"""

from collections import Counter

import pytest

from constrained_k2 import Compiler
from tests.kit.budget import SEED, tries
from tests.laws import client_grammars, soak
from tests.laws.client_grammars import Grammar, broken_laws
from tests.laws.examples import Fault, faults_of
from tests.laws.feeding import Bench
from tests.laws.fuzz import main
from tests.laws.reduction import reduced

EXAMPLES, PARTS = tries(300, fast=80), 4
_MOST_FAULTS = 3


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_random_schemas_hold_the_laws(both: tuple[Bench, Bench], part: int) -> None:
    faults: list[Fault] = []
    first = SEED * 1_000 + part * EXAMPLES // PARTS
    counts = Counter[str]()
    for number in range(first, first + EXAMPLES // PARTS):
        faults += faults_of(both, number, counts, seconds=10)
        if len(faults) >= _MOST_FAULTS:
            break
    assert not faults, "\n".join(map(str, faults))
    assert counts["valid texts"] > EXAMPLES // PARTS  # the laws were tried


@pytest.mark.slow
def test_the_command_finds_what_is_wrong(
    both: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.laws.fuzz.benches", lambda: both)
    monkeypatch.setattr("tests.laws.fuzz._BATCH", 3)
    arguments = ["--minutes", "0.02", "--seconds", "1", "--memory", "64", "--seed"]  # this process has imported much
    monkeypatch.setattr("tests.laws.examples.broken_laws", lambda *_, **__: iter(()))
    assert main([*arguments, "1"]) == 0
    law = type("Law", (), {"law": "a law", "detail": "here"})
    monkeypatch.setattr("tests.laws.examples.broken_laws", lambda *_, **__: iter([law]))
    assert main([*arguments, "1"]) == 1
    assert "--example 1000000" in capsys.readouterr().out
    assert main(["--example", "5", "--seconds", "1"]) == 1
    monkeypatch.setattr("tests.laws.fuzz.faults_of", lambda *_: 1 // 0)
    assert main([*arguments, "1"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_schemas_are_made_smaller() -> None:
    name = {"anyOf": [{"type": "string", "title": "T"}, {"type": "null"}]}
    document = {"properties": {"name": name, "b": {"minimum": 99}}}
    string = reduced(document, lambda candidate: "'type': 'string'" in str(candidate))
    assert string in ({"type": "string"}, {"properties": {"type": "string"}})
    assert reduced(document, lambda candidate: "minimum" in str(candidate), 5)["properties"] == {"minimum": 0}


GRAMMARS = tries(60, fast=16)


@pytest.mark.slow
def test_random_grammars_hold_the_laws(both: tuple[Bench, Bench]) -> None:
    counts = Counter[str]()
    first = SEED * 1_000
    faults = [
        fault for number in range(first, first + GRAMMARS) for fault in client_grammars.faults_of(both, number, counts)
    ]
    assert not faults, "\n".join(map(str, faults[:3]))
    assert counts["texts"] > GRAMMARS // 2  # the laws were tried


def test_a_broken_law_is_found(both: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    grammar, counts = Grammar("lark", 'start: "a"~1..3', is_answer=False), Counter[str]()
    assert not list(broken_laws(both[0], grammar, 1, counts)) and counts["texts"]
    monkeypatch.setattr(client_grammars, "reader_of", lambda _: lambda _: False)
    assert [broken.law for broken in broken_laws(both[0], grammar, 1, counts)] == [
        "a text is written that the grammar does not match"
    ]
    monkeypatch.undo()
    monkeypatch.setattr(client_grammars, "_STEP_SECONDS", -1.0)
    assert [broken.law for broken in broken_laws(both[0], grammar, 1, counts)] == ["a step takes long"]


def test_hostile_grammars_leave_other_requests_alone(small_compiler: Compiler) -> None:
    report = soak.soak(small_compiler, seconds=0, hostile=soak.HOSTILE[3::2])
    assert not report.problems and report.rounds > soak._WARM_ROUNDS and report.hostile_steps > 100


def test_a_difference_is_found(small_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["masks"] * 5 + ["other masks"] * 100)
    monkeypatch.setattr(soak, "_good_masks", lambda *_: next(digests))
    report = soak.soak(small_compiler, seconds=0)
    assert len(report.problems) == report.rounds - 4 and "another request's masks differ" in report.problems[0]
