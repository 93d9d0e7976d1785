"""The part ``uploads``: what a step of the logits-processor route copies to the device, and its time on the host."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.kernel_api import Launch, entry, launch_reference
from benchmarks.gpu.parts import PartOptions
from benchmarks.gpu.results import Cell, Recorder, Table
from benchmarks.gpu.rows import Calls, Row
from constrained_k2.vllm_plugin.worker.device_masks import DeviceMasks
from constrained_k2.vocabulary.bitmask import allocate_bitmask, words_per_row


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run.

    Attributes:
        rows: Rows of the batch.
        tools: Tools that are called.
        cold: Steps that begin with empty caches.
        warm: Steps that follow.
        compared: Every so many steps the logits are compared with the reference.
    """

    rows: int
    tools: int
    cold: int
    warm: int
    compared: int


FULL = Plan(rows=256, tools=64, cold=150, warm=300, compared=25)
SMALL = Plan(rows=8, tools=4, cold=30, warm=30, compared=3)


@dataclass(slots=True)
class Steps:
    """The measurements, step by step.

    Attributes:
        uploaded: Bytes that were copied to the device.
        collected: Microseconds on the host to collect the masks of all rows.
        applied: Microseconds on the host to copy and launch.
        device: Microseconds on the device between the two ends of that; empty without a GPU.
    """

    uploaded: list[int] = field(default_factory=list)
    collected: list[float] = field(default_factory=list)
    applied: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)


def measure(options: PartOptions, record: Recorder) -> None:
    """Have rows write calls; count what is uploaded and compare logits with the reference."""
    plan = SMALL if options.interpret else FULL
    record.say("compiling tools")
    scratch = Path(options.output) / "tokenizer"
    calls = Calls(Path(options.shared), scratch, plan.tools)
    batch = Batch(calls, plan, torch.device(options.device))
    cold = batch.run(plan.cold, record, "cold", options.end)
    warm = batch.run(plan.warm, record, "warm", options.end)
    record.check(
        "logits of whole steps: equal to the reference",
        passed=batch.wrong is None,
        note=batch.wrong or f"{batch.compared} steps of {plan.rows} rows",
    )
    if options.interpret:
        record.not_run("copies that torch sees, synchronisation, and times of a step", "they need a GPU")
    else:
        _watch(batch, record)
    record.table(_table(calls, plan, cold, warm, is_timed=not options.interpret))
    if not options.interpret:
        from benchmarks.gpu import processor_step

        processor_step.measure(calls, plan.rows, record, options.end)


class Batch:
    """Rows that write calls, and the masks of the device that their logits get."""

    def __init__(self, calls: Calls, plan: Plan, device: torch.device) -> None:
        size = calls.workload.vocabulary.size
        self._plan, self._size, self._device = plan, size, device
        self._rows = [Row(calls, number) for number in range(plan.rows)]
        self.masks = DeviceMasks(size, plan.rows, device, 0, pin=device.type == "cuda")
        self.masks.warm_up(size)  # compiles the kernel
        self.logits = torch.randn((plan.rows, size), device=device)
        self._host = allocate_bitmask(plan.rows, size)
        self.compared = 0
        self.wrong: str | None = None

    def run(self, steps: int, record: Recorder, name: str, end: float) -> Steps:
        """Run steps, fewer if the time ends."""
        record.say(f"{steps} steps of {len(self._rows)} rows, {name}")
        found = Steps()
        for number in range(steps):
            if time.monotonic() > end and number > 1:
                record.not_run(f"{steps - number} of {steps} {name} steps", "the time was used up")
                break
            compares = number % self._plan.compared == 0
            before = self.logits.normal_().clone() if compares else None
            self.step(found)
            if before is not None:
                self._compare(before, number)
            for row in self._rows:
                row.advance()
        return found

    def step(self, found: Steps) -> None:
        """Collect and apply the masks of all rows."""
        uploaded = self.masks.uploaded_bytes
        start = time.perf_counter_ns()
        self.collect()
        middle = time.perf_counter_ns()
        events = self._events()
        self.masks.apply(self.logits)
        if events:
            events[1].record()
        last = time.perf_counter_ns()
        found.uploaded.append(self.masks.uploaded_bytes - uploaded)
        found.collected.append((middle - start) / 1e3)
        found.applied.append((last - middle) / 1e3)
        if events:
            events[1].synchronize()
            found.device.append(1e3 * events[0].elapsed_time(events[1]))

    def collect(self) -> None:
        """Collect the masks of all rows."""
        self.masks.begin()
        self.masks.begin_rows()
        for number, row in enumerate(self._rows):
            self.masks.add(number, row.matcher)

    def _events(self) -> Sequence[Any]:
        if self._device.type != "cuda":
            return ()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        return events

    def _compare(self, expected: torch.Tensor, number: int) -> None:
        """Mask the logits of before the step by each matcher's own bitmask, and compare."""
        for row, source in enumerate(self._rows):
            source.matcher.fill_bitmask(self._host, row)
        masks = torch.from_numpy(self._host).to(self._device)
        entries = [entry(row, row) for row in range(len(self._rows))]
        plan = torch.tensor(entries, dtype=torch.int32, device=self._device)
        launch_reference(Launch(expected, masks, plan, plan[:0, 0], None))
        self.compared += 1
        wrong = torch.nonzero((expected != self.logits).any(dim=1)).flatten().tolist()
        if wrong and self.wrong is None:
            self.wrong = f"step {number}: rows {wrong[:5]} differ"


class _Copies(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes that torch copies from the host to a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            target, source = args[:2]
        elif func is torch.ops.aten._to_copy.default:  # noqa: SLF001 - torch's name
            target, source = made, args[0]
        else:
            return made
        if target.is_cuda and not source.is_cuda:
            self.count += source.nbytes
        return made


def _watch(batch: Batch, record: Recorder) -> None:
    """Check one more step: the counted bytes, and that applying does not synchronise."""
    uploaded = batch.masks.uploaded_bytes
    with _Copies() as copies:
        batch.step(Steps())
    counted = batch.masks.uploaded_bytes - uploaded
    note = f"{copies.count:,} and {counted:,} bytes"
    record.check("the bytes that torch copies are those that are counted", passed=copies.count == counted, note=note)
    batch.collect()
    torch.cuda.set_sync_debug_mode("error")
    error = ""
    try:
        batch.masks.apply(batch.logits)
    except RuntimeError as found:
        error = str(found)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    record.check("applying a step's masks does not synchronise", passed=not error, note=error)


def _table(calls: Calls, plan: Plan, cold: Steps, warm: Steps, *, is_timed: bool) -> Table:
    whole = 4 * words_per_row(calls.workload.vocabulary.size) * plan.rows
    rows: list[tuple[Cell, ...]] = []
    for name, steps in (("cold", cold), ("warm", warm)):
        times = (
            ("collect masks, µs on the host", steps.collected),
            ("copy and launch, µs on the host", steps.applied),
            ("copy and launch, µs on the device", steps.device),
        )
        for what, samples in (("bytes uploaded", steps.uploaded), *(times if is_timed else ())):
            if samples:
                ordered = sorted(samples)
                highest = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
                rows.append((f"{name}: {what}", statistics.median(ordered), highest, ordered[-1]))
    note = (
        f"{plan.rows} rows, each inside calls of {plan.tools} tools; one mask for each row would be {whole:,} bytes. "
        f"{calls.workload.source}"
    )
    return Table("A step on the logits-processor route", ("", "median", "p99", "maximum"), tuple(rows), note)
