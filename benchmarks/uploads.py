"""Count the bytes that each step copies to the device, over whole turns of many requests in calls (about 2 minutes).

No device is needed: what would be copied to one is copied within host memory, and no logits are masked. Exit code 1 if
the median of a step with 256 requests exceeds 64 KB once the masks have been seen. `python -m benchmarks.gpu` also
masks logits, compares them with those that the matchers' own masks leave, and prints times.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.host.timing import Times, microseconds
from benchmarks.host.workload import Turn, Workload, load
from benchmarks.report import Report
from constrained_k2 import CompiledToolCalls, Compiler, ToolCallMatcher, ToolCallSpec
from constrained_k2.kernels import torch_kernel
from constrained_k2.turn.phases import Phase
from constrained_k2.vllm_plugin.worker.device_masks import DeviceMasks
from constrained_k2.vocabulary.bitmask import allocate_bitmask, words_per_row

LIMIT = 64 << 10
"""The most bytes of the median step of 256 requests."""
_COMPARED = 25  # every so many steps, logits are compared
_PLAN_BYTES = 12
"""The size of a row in a plan that names its row of the logits, its mask and whether it is guarded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uploads", description=__doc__)
    parser.add_argument("--rows", type=int, default=256, help="requests in calls (default: %(default)s)")
    parser.add_argument("--tools", type=int, default=64, help="tools of each request (default: %(default)s)")
    options = parser.parse_args(arguments)
    report = Report()
    measure(report, rows=options.rows, tools=options.tools, is_masked=False)
    return int(bool(report.failed))


@dataclass(slots=True)
class Steps:
    """Some steps."""

    sizes: list[int] = field(default_factory=list)  # the bytes that each copies
    whole: list[int] = field(default_factory=list)  # the same, if all computed masks were copied
    times: dict[str, list[float]] = field(default_factory=dict)  # what is timed -> microseconds of each


@dataclass(slots=True)
class _Request:
    """A request that writes a call, and then the same one again."""

    compiled: CompiledToolCalls
    turn: Turn
    matcher: ToolCallMatcher = field(init=False)
    step: int = 0
    turns: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin the turn after its text."""
        self.matcher = self.compiled.matcher()
        self.step = self.turn.phases.index("marker")
        if not self.matcher.accept_tokens(self.turn.ids[: self.step]):
            raise RuntimeError("a turn begins with a token that is not allowed")

    def advance(self) -> None:
        """Take the next token, and begin again after the last one."""
        if not self.matcher.accept_tokens(self.turn.ids[self.step : self.step + 1]):
            raise RuntimeError(f"token {self.step} of a turn is not allowed")
        self.step += 1
        if self.step == len(self.turn.ids):
            self.turns += 1
            self.begin()


class _Unmasked(DeviceMasks):
    """Copies what a launch needs, and launches nothing: on a CPU that takes many times as long."""

    def _launch(self, *_: object) -> None:
        pass


class Batch:
    """Requests in calls of the same tools, each at a place of its own, and the masks that their logits get."""

    def __init__(self, workload: Workload, rows: int, tools: int, device: str, *, is_masked: bool) -> None:
        self._size, self._device = workload.vocabulary.size, torch.device(device)
        given = workload.first(tools)
        compiled = Compiler(workload.vocabulary).compile(ToolCallSpec.from_openai({"tools": given}))
        self.requests = [_Request(compiled, workload.turn(given, number, calls=1)) for number in range(rows)]
        for number, request in enumerate(self.requests):
            for _ in range(number % 7):  # requests do not move in step
                request.advance()
        kind, width = (DeviceMasks, self._size) if is_masked else (_Unmasked, 1)
        self.masks = kind(self._size, rows, self._device, pin=device == "cuda")
        self.masks.warm_up(width)
        self._logits = torch.zeros((rows, width), device=self._device)
        self._is_masked = is_masked
        self._steps = 0
        self.compared = 0
        self.wrong = ""

    def collect(self) -> None:
        """Collect the masks of all rows."""
        self.masks.begin()
        self.masks.begin_rows()
        for row, request in enumerate(self.requests):
            self.masks.add(row, request.matcher)

    def apply(self) -> None:
        """Copy and launch."""
        self.masks.apply(self._logits)

    def step(self, into: Steps) -> None:
        """Mask a step's logits, compare them now and then, and take the next tokens."""
        is_compared = self._is_masked and self._steps % _COMPARED == 0
        self._steps += 1
        before = self._logits.normal_().clone() if is_compared else None
        uploaded, start = self.masks.uploaded_bytes, time.perf_counter_ns()
        self.collect()
        collected, start = microseconds(start), time.perf_counter_ns()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._device.type == "cuda" else []
        if events:
            events[0].record()
        self.apply()
        applied = microseconds(start)
        found = {"collect masks, µs on the host": collected, "copy and launch, µs on the host": applied}
        if events:
            events[1].record()
            events[1].synchronize()
            found["copy and launch, µs on the device"] = 1e3 * events[0].elapsed_time(events[1])
        for name, sample in found.items():
            into.times.setdefault(name, []).append(sample)
        into.sizes.append(self.masks.uploaded_bytes - uploaded)
        matchers = [request.matcher for request in self.requests]
        whole = sum(matcher.phase is Phase.CALL_ID or matcher.arguments is not None for matcher in matchers)
        into.whole.append(_PLAN_BYTES * len(matchers) + 4 * words_per_row(self._size) * whole)
        if before is not None:
            self._compare(before)
        for request in self.requests:
            request.advance()

    def _compare(self, expected: torch.Tensor) -> None:
        """Mask the logits of before the step by each matcher's own bitmask, and compare."""
        host = allocate_bitmask(len(self.requests), self._size)
        for row, request in enumerate(self.requests):
            request.matcher.fill_bitmask(host, row)
        entries = [(row, row, 0, 0, -1, -1) for row in range(len(self.requests))]
        plan = torch.tensor(entries, dtype=torch.int32, device=self._device)
        torch_kernel.apply_masks(expected, torch.from_numpy(host).to(self._device), plan, plan[:0, 0], None)
        self.compared += 1
        if rows := torch.nonzero((expected != self._logits).any(dim=1)).flatten().tolist():
            self.wrong = self.wrong or f"step {self._steps}: rows {rows[:5]} differ"


