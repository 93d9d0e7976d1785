"""Random schemas hold the laws of masks. ``python -m tests.laws.fuzz`` tries more of them."""

from collections import Counter

import pytest

from tests.kit.budget import SEED, tries
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
    document = {
        "properties": {"name": {"anyOf": [{"type": "string", "title": "T"}, {"type": "null"}]}, "b": {"minimum": 99}}
    }

    def has_string(candidate: object) -> bool:
        return "'type': 'string'" in str(candidate)

    assert reduced(document, has_string) == {"type": "string"} or reduced(document, has_string) == {
        "properties": {"type": "string"}
    }
    assert reduced(document, lambda candidate: "minimum" in str(candidate), 5)["properties"] == {"minimum": 0}
