"""From a request to its first mask, and the longest step after it while schemas are still cold."""

import time
from collections.abc import Sequence
from typing import Any

from constrained_k2.bitmask import allocate_bitmask
from constrained_k2.evaluation.bench.arms import Arm, Tools
from constrained_k2.evaluation.bench.timing import Times, collected_before, microseconds
from constrained_k2.evaluation.bench.workload import Workload, changed

_SLOW_MS = 500.0
KINDS = ("cold", "warm", "changed")


def first_masks(arm: Arm, workload: Workload, count: int, repeats: int) -> dict[str, Times]:
    """Milliseconds to the first mask for a list of ``count`` tools.

    Args:
        arm: Who.
        workload: The tools.
        count: How many of them.
        repeats: How often; an arm that takes half a second and more is asked once a kind.

    Returns:
        ``cold``: nothing compiled before. ``warm``: the same list once more. ``changed``: the list with one tool's
        schema changed, the rest compiled before.
    """
    tools = workload.first(count)
    bitmask = allocate_bitmask(1, workload.vocabulary.size)
    samples: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for repeat in range(repeats):
        arm.forget()
        requests = {
            "cold": arm.request(tools),
            "warm": arm.request(tools),
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
    """Milliseconds of the longest step of each of some turns, each over an empty cache: what a batch waits for.

    The first mask is not among the steps; :func:`first_masks` has it.

    Args:
        arm: Who.
        workload: For turns.
        tools: The list.
        starts: The tools that the turns call.
        model_step: Seconds to sleep between two steps, as a model would take; work begun ahead goes on meanwhile.
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
                begun = time.perf_counter_ns()
                taken = arm.accept(matcher, token_id)
                arm.fill(matcher, bitmask, 0)
                steps.append(microseconds(begun) / 1e3)
                assert taken
                if phase in {"marker", "header"}:
                    time.sleep(model_step)
        longest.append(max(steps))
    return Times.of(longest)
