"""Times launches on the device with CUDA events, beside the floor that memory sets."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from triton.testing import do_bench

from benchmarks.gpu.launches import INACTIVE, NEVER, Entry, Launch, entry, launch
from benchmarks.report import Cell, Report

_WIDTH = 163_840  # Kimi K2's logits
_ROWS = (1, 8, 32, 64, 256, 512)
_BATCH = 256
_COPIED = 1 << 30
_DEVICE = "cuda"


def measure(report: Report) -> None:
    """Print the tables."""
    source = torch.empty(_COPIED, dtype=torch.uint8, device=_DEVICE).random_()
    target = torch.empty_like(source)
    rate = 2 * _COPIED / _microseconds(lambda: target.copy_(source))  # bytes per microsecond, read and written
    _floors(report, rate)
    torch.cuda.empty_cache()
    _free_rows(report)


def _microseconds(function: Callable[[], object]) -> float:
    """The median time between two CUDA events around a call, after a write that clears the L2 cache."""
    found: float = do_bench(function, warmup=5, rep=40, quantiles=[0.5])
    return 1e3 * found


def _arguments(rows: int, plan: Sequence[Entry], dtype: torch.dtype = torch.float32) -> Launch:
    logits = torch.randn((rows, _WIDTH), dtype=torch.float32, device=_DEVICE).to(dtype)
    masks = torch.zeros((rows, _WIDTH // 32), dtype=torch.int32, device=_DEVICE)
    masks[:, 7 :: _WIDTH // 32 // 16] = 1 << 5
    made = torch.tensor(plan, dtype=torch.int32, device=_DEVICE)
    return Launch(logits, masks, made, torch.zeros(1, dtype=torch.int32, device=_DEVICE), None)


def _every_row(rows: int) -> list[Entry]:
    return [entry(row, row) for row in range(rows)]


def _timed(arguments: Launch) -> float:
    return _microseconds(lambda: launch(arguments))


def _floors(report: Report, rate: float) -> None:
    rows: list[tuple[Cell, ...]] = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for count in _ROWS:
            arguments = _arguments(count, _every_row(count), dtype)
            found, fill = _timed(arguments), _microseconds(partial(arguments.logits.fill_, NEVER))
            floor = fill + arguments.masks.nbytes / rate
            name = f"{str(dtype).removeprefix('torch.')}, {count} rows"
            rows.append((name, arguments.logits.nbytes / 1e6, found, fill, floor, floor / found))
    note = (
        f"{_WIDTH:,} columns, 16 tokens allowed. The floor is a plain fill of the same rows, and the mask's bytes at "
        f"the rate of a copy ({rate / 1e6:.2f} TB/s, read and written). Medians of CUDA events, L2 cleared before each"
    )
    report.table("Launches, µs", ("", "logits, MB", "launch", "fill", "floor", "share of the floor"), rows, note)


def _free_rows(report: Report) -> None:
    masked = entry(_BATCH // 2, 0)
    alone = _timed(_arguments(1, _every_row(1)))
    one = _timed(_arguments(_BATCH, [masked]))
    padded = _timed(_arguments(_BATCH, [masked, *([INACTIVE] * (_BATCH - 1))]))
    rows: tuple[tuple[Cell, ...], ...] = (
        ("1 row alone", alone, 1.0),
        (f"1 masked row of {_BATCH}", one, one / alone),
        (f"1 masked row of {_BATCH}, a plan of {_BATCH} entries, the others not active", padded, padded / alone),
    )
    report.table("Free rows, µs", ("", "launch", "to 1 row alone"), rows, f"float32, {_WIDTH:,} columns")
