"""Measures all figures in one process and one run."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.host.arms import Arm, LLGuidanceArm, Ours, XGrammarArm
from benchmarks.host.batches import MIXES, Fills, batch_fills
from benchmarks.host.first_mask import cold_steps, first_masks
from benchmarks.host.memory import CacheRun, MemoryUse, bounded, memory_use
from benchmarks.host.steps import Steps, free_text, measure_steps
from benchmarks.host.timing import Times
from benchmarks.host.workload import Turn, Workload

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run.

    Attributes:
        sizes: Numbers of tools for the time to the first mask.
        slow_sizes: Largest number of tools for xgrammar, which takes 0.1 s per tool.
        listed: Number of tools for everything else.
        repeats: First masks measured.
        turns: Turns written to time steps.
        batches: Numbers of rows.
        batch_steps: Fills of each batch.
        model_step: Seconds between two steps of a turn with a cold cache.
        cold_turns: Turns with a cold cache.
        live: Live requests whose memory is measured.
        cache_requests: Requests with a small cache.
        cache_schemas: Their distinct schemas.
        cache_bytes: Budget of the grammar cache.
        mask_cache_bytes: Budget of the mask cache.
    """

    sizes: tuple[int, ...] = (1, 16, 64, 128, 258, 512)
    slow_sizes: int = 512
    listed: int = 64
    repeats: int = 100
    turns: int = 64
    batches: tuple[int, ...] = (1, 8, 64, 256)
    batch_steps: int = 200
    model_step: float = 0.02
    cold_turns: int = 100
    live: int = 1000
    cache_requests: int = 10_000
    cache_schemas: int = 1_000
    cache_bytes: int = 64 << 20
    mask_cache_bytes: int = 32 << 20


QUICK = Plan(
    sizes=(1, 16),
    listed=6,
    repeats=5,
    turns=6,
    batches=(1, 8),
    batch_steps=20,
    model_step=0.0,
    cold_turns=5,
    live=20,
    cache_requests=60,
    cache_schemas=20,
    cache_bytes=2 << 20,
    mask_cache_bytes=1 << 20,
)
"""A smoke test of seconds."""


@dataclass(slots=True)
class Figures:
    """The results of a run. Times have the units of the functions that measure them.

    Attributes:
        machine: The machine.
        source: Origin of the vocabulary and the tools.
        plan: The sizes.
        first_mask: Arm -> number of tools -> kind -> milliseconds.
        cold_steps: Arm -> milliseconds of a cold turn's longest step.
        steps: Arm -> microseconds by phase.
        text: Microseconds of a row in free text whose mask is resident on the device.
        text_engine_calls: Calls into an engine in free text.
        batch: Arm -> mix -> rows -> milliseconds.
        memory: Arm -> kilobytes.
        cache: The run with a small cache.
        promises: Promise, measured figure, and whether it holds.
    """

    machine: str
    source: str
    plan: Plan
    first_mask: dict[str, dict[int, dict[str, Times]]] = field(default_factory=dict)
    cold_steps: dict[str, Times] = field(default_factory=dict)
    steps: dict[str, Steps] = field(default_factory=dict)
    text: Times | None = None
    text_engine_calls: int = 0
    batch: dict[str, dict[str, dict[int, Fills]]] = field(default_factory=dict)
    memory: dict[str, MemoryUse] = field(default_factory=dict)
    cache: CacheRun | None = None
    promises: list[tuple[str, str, bool]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def measure(workload: Workload, plan: Plan, say: Say, threads: int | None = None) -> Figures:
    """Run all measurements.

    Args:
        workload: The vocabulary and the tools.
        plan: The sizes.
        say: Receives progress messages.
        threads: Threads for batches of our arm and LLGuidance's; None for all that the process may use.
    """
    cores = len(os.sched_getaffinity(0))
    machine = f"{platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f} at the start"
    figures = Figures(machine, workload.source, plan)
    say("setting up")
    ours = Ours(workload.vocabulary, threads)
    arms: tuple[Arm, ...] = (ours, XGrammarArm(workload.vocabulary), LLGuidanceArm(workload.vocabulary, threads))
    workload = _comparable(workload, arms, plan.listed)
    figures.source = workload.source
    listed = workload.first(plan.listed)
    say("memory")
    for arm in arms:
        figures.memory[arm.name] = memory_use(arm, workload, listed, plan.live)
    say(f"steps, {plan.listed} tools")
    figures.steps = measure_steps(arms, workload, listed, plan.turns)
    figures.text, figures.text_engine_calls = free_text(ours, workload, listed)
    for mix in MIXES:
        for rows in plan.batches:
            say(f"batches of {rows} rows, {mix}")
            for name, fills in batch_fills(arms, workload, listed, rows, mix, plan.batch_steps).items():
                figures.batch.setdefault(name, {}).setdefault(mix, {})[rows] = fills
    _first_masks(figures, arms, workload, plan, say)
    say("turns with a cold cache")
    starts = range(plan.cold_turns)
    long = workload.first(max(plan.sizes[:-1], default=plan.sizes[0]))
    figures.cold_steps[ours.name] = cold_steps(ours, workload, long, starts, plan.model_step)
    say("a small cache")
    figures.cache = bounded(workload, plan.cache_requests, plan.cache_schemas, plan.cache_bytes, plan.mask_cache_bytes)
    return figures


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


def _first_masks(figures: Figures, arms: Sequence[Arm], workload: Workload, plan: Plan, say: Say) -> None:
    for count in plan.sizes:
        for arm in arms:
            if count > plan.slow_sizes and isinstance(arm, XGrammarArm):
                continue
            say(f"first mask, {count} tools, {arm.name}")
            figures.first_mask.setdefault(arm.name, {})[count] = first_masks(arm, workload, count, plan.repeats)
            arm.forget()
