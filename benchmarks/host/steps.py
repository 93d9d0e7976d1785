"""Times each step of a turn by phase: mask and token, rollback and fork."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.host.arms import Arm, Tools
from benchmarks.host.timing import Times, collected_before, microseconds
from benchmarks.host.workload import Turn, Workload
from constrained_k2.vocabulary.bitmask import allocate_bitmask

_ROLLBACK = 4
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Steps:
    """An arm's times, in microseconds."""

    fill: dict[str, Times]  # A mask, by phase
    rollback: Times  # rolling back four tokens inside arguments
    fork: Times  # A fork inside arguments
    inside: Times  # A mask inside arguments, strings and structure together
    first_mean: float  # A step's mask and token: the mean over whole turns written for the first time
    turn_mean: float  # the same for turns written before, each its median: others' work would dominate a mean


@dataclass(slots=True)
class _Samples:
    fill: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rollback: list[float] = field(default_factory=list)
    fork: list[float] = field(default_factory=list)
    turns: defaultdict[Sequence[int], list[float]] = field(default_factory=lambda: defaultdict(list))


def measure_steps(arms: Sequence[Arm], workload: Workload, tools: Tools, turns: int) -> dict[str, Steps]:
    """Write the same turns with every arm alternately: a first round, a second and steady ones."""
    for arm in arms:
        arm.forget()
    compiled = {arm.name: arm.compile(arm.request(tools)) for arm in arms}
    scripts = [workload.turn(tools, seed) for seed in range(turns)]
    rounds = [{arm.name: _Samples() for arm in arms} for _ in ("first", "second", "steady")]
    with collected_before():
        for samples, times in zip(rounds, (1, 1, _ROUNDS), strict=True):
            for script in scripts * times:
                for arm in arms:
                    _write(arm, compiled[arm.name], script, samples[arm.name], workload.vocabulary.size)
    first, _, steady = rounds
    return {arm.name: _summary(first[arm.name], steady[arm.name]) for arm in arms}


def _write(arm: Arm, compiled: Any, script: Turn, samples: _Samples, size: int) -> None:
    matcher = arm.matcher(compiled)
    bitmask = allocate_bitmask(1, size)
    inside, spent = 0, 0.0
    for index, (token_id, phase) in enumerate(zip(script.ids, script.phases, strict=True)):
        start = time.perf_counter_ns()
        arm.fill(matcher, bitmask, 0)
        samples.fill[phase].append(microseconds(start))
        start = time.perf_counter_ns()
        accepted = arm.accept(matcher, token_id)
        spent += samples.fill[phase][-1] + microseconds(start)
        if not accepted:
            raise RuntimeError(f"{arm.name} rejects token {index} ({phase}) of a turn that all arms must accept")
        inside = inside + 1 if phase in {"string", "structure"} else 0
        if inside % 8 == _ROLLBACK:
            start = time.perf_counter_ns()
            arm.fork(matcher)
            samples.fork.append(microseconds(start))
            start = time.perf_counter_ns()
            arm.rollback(matcher, _ROLLBACK)
            samples.rollback.append(microseconds(start))
            for again in script.ids[index + 1 - _ROLLBACK : index + 1]:
                arm.accept(matcher, again)
    samples.turns[script.ids].append(spent)


def _mean(samples: _Samples) -> float:
    return sum(map(median, samples.turns.values())) / sum(map(len, samples.turns))


def _summary(first: _Samples, samples: _Samples) -> Steps:
    fill = {phase: Times.of(found) for phase, found in samples.fill.items()}
    inside = Times.of([*samples.fill["string"], *samples.fill["structure"]])
    back, fork = Times.of(samples.rollback), Times.of(samples.fork)
    return Steps(fill, back, fork, inside, _mean(first), _mean(samples))
