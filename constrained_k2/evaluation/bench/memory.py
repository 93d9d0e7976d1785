"""What compiled schemas and live requests hold, and whether the cache keeps to its bound. For Linux."""

import ctypes
import gc
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from constrained_k2.bitmask import allocate_bitmask
from constrained_k2.compiler import Compiler
from constrained_k2.evaluation.bench.arms import Arm, Tools
from constrained_k2.evaluation.bench.workload import Workload
from constrained_k2.tools import ToolCallSpec


@dataclass(frozen=True, slots=True)
class Held:
    """What a process grew by.

    Attributes:
        schema_kb: For each tool of a list that has been compiled and called.
        request_kb: For each live request in the middle of a call's arguments.
    """

    schema_kb: float
    request_kb: float


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Many requests over a small cache.

    Attributes:
        requests: How many.
        schemas: How many distinct schemas they called.
        bound_mb: The budget of the cache and of that of masks.
        counted_mb: The most that the two counted.
        grown_mb: The most that the process grew by.
    """

    requests: int
    schemas: int
    bound_mb: float
    counted_mb: float
    grown_mb: float


def held(arm: Arm, workload: Workload, tools: Tools, requests: int) -> Held:
    """Measure what an arm holds for a list of tools, each of which is called once, and for live requests."""
    arm.forget()
    bitmask = allocate_bitmask(1, workload.vocabulary.size)
    before = _resident_kb()
    compiled = arm.compile(arm.request(tools))
    for number in range(len(tools)):
        _half_a_turn(arm, compiled, workload, tools, number, bitmask)
    between = _resident_kb()
    live = [_half_a_turn(arm, compiled, workload, tools, number, bitmask) for number in range(requests)]
    after = _resident_kb()
    return Held((between - before) / len(tools), (after - between) / len(live))


def bounded(  # noqa: PLR0913, PLR0917 - what one run is
    workload: Workload, requests: int, schemas: int, cache_bytes: int, mask_cache_bytes: int, seed: int = 0
) -> CacheRun:
    """Requests that each call one of many distinct schemas, at random, over a cache that holds a part of them.

    Args:
        workload: The tools that the schemas are made of.
        requests: How many.
        schemas: How many distinct schemas.
        cache_bytes: The cache's budget.
        mask_cache_bytes: That of the masks.
        seed: Of which request calls which.
    """
    chance = random.Random(seed)  # noqa: S311 - choosing samples
    compiler = Compiler(workload.vocabulary, cache_bytes=cache_bytes, mask_cache_bytes=mask_cache_bytes)
    bitmask = allocate_bitmask(1, workload.vocabulary.size)
    tools = workload.first(schemas)
    specs = [ToolCallSpec.from_openai({"tools": [tool], "tool_choice": "required"}) for tool in tools]
    before = _resident_kb()
    counted = grown = 0.0
    for number in range(requests):
        place = chance.randrange(schemas)
        matcher = compiler.compile(specs[place], check=False).matcher()
        turn = workload.turn([tools[place]], 0, calls=1)
        call = turn.ids[turn.phases.index("marker") - 1 :]
        for token_id in call:
            matcher.fill_bitmask(bitmask)
            if not matcher.accept_tokens((token_id,)):
                raise RuntimeError("a token of a turn that was made for the tool is refused")
        if number % 100 == 0 or number == requests - 1:
            counted = max(counted, (compiler.cached_bytes + compiler.cached_mask_bytes) / 2**20)
            grown = max(grown, (_resident_kb() - before) / 1024)
    return CacheRun(requests, schemas, (cache_bytes + mask_cache_bytes) / 2**20, counted, grown)


def _half_a_turn(  # noqa: PLR0913, PLR0917 - a request's parts
    arm: Arm, compiled: Any, workload: Workload, tools: Tools, number: int, bitmask: Any
) -> Any:
    turn = workload.turn(tools, number, calls=1)
    matcher = arm.matcher(compiled)
    for token_id in turn.ids[: (len(turn.ids) + turn.phases.index("header")) // 2]:
        arm.fill(matcher, bitmask, 0)
        arm.accept(matcher, token_id)
    return matcher


def _resident_kb() -> float:
    """What the process holds, after what it has freed is given back: else it would be used again, unseen."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1])
    return 0.0
