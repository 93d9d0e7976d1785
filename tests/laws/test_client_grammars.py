"""Random client grammars obey the laws of masks. ``python -m tests.laws.fuzz --grammars`` tries more of them."""

from collections import Counter

import pytest

from tests.kit.budget import SEED, tries
from tests.laws import client_grammars
from tests.laws.client_grammars import Grammar, broken_laws, faults_of
from tests.laws.feeding import Bench

EXAMPLES = tries(60, fast=16)


@pytest.mark.slow
def test_random_grammars_hold_the_laws(both: tuple[Bench, Bench]) -> None:
    counts = Counter[str]()
    first = SEED * 1_000
    faults = [fault for number in range(first, first + EXAMPLES) for fault in faults_of(both, number, counts)]
    assert not faults, "\n".join(map(str, faults[:3]))
    assert counts["texts"] > EXAMPLES // 2  # the laws were tried


def test_a_broken_law_is_found(both: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    grammar, counts = Grammar("lark", 'start: "a"~1..3', is_answer=False), Counter[str]()
    assert not list(broken_laws(both[0], grammar, 1, counts)) and counts["texts"]
    monkeypatch.setattr(client_grammars._Reader, "reads", lambda *_: False)
    assert [broken.law for broken in broken_laws(both[0], grammar, 1, counts)] == [
        "a text is written that the grammar does not match"
    ]
    monkeypatch.undo()
    monkeypatch.setattr(client_grammars, "_STEP_SECONDS", -1.0)
    assert [broken.law for broken in broken_laws(both[0], grammar, 1, counts)] == ["a step takes long"]
