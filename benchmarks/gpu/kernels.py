"""Compares the Triton kernels with the reference; on a GPU, also checks that a launch is quiet and can be captured."""

import itertools
import random
import time
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.launches import (
    INACTIVE,
    LAYOUTS,
    Case,
    Inputs,
    Launch,
    compare,
    difference,
    launch,
    launch_reference,
    make,
    synchronisation,
    workspace_for,
)
from benchmarks.report import Report
from constrained_k2.kernels import triton_declining
from constrained_k2.kernels.declining import NamedRows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = {False: "mask", True: "mask, restore and examine"}
# Widths: those of DeepSeek-V3's and Kimi K2's logits, then odd ones.
ROWS, WIDTHS = (1, 2, 7, 32, 256, 512), (129_280, 163_840, 97, 4_097, 151_937)
SMALL_ROWS, SMALL_WIDTHS = (1, 3, 6), (64, 97, 4_097, 9_000)
_CAPTURED = Case(torch.float32, 32, 163_840, 5_120, "contiguous", whole=True)
_REPLAYS = 8
_DEVICE = "cuda"
_THRESHOLD = 0.35  # of declined calls
_TOLERANCE = 1e-4  # of probabilities


def check_launches(report: Report, rows: tuple[int, ...], widths: tuple[int, ...], device: str, end: float) -> None:
    """Compare launches until the time ends, and print one check per dtype and variant of the kernel.

    They come in random order, so that all kinds have been tried where the time ends early. Every third width has masks
    of one word less than it needs, every other third of one more.
    """
    cases = [
        Case(dtype, count, width, max(1, (width + 31) // 32 + number % 3 - 1), layout, whole)
        for dtype, count, (number, width), layout, whole in itertools.product(
            DTYPES, rows, enumerate(widths, 1), LAYOUTS, (False, True)
        )
    ]
    random.Random(1).shuffle(cases)  # noqa: S311 - no secret
    ran: list[Case] = []
    wrong: dict[tuple[torch.dtype, bool], str] = {}
    for seed, case in enumerate(cases):
        if time.monotonic() > end:
            report.say(f"* not run, the time was used up: {len(cases) - seed} of {len(cases)} launches")
            break
        ran.append(case)
        if found := difference(case, seed, device):
            wrong.setdefault((case.dtype, case.whole), f"{case}: {found}")
    for kind in itertools.product(DTYPES, (False, True)):
        tried = [case for case in ran if (case.dtype, case.whole) == kind]
        if tried:
            counts, its_widths = ({getattr(case, name) for case in tried} for name in ("rows", "width"))
            extent = f"{len(tried)} launches of {min(counts)} to {max(counts)} rows, widths {sorted(its_widths)}"
            what = f"{str(kind[0]).removeprefix('torch.')}, {KINDS[kind[1]]}: equal to the reference"
            report.check(what, passed=kind not in wrong, note=wrong.get(kind, extent))


def check_declining(report: Report, rows: tuple[int, ...], widths: tuple[int, ...], device: str) -> None:
    """Compare the kernels that decline calls: probabilities, and rows that are closed."""
    wrong = ""
    for seed, (count, width) in enumerate(itertools.product(rows, widths)):
        chance = np.random.default_rng(seed)
        logits = torch.from_numpy(chance.normal(size=(count, width)).astype(np.float32)) * 4
        meant = [np.sort(chance.choice(width, width // 3, replace=False)).astype(np.int32) for _ in range(count)]
        closing = [None if number % 5 == 4 else number % width for number in range(count)]
        places = [-1 if number % 7 == 6 else number for number in range(count)]
        reference = NamedRows(meant, closing, places, torch.device("cpu"))
        reference.measure(logits)
        named = NamedRows(meant, closing, places, torch.device(device))
        on_device = logits.to(device)
        arguments = on_device, named.rows, named.plan
        triton_declining.measure(*arguments, named.ids, named.chances)
        triton_declining.decline(*arguments, named.chances, _THRESHOLD)
        chances = named.chances.cpu()
        if (chances - reference.chances).abs().max() > _TOLERANCE:
            wrong = wrong or f"{count} rows, width {width}: other probabilities"
        reference.chances.copy_(chances)  # so that a probability at the threshold decides alike
        reference.decline(logits, _THRESHOLD)
        if not torch.equal(on_device.cpu(), logits):
            wrong = wrong or f"{count} rows, width {width}: other rows are closed"
    report.check("calls are declined as by the reference", passed=not wrong, note=wrong)


def check_graphs(report: Report) -> None:
    """Check that launches allocate nothing, do not synchronise, and can be captured in a CUDA graph."""
    for whole, kind in KINDS.items():
        arguments = _static(whole=whole)
        launch(arguments)  # compiles
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        error = synchronisation(partial(launch, arguments))
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
        report.check(f"{kind}: a launch does not synchronise", passed=not error, note=error)
        report.check(f"{kind}: a launch allocates nothing", passed=not allocated, note=f"{allocated} allocations")
        wrong = _replayed(whole=whole)
        note = wrong or f"{_REPLAYS} replays with new logits, masks and plans"
        report.check(f"{kind}: a captured launch replays as the reference", passed=not wrong, note=note)


def _replayed(*, whole: bool) -> str:
    """Capture one launch over fixed tensors, then replay it on new values; return what differs."""
    fixed = _static(whole=whole)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch(fixed)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(fixed)
    for seed in range(_REPLAYS):
        new, theirs = (_drawn(seed, whole=whole) for _ in range(2))
        fixed.logits.copy_(new.logits)
        fixed.masks.copy_(new.masks)
        fixed.plan.fill_(-1)
        fixed.plan[: len(new.plan)] = new.plan
        fixed.ids[: len(new.ids)] = new.ids
        if fixed.workspace is not None:
            fixed.workspace.results.zero_()
        graph.replay()
        torch.cuda.synchronize()
        launch_reference(theirs)
        if found := compare(Inputs(fixed, fixed.logits), Inputs(theirs, theirs.logits)):
            return f"replay {seed}: {found}"
    return ""


def _static(*, whole: bool) -> Launch:
    """Make the tensors that a graph refers to: as many entries as rows, none of them active."""
    drawn, entries = _drawn(0, whole=whole), 2 * _CAPTURED.rows
    plan = torch.tensor([INACTIVE] * entries, dtype=torch.int32, device=_DEVICE)
    return drawn._replace(plan=plan, ids=torch.zeros(32 * _CAPTURED.rows, dtype=torch.int32, device=_DEVICE))


def _drawn(seed: int, *, whole: bool) -> Launch:
    """Draw a launch with a workspace for any plan."""
    workspace = workspace_for(_CAPTURED, 2 * _CAPTURED.rows, _CAPTURED.rows, _DEVICE) if whole else None
    return make(_CAPTURED, seed, _DEVICE).arguments._replace(workspace=workspace)
