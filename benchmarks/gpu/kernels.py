"""The part ``kernels``: the Triton kernel against the reference, then its time."""

import itertools
import random
import time

import torch

from benchmarks.gpu import declining
from benchmarks.gpu.cases import LAYOUTS, Case, difference
from benchmarks.gpu.parts import PartOptions
from benchmarks.gpu.results import Recorder

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Widths: those of DeepSeek-V3's and Kimi K2's logits, then odd ones.
ROWS, WIDTHS = (1, 2, 7, 32, 256, 512), (129_280, 163_840, 97, 4_097, 151_937)
SMALL_ROWS, SMALL_WIDTHS = (1, 3, 6), (64, 97, 4_097, 9_000)
_SHARE = 0.35  # of the part's time, for the comparison with the reference


def measure(options: PartOptions, record: Recorder) -> None:
    """Compare every dtype and shape with the reference; on a GPU, also graphs and times."""
    if options.interpret:
        from benchmarks.gpu.interpreter import accept_combined_masks

        accept_combined_masks()
        _compare(record, all_cases(SMALL_ROWS, SMALL_WIDTHS), options.device, options.end)
        declining.check(record, SMALL_ROWS, SMALL_WIDTHS, options.device)
        record.not_run("CUDA graphs, and launches without allocation and synchronisation", "they need a GPU")
        record.not_run("times of launches", "they need a GPU")
        return
    _compare(record, all_cases(ROWS, WIDTHS), options.device, time.monotonic() + _SHARE * options.seconds)
    declining.check(record, (1, 32), WIDTHS, options.device)
    from benchmarks.gpu import kernel_graphs, kernel_times

    kernel_graphs.check(record)
    kernel_times.measure(record, options.end)


def all_cases(rows: tuple[int, ...], widths: tuple[int, ...]) -> list[Case]:
    """Return every combination, in random order: where the time ends early, all kinds have been tried.

    Every third width has masks of one word less than it needs, every other third of one more.
    """
    cases = [
        Case(dtype, count, width, max(1, (width + 31) // 32 + number % 3 - 1), layout, whole)
        for dtype, count, (number, width), layout, whole in itertools.product(
            DTYPES, rows, enumerate(widths, 1), LAYOUTS, (False, True)
        )
    ]
    random.Random(1).shuffle(cases)  # noqa: S311 - no secret
    return cases


def _compare(record: Recorder, cases: list[Case], device: str, end: float) -> None:
    """Run cases until the time ends, and record one check per dtype and variant of the kernel."""
    record.say(f"{len(cases)} launches against the reference")
    ran: list[Case] = []
    wrong: dict[tuple[torch.dtype, bool], str] = {}
    for seed, case in enumerate(cases):
        if time.monotonic() > end:
            break
        found = difference(case, seed, device)
        ran.append(case)
        if found is not None:
            wrong.setdefault((case.dtype, case.whole), f"{case}: {found}")
    for dtype, whole in itertools.product(DTYPES, (False, True)):
        tried = [case for case in ran if (case.dtype, case.whole) == (dtype, whole)]
        if not tried:
            continue
        kind = "mask, restore and examine" if whole else "mask"
        rows, widths = ({getattr(case, name) for case in tried} for name in ("rows", "width"))
        extent = (
            f"{len(tried)} launches of {min(rows)} to {max(rows)} rows, widths {', '.join(map(str, sorted(widths)))}"
        )
        name = f"{str(dtype).removeprefix('torch.')}, {kind}: equal to the reference"
        record.check(name, passed=(dtype, whole) not in wrong, note=wrong.get((dtype, whole), extent))
    if len(ran) < len(cases):
        record.not_run(
            f"{len(cases) - len(ran)} of {len(cases)} launches against the reference", "the time was used up"
        )
