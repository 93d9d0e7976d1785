"""Measure what constraining costs on the host: time to first mask, cost of steps and batches, memory.

One process and no model: this package's matcher, xgrammar's kimi structural tag compiled as vLLM compiles it, and
LLGuidance's grammar of the whole turn, on the same tools and turns. About 15 minutes on two idle cores, most of it
xgrammar's compilation. Exit code 1 if a promised figure is missed.
"""

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.host.arms import LLGUIDANCE, OURS, XGRAMMAR, Arm, llguidance_grammar, ours, xgrammar_tag
from benchmarks.host.batches import MIXES, batch_fills
from benchmarks.host.first_mask import cold_steps, first_masks
from benchmarks.host.memory import bounded, memory_use
from benchmarks.host.steps import measure_steps
from benchmarks.host.timing import Times
from benchmarks.host.workload import PHASES, Turn, Workload, load
from benchmarks.report import Report
from constrained_k2.schema.undeclared_keys import UNDECLARED_KEYS, UndeclaredKeys

_LONG_LIST = 258
_LARGE_BATCH = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run."""

    sizes: tuple[int, ...] = (1, 16, 64, 258, 512)  # numbers of tools for the time to the first mask
    listed: int = 64  # number of tools for everything else
    repeats: int = 100  # first masks measured
    turns: int = 64  # turns written to time steps
    batches: tuple[int, ...] = (1, 8, 64, 256)  # numbers of rows
    batch_steps: int = 200  # fills of each batch
    model_step: float = 0.02  # seconds between two steps of a turn with a cold cache
    cold_turns: int = 100
    live: int = 1000  # live requests whose memory is measured
    cache_requests: int = 10_000
    cache_schemas: int = 1_000
    cache_bytes: int = 64 << 20
    mask_cache_bytes: int = 32 << 20


QUICK = Plan(
    (1, 16), 6, 5, 6, (1, 8), 20, model_step=0.0, cold_turns=5, live=20, cache_requests=60, cache_schemas=20,
    cache_bytes=2 << 20, mask_cache_bytes=1 << 20,
)  # fmt: skip
"""A smoke test of seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the tables of docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test: the figures mean little")
    parser.add_argument(
        "--undeclared-keys", choices=UNDECLARED_KEYS, default="forbid", help="of our arm, as the setting: %(default)s"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        workload = load(Path(scratch))
    report = Report()
    measure(workload, QUICK if options.quick else Plan(), report, options.undeclared_keys)
    return int(bool(report.failed) and not options.quick)


def measure(workload: Workload, plan: Plan, report: Report, undeclared_keys: UndeclaredKeys = "forbid") -> None:
    """Run all measurements, and print each when it is made."""
    vocabulary = workload.vocabulary
    arms = ours(vocabulary, undeclared_keys), xgrammar_tag(vocabulary), llguidance_grammar(vocabulary)
    workload = _comparable(workload, arms, plan.listed)
    listed = workload.first(plan.listed)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start"
    report.say(f"{workload.source}. {machine}. {plan.listed} tools unless stated otherwise.")
    memory = {arm.name: memory_use(arm, workload, listed, plan.live) for arm in arms}
    rows = [(name, *found) for name, found in memory.items()]
    report.table("Memory, KiB", ("", "a compiled and called tool", "a live request"), rows)
    _steps(report, arms, workload, listed, plan)
    _batches(report, arms, workload, listed, plan)
    _first_masks(report, arms, workload, plan)
    long = workload.first(max(plan.sizes[:-1], default=plan.sizes[0]))
    cold = cold_steps(arms[0], workload, long, range(plan.cold_turns), plan.model_step)
    report.say(f"Longest step of a turn whose schema is cold (ours), ms, p50 / p99 / max: {_three(cold)}.\n")
    report.check("no step over 10 ms, cold", passed=cold.max <= 10, note=f"{cold.p99:.1f} ms p99, {cold.max:.1f} max")
    cache = bounded(workload, plan.cache_requests, plan.cache_schemas, plan.cache_bytes, plan.mask_cache_bytes)
    report.check(
        f"{plan.cache_requests} requests, {plan.cache_schemas} schemas: within the caches' {cache.bound:.0f} MiB",
        passed=max(cache.counted, cache.grown) <= cache.bound,
        note=f"{cache.counted:.0f} MiB counted, {cache.grown:.0f} MiB grown",
    )


def _comparable(workload: Workload, arms: Sequence[Arm], listed: int) -> Workload:
    """Keep the tools that every arm can compile; those whose sample calls every arm accepts come first."""
    taken = [tool for tool in workload.tools if all(arm.takes(tool) for arm in arms)]
    written: list[dict[str, Any]] = []
    for tool in taken:
        if len(written) == listed:
            break
        turns = [workload.turn([tool], seed, calls=1) for seed in range(2)]
        if all(_accepts(arm, tool, turn) for arm in arms for turn in turns):
            written.append(tool)
    names = {tool["function"]["name"] for tool in written}
    rest = [tool for tool in taken if tool["function"]["name"] not in names]
    source = f"{workload.source}, {len(taken)} of them compiled by all three"
    return replace(workload, tools=(*written, *rest), source=source)


def _accepts(arm: Arm, tool: dict[str, Any], turn: Turn) -> bool:
    matcher = arm.matcher(arm.compile(arm.request([tool])))
    return all(arm.accept(matcher, token_id) for token_id in turn.ids)


def _steps(report: Report, arms: Sequence[Arm], workload: Workload, listed: list[dict[str, Any]], plan: Plan) -> None:
    steps = measure_steps(arms, workload, listed, plan.turns)
    rows = [(name, *(_three(found.fill[phase]) for phase in PHASES)) for name, found in steps.items()]
    report.table("A mask, µs, p50 / p99 / max", ("", *PHASES), rows)
    columns = ("", "mask, strings and structure", "four tokens back", "fork", "step, mean", "the first time")
    report.table(
        "µs, p50 / p99 / max; then the mean of a step, mask and token, over whole turns and over new turns",
        columns,
        [
            (name, *map(_three, (found.inside, found.rollback, found.fork)), found.turn_mean, found.first_mean)
            for name, found in steps.items()
        ],
    )
    inside = steps[OURS].inside
    note = f"{inside.p50:.1f} µs p50, {inside.p99:.0f} µs p99"
    report.check("inside a call: 5 µs p50, 150 µs p99", passed=inside.p50 <= 5 and inside.p99 <= 150, note=note)
    factor = steps[XGRAMMAR].turn_mean / steps[OURS].turn_mean
    report.check(f"whole turns: 3 times as cheap as {XGRAMMAR}", passed=factor >= 3, note=f"{factor:.1f} times")


def _batches(report: Report, arms: Sequence[Arm], workload: Workload, listed: list[dict[str, Any]], plan: Plan) -> None:
    for mix in MIXES:
        found = {rows: batch_fills(arms, workload, listed, rows, mix, plan.batch_steps) for rows in plan.batches}
        for when, called in (("steady", ""), ("first", ", turns not written before")):
            lines = [
                (arm.name, *(_three(getattr(found[rows][arm.name], when)) for rows in plan.batches)) for arm in arms
            ]
            title = f"Batch fill, {mix}{called}, ms, p50 / p99 / max"
            report.table(title, ("rows", *map(str, plan.batches)), lines)
        if mix == "inside" and _LARGE_BATCH in found:
            steady = found[_LARGE_BATCH][OURS].steady
            what, note = f"{_LARGE_BATCH} rows inside calls: 1.5 ms p50, 5 ms max", _three(steady)
            report.check(what, passed=steady.p50 <= 1.5 and steady.max <= 5, note=note)


def _first_masks(report: Report, arms: Sequence[Arm], workload: Workload, plan: Plan) -> None:
    found: dict[str, dict[int, dict[str, Times]]] = {OURS: {}, XGRAMMAR: {}, LLGUIDANCE: {}}
    for count in plan.sizes:
        for arm in arms:
            found[arm.name][count] = first_masks(arm, workload, count, plan.repeats)
            arm.forget()
    for kind in ("cold", "changed"):
        rows = [(name, *(_two(times[size][kind]) for size in plan.sizes)) for name, times in found.items()]
        title = f"First mask, {kind}, ms, p50 / p99 if measured more than once"
        report.table(title, ("tools", *map(str, plan.sizes)), rows)
    if _LONG_LIST in found[OURS]:
        cold = found[OURS][_LONG_LIST]["cold"]
        report.check(f"first mask, {_LONG_LIST} tools: 5 ms", passed=cold.p99 <= 5, note=f"{cold.p99:.2f} ms p99")
        factor = found[XGRAMMAR][_LONG_LIST]["cold"].p50 / cold.p50
        report.check(f"… 100 times as fast as {XGRAMMAR}", passed=factor >= 100, note=f"{factor:.0f} times")


def _two(times: Times) -> str:
    return f"{times.p50:.2f} / {times.p99:.2f}" if times.count > 1 else f"{times.p50:.0f}"


def _three(times: Times) -> str:
    return f"{times.p50:.2f} / {times.p99:.2f} / {times.max:.2f}"


if __name__ == "__main__":
    sys.exit(main())
