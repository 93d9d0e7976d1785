"""Slow client grammars in a batch with good requests. ``python -m tests.laws.soak --minutes 10`` runs longer."""

import pytest

from constrained_k2 import Compiler
from tests.laws import soak


def test_hostile_grammars_leave_other_requests_alone(small_compiler: Compiler) -> None:
    report = soak.soak(small_compiler, seconds=0, hostile=soak.HOSTILE[3::2])
    assert not report.problems and report.rounds > soak._WARM_ROUNDS and report.hostile_steps > 100


def test_a_difference_is_found(small_compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["masks"] * 5 + ["other masks"] * 100)
    monkeypatch.setattr(soak, "_good_masks", lambda *_: next(digests))
    report = soak.soak(small_compiler, seconds=0)
    assert len(report.problems) == report.rounds - 4 and "another request's masks differ" in report.problems[0]
