"""Times a request up to its first mask, and the longest step after it while schemas are cold."""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.host.arms import Arm, Tools
from benchmarks.host.timing import Times, collected_before, microseconds
from benchmarks.host.workload import Workload, changed
from constrained_k2.vocabulary.bitmask import allocate_bitmask

_SLOW_MS = 500.0


def first_masks(arm: Arm, workload: Workload, count: int, repeats: int) -> dict[str, Times]:
    """Measure the milliseconds to the first mask for ``count`` tools.

    An arm that takes half a second or more is measured once a kind. ``cold``: nothing is compiled yet. ``changed``: one
    tool's schema is new, the rest are compiled.
    """
    tools = workload.first(count)
    bitmask = allocate_bitmask(1, workload.vocabulary.size)
    samples: dict[str, list[float]] = {"cold": [], "changed": []}
    for repeat in range(repeats):
        arm.forget()
        requests = {
            "cold": arm.request(tools),
            "changed": arm.request(changed(tools, repeat % count, 1000 + repeat)),
        }
        for kind, request in requests.items():
            with collected_before():
                start = time.perf_counter_ns()
                arm.fill(arm.matcher(arm.compile(request)), bitmask, 0)
                samples[kind].append(microseconds(start) / 1e3)
        if samples["cold"][0] > _SLOW_MS:
            break
    return {kind: Times.of(found) for kind, found in samples.items()}


def cold_steps(arm: Arm, workload: Workload, tools: Tools, starts: Sequence[int], model_step: float) -> Times:
    """Measure the longest step of each turn in milliseconds, with an empty cache: a batch waits that long.

    The first mask is not included; :func:`first_masks` measures it. ``starts``: the tools that the turns call, by
    position. ``model_step``: seconds between two steps, in place of the model; compilation continues meanwhile.
    """
    bitmask = allocate_bitmask(1, workload.vocabulary.size)
    longest: list[float] = []
    request = arm.request(tools)
    for start in starts:
        turn = workload.turn(tools, start, calls=1)
        arm.forget()
        matcher: Any = arm.matcher(arm.compile(request))
        arm.fill(matcher, bitmask, 0)
        steps: list[float] = []
        with collected_before():
            for token_id, phase in zip(turn.ids, turn.phases, strict=True):
                start_ns = time.perf_counter_ns()
                taken = arm.accept(matcher, token_id)
                arm.fill(matcher, bitmask, 0)
                steps.append(microseconds(start_ns) / 1e3)
                assert taken
                if phase in {"marker", "header"}:
                    time.sleep(model_step)
        longest.append(max(steps))
    return Times.of(longest)
