"""Requests and metrics of the server benchmark; no server is started."""

import json

import pytest

from benchmarks.servers.__main__ import ARMS, Burst, arms_named, bodies_of, row, step_time
from benchmarks.servers.harness import SERVERS, Ratio, paired, turned


def test_an_arm_and_its_baseline_are_asked_the_same() -> None:
    arms = {arm.name: arm for arm in ARMS}
    for arm in ARMS:
        baseline = arms[arm.baseline]
        assert arm.server in SERVERS and baseline.baseline == baseline.name
        for body, other in zip(bodies_of(arm, 4, 1), bodies_of(baseline, 4, 1), strict=True):
            either = {"tool_choice": None, "vllm_xargs": None}
            if arm.is_measured != baseline.is_measured:  # of one server: the tools of both are new
                assert body.pop("tools") != other.pop("tools")
            assert body | either == other | either
            assert ("vllm_xargs" in body) == (not arm.is_measured)
            assert ("tool_choice" in body) == (arm.tool_choice is not None)


def test_ratios_are_of_the_same_round() -> None:
    own = (Burst(0.02, 0.1, 0.0, 3), Burst(0.04, 0.3, 0.02, 2.5), Burst(0.01, 0.2, 0.01, 2))
    baseline = (Burst(0.01, 0.1, 0.0, 2), Burst(0.04, 0.1, 0.0, 2), Burst(0.02, 0.1, 0.0, 2))
    ratios = paired([burst.step for burst in own], [burst.step for burst in baseline])
    assert ratios == [0.5, 1.0, 2.0]
    mean, low, high = Ratio.of(ratios)
    assert mean == pytest.approx(1)
    assert 0.5 <= low < 0.9 and 1.1 < high <= 2
    name, many, steps, ratio, spread, *others = row(ARMS[1], 8, own, baseline)
    assert (name, many, steps, *others) == (ARMS[1].name, "8", "50.0", "200.0", "1.00 %", "2.50", "1.250")
    assert ratio.startswith("1.000 (") and spread == "1.000 (0.500 to 2.000)"
    assert row(ARMS[0], 8, baseline, baseline)[3:5] == ["1", ""]


def test_rounds_that_are_far_off_do_not_count() -> None:
    times = (0.01, 0.02, *[0.1] * 6, 0.5, 2.0)
    assert Ratio.of(paired(times, [0.1] * len(times))).mean == pytest.approx(1)


def test_each_round_begins_with_another_arm() -> None:
    assert [turned("abc", number) for number in range(4)] == [[*"abc"], [*"bca"], [*"cab"], [*"abc"]]


def test_arms_are_chosen_by_their_names() -> None:
    assert arms_named([]) == ARMS
    chosen = {arm.name for arm in arms_named(["tools, constrained"])}
    assert chosen == {
        "tools, unconstrained", "tools, constrained, structured_output route", "tools, constrained, logits_processor route",
    }  # fmt: skip
    with pytest.raises(ValueError, match="'no such arm'"):
        arms_named(["strict", "no such arm"])


def test_a_step_is_timed_after_the_first_chunks() -> None:
    pieces = ((1, 0.0), (17, 5.0), (33, 5.8), (64, 8.2), (64, 9.0))
    lines = [(f"data: {json.dumps({'usage': {'completion_tokens': count}})}", time) for count, time in pieces]
    assert step_time([*lines, ("", 9.5), ("data: [DONE]", 10.0)]) == pytest.approx(3.2 / 47)
    assert step_time([lines[0], lines[3]]) == pytest.approx(8.2 / 63)


def test_a_round_whose_baseline_stalled_is_left_out() -> None:
    assert paired([0.01] * 5, [0.01, 0.01, 0.02, 400.0, 0.01]) == [1.0, 1.0, 1.0, 2.0]
