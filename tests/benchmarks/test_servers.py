"""Requests and metrics of the server benchmark; no server is started."""

import json
from argparse import ArgumentParser

import pytest

from benchmarks.servers.__main__ import Burst, bodies_of, row, step_time
from benchmarks.servers.harness import ARMS, FREE, Ratio, options_with_arms, paired, turned


def test_every_seed_has_tools_of_its_own() -> None:
    one, again, other = (bodies_of(4, seed) for seed in (1, 1, 2))
    assert one == again
    assert not {json.dumps(body["tools"]) for body in one} & {json.dumps(body["tools"]) for body in other}


def test_ratios_are_of_the_same_round() -> None:
    own = (Burst(0.02, 0.1, 0.0, 3), Burst(0.04, 0.3, 0.02, 2.5), Burst(0.01, 0.2, 0.01, 2))
    baseline = (Burst(0.01, 0.1, 0.0, 2), Burst(0.04, 0.1, 0.0, 2), Burst(0.02, 0.1, 0.0, 2))
    ratios = paired([burst.step for burst in own], [burst.step for burst in baseline])
    assert ratios == [0.5, 1.0, 2.0]
    mean, low, high = Ratio.of(ratios)
    assert mean == pytest.approx(1)
    assert 0.5 <= low < 0.9 and 1.1 < high <= 2
    name, many, steps, ratio, *others = row("arm", 8, own, baseline)
    assert (name, many, steps, *others) == ("arm", "8", "50.0", "200.0", "1.00 %", "2.50", "1.250")
    assert ratio.startswith("1.000 (")
    assert row("arm", 8, baseline, baseline)[3] == "1"


def test_rounds_that_are_far_off_do_not_count() -> None:
    times = (0.01, 0.02, *[0.1] * 6, 0.5, 2.0)
    assert Ratio.of(paired(times, [0.1] * len(times))).mean == pytest.approx(1)


def test_each_round_begins_with_another_arm() -> None:
    assert [turned("abc", number) for number in range(4)] == [[*"abc"], [*"bca"], [*"cab"], [*"abc"]]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([], [*ARMS]),
        (["--arm", "constrained, l"], [FREE, "tools, constrained, logits_processor route"]),
        (["--arm", "strict", "--arm", "constrained, l"], [FREE, [*ARMS][2], [*ARMS][3]]),
    ],
)
def test_arms_are_chosen_by_their_names(given: list[str], chosen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark", *given])
    assert options_with_arms(ArgumentParser())[1] == chosen
    monkeypatch.setattr("sys.argv", ["benchmark", *given, "--arm", "no such arm"])
    with pytest.raises(SystemExit):
        options_with_arms(ArgumentParser())


def test_a_step_is_timed_after_the_first_chunks() -> None:
    pieces = ((1, 0.0), (17, 5.0), (33, 5.8), (64, 8.2), (64, 9.0))
    lines = [(f"data: {json.dumps({'usage': {'completion_tokens': count}})}", time) for count, time in pieces]
    assert step_time([*lines, ("", 9.5), ("data: [DONE]", 10.0)]) == pytest.approx(3.2 / 47)
    assert step_time([lines[0], lines[3]]) == pytest.approx(8.2 / 63)


def test_a_round_whose_baseline_stalled_is_left_out() -> None:
    assert paired([0.01] * 5, [0.01, 0.01, 0.02, 400.0, 0.01]) == [1.0, 1.0, 1.0, 2.0]