def count(batch: Batch, steps: int) -> dict[str, Steps]:
    """Run the steps in which some request writes its call for the first time, and ``steps`` after the second time."""
    found = {"new": Steps(), "seen before": Steps()}
    while len(found["seen before"].sizes) < steps:
        turns = min(request.turns for request in batch.requests)
        batch.step(found["new" if turns == 0 else "seen before"] if turns != 1 else Steps())
    return found


def measure(  # noqa: PLR0913 - the sizes of a run
    report: Report,
    *,
    is_small: bool = False,
    rows: int = 256,
    tools: int = 64,
    steps: int = 100,
    device: str = "cpu",
    is_masked: bool = True,
) -> dict[str, Steps]:
    """Run a batch, and print its checks and its table; times only of a GPU."""
    with tempfile.TemporaryDirectory() as scratch:
        workload = load(Path(scratch), is_small=is_small)
    batch = Batch(workload, rows, tools, device, is_masked=is_masked)
    found = count(batch, steps)
    extent = f"{batch.compared} steps of {rows} rows"
    if is_masked:
        what = "logits of whole steps: as by the matchers' masks"
        report.check(what, passed=not batch.wrong, note=batch.wrong or extent)
    known = Times.of(found["seen before"].sizes).p50
    if rows == 256:
        report.check(f"{LIMIT:,} bytes in the median step", passed=known <= LIMIT, note=f"{known:,.0f}")
    lines: list[tuple[str, float, float]] = []
    for name, some in found.items():
        timed = some.times.items() if device == "cuda" else ()
        whole = "bytes, if every computed mask is copied"
        for what, samples in (("bytes", some.sizes), (whole, some.whole), *timed):
            median, most = np.percentile(samples, (50, 99)).tolist()
            lines.append((f"{name}: {what}", median, most))
    note = f"{rows} requests in calls of {tools} tools. {workload.source}"
    report.table("A step on the logits-processor route", ("", "p50", "p99"), lines, note)
    if device == "cuda":
        from benchmarks.gpu.launches import synchronisation

        batch.collect()
        error = synchronisation(batch.apply)
        report.check("applying a step's masks does not synchronise", passed=not error, note=error)
    return found


if __name__ == "__main__":
    sys.exit(main())
