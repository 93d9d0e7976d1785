"""Measures the memory of compiled schemas and live requests, and the bound of the cache (glibc only)."""

import ctypes
import gc
import random
from typing import Any, NamedTuple

import psutil

from benchmarks.host.arms import Arm, Tools
from benchmarks.host.workload import Workload
from constrained_k2.compiler.compiler import Compiler
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.vocabulary.bitmask import allocate_bitmask


class CacheRun(NamedTuple):
    """Many requests with a small cache, in megabytes: its budget, its largest size, the process's largest growth."""

    bound: float
    counted: float
    grown: float


def memory_use(arm: Arm, workload: Workload, tools: Tools, requests: int) -> tuple[float, float]:
    """Return an arm's kilobytes per compiled and called tool, and per live request inside a call."""
    arm.forget()
    bitmask = allocate_bitmask(1, workload.vocabulary.size)
    before = _resident_kb()
    compiled = arm.compile(arm.request(tools))
    for number in range(len(tools)):
        _half_a_turn(arm, compiled, workload, tools, number, bitmask)
    between = _resident_kb()
    live = [_half_a_turn(arm, compiled, workload, tools, number, bitmask) for number in range(requests)]
    after = _resident_kb()
    return (between - before) / len(tools), (after - between) / len(live)


def bounded(workload: Workload, requests: int, schemas: int, cache_bytes: int, mask_cache_bytes: int) -> CacheRun:
    """Run requests that each call one of many schemas at random, with a cache that fits only some of them."""
    chance = random.Random(0)  # noqa: S311 - choosing samples
    compiler = Compiler(workload.vocabulary, cache_bytes=cache_bytes, mask_cache_bytes=mask_cache_bytes)
    bitmask = allocate_bitmask(1, workload.vocabulary.size)
    tools = workload.first(schemas)
    specs = [ToolCallSpec.from_openai({"tools": [tool], "tool_choice": "required"}) for tool in tools]
    before = _resident_kb()
    counted = grown = 0.0
    for number in range(requests):
        chosen = chance.randrange(schemas)
        matcher = compiler.compile(specs[chosen], check=False).matcher()
        turn = workload.turn([tools[chosen]], 0, calls=1)
        call = turn.ids[turn.phases.index("marker") - 1 :]
        for token_id in call:
            matcher.fill_bitmask(bitmask)
            if not matcher.accept_tokens((token_id,)):
                raise RuntimeError("a valid token of the turn was rejected")
        if number % 100 == 0 or number == requests - 1:
            counted = max(counted, (compiler.cached_bytes + compiler.engine("llguidance").cached_bytes) / 2**20)
            grown = max(grown, (_resident_kb() - before) / 1024)
    return CacheRun((cache_bytes + mask_cache_bytes) / 2**20, counted, grown)


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
    """Return the resident memory after freed memory is returned to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return float(psutil.Process().memory_info().rss / 1024)
