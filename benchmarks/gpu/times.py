"""Times launches on the device with CUDA events, beside the floor that memory sets."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from triton.testing import do_bench

from benchmarks.gpu.launches import INACTIVE, NEVER, Entry, Launch, entry, launch
from benchmarks.report import Cell, Report
from constrained_k2.kernels import Workspace

_WIDTH = 163_840  # Kimi K2's logits
_ROWS = (1, 8, 32, 64, 256, 512)
_BATCH = 256
_FEW, _HALF, _MOST = "16 tokens allowed", "half allowed", "all but 16 allowed"
_COPIED = 1 << 30
_HOST_CALLS = 200
_DEVICE = "cuda"


def measure(report: Report, end: float) -> None:
    """Print the tables, the most important first, until the time ends."""
    source = torch.empty(_COPIED, dtype=torch.uint8, device=_DEVICE).random_()
    target = torch.empty_like(source)
    rate = 2 * _COPIED / _microseconds(lambda: _do(target.copy_(source)))  # bytes per microsecond, read and written
    tables: Sequence[Callable[[], None]] = (
        lambda: _floors(report, rate),
        lambda: _free_rows(report),
        lambda: _kinds(report, rate),
        lambda: _whole(report),
        lambda: _host(report),
    )
    for number, make in enumerate(tables):
        if time.monotonic() > end:
            report.say(f"* not run, the time was used up: {len(tables) - number} of {len(tables)} tables of times")
            return
        make()
        torch.cuda.empty_cache()


def _microseconds(function: Callable[[], None]) -> float:
    """The median time between two CUDA events around a call, after a write that clears the L2 cache."""
    found: float = do_bench(function, warmup=5, rep=40, quantiles=[0.5])
    return 1e3 * found


def _do(_: object) -> None:
    """Take a value that is not used."""


def _arguments(
    rows: int, plan: Sequence[Entry], dtype: torch.dtype = torch.float32, kind: str = _FEW, *, whole: bool = False
) -> Launch:
    logits = torch.randn((rows, _WIDTH), dtype=torch.float32, device=_DEVICE).to(dtype)
    masks = torch.zeros((rows, _WIDTH // 32), dtype=torch.int32, device=_DEVICE)
    if kind == _HALF:
        masks = torch.randint(-(2**31), 2**31, masks.shape, device=_DEVICE).to(torch.int32)
    else:
        masks[:, 7 :: _WIDTH // 32 // 16] = 1 << 5
        if kind == _MOST:
            masks.bitwise_not_()
    ids = torch.arange(32 * rows, dtype=torch.int32, device=_DEVICE)
    made = torch.tensor(plan, dtype=torch.int32, device=_DEVICE)
    workspace = Workspace(len(plan), len(plan), _WIDTH, torch.device(_DEVICE)) if whole else None
    return Launch(logits, masks, made, ids, workspace)


def _every_row(rows: int, *, guarded: bool = False, examined: int = 0) -> list[Entry]:
    return [entry(row, row, guarded=guarded, result=row if row < examined else -1) for row in range(rows)]


def _timed(arguments: Launch) -> float:
    return _microseconds(lambda: launch(arguments))


def _floor(arguments: Launch, rate: float) -> tuple[float, float]:
    """Return the time of a plain fill of the same rows, and of that and reading the masks."""
    fill = _microseconds(lambda: _do(arguments.logits.fill_(NEVER)))
    return fill, fill + arguments.masks.nbytes / rate


def _floors(report: Report, rate: float) -> None:
    rows: list[tuple[Cell, ...]] = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for count in _ROWS:
            arguments = _arguments(count, _every_row(count), dtype)
            found, (fill, floor) = _timed(arguments), _floor(arguments, rate)
            name = f"{str(dtype).removeprefix('torch.')}, {count} rows"
            rows.append((name, arguments.logits.nbytes / 1e6, found, fill, floor, floor / found))
    note = (
        f"{_WIDTH:,} columns, {_FEW}. The floor is a plain fill of the same rows, and the mask's bytes at the rate of "
        f"a copy ({rate / 1e6:.2f} TB/s, read and written). Medians of CUDA events, L2 cleared before each"
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


def _kinds(report: Report, rate: float) -> None:
    rows: list[tuple[Cell, ...]] = []
    for kind in (_FEW, _HALF, _MOST):
        arguments = _arguments(_BATCH, _every_row(_BATCH), kind=kind)
        found = _timed(arguments)
        rows.append((kind, found, _floor(arguments, rate)[1] / found))
    listed = _arguments(_BATCH, [entry(row, 32 * row, 16) for row in range(_BATCH)])
    found = _timed(listed)
    rows.append((f"{_FEW}, as a list of ids", found, _floor(listed, rate)[0] / found))
    kept = _arguments(_BATCH, [entry(row, row, keep=_BATCH + row) for row in range(_BATCH)])
    kept = kept._replace(masks=torch.cat([kept.masks, torch.zeros_like(kept.masks)]))
    found = _timed(kept)
    rows.append((f"{_FEW}, and the mask is kept", found, _floor(kept, rate)[1] / found))
    note = f"float32, {_BATCH} rows of {_WIDTH:,} columns"
    report.table("Kinds of masks, µs", ("", "launch", "share of the floor"), rows, note)


def _whole(report: Report) -> None:
    plain = _timed(_arguments(_BATCH, _every_row(_BATCH)))
    rows: list[tuple[Cell, ...]] = [("no workspace", plain, 1.0)]
    for name, plan in (
        ("a workspace, no row guarded or examined", _every_row(_BATCH)),
        *((f"{count} examined", _every_row(_BATCH, examined=count)) for count in (1, 16, _BATCH)),
        (f"{_BATCH} guarded, none emptied", _every_row(_BATCH, guarded=True)),
    ):
        found = _timed(_arguments(_BATCH, plan, whole=True))
        rows.append((name, found, found / plain))
    emptied = _arguments(_BATCH, _every_row(_BATCH, guarded=True), whole=True)

    def restore() -> None:
        emptied.logits.fill_(NEVER)
        launch(emptied)

    found = _microseconds(restore) - _floor(emptied, 1)[0]
    rows.append((f"{_BATCH} guarded, all emptied and restored", found, found / plain))
    note = f"float32, {_BATCH} rows of {_WIDTH:,} columns"
    report.table("Guarded and examined rows, µs", ("", "launch", "to no workspace"), rows, note)


def _host(report: Report) -> None:
    rows: list[tuple[Cell, ...]] = []
    for count in (1, 32, _BATCH):
        for whole in (False, True):
            arguments = _arguments(count, _every_row(count), whole=whole)
            launch(arguments)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                launch(arguments)
            name = f"{count} rows{', with a workspace' if whole else ''}"
            times = _host_time(lambda given=arguments: launch(given)), _host_time(graph.replay)  # type: ignore[misc]
            rows.append((name, *times, _microseconds(graph.replay)))
    columns = ("", "launch: host", "replay: host", "replay: device")
    report.table("Host time of a launch, µs", columns, rows, "Median of single calls, the device is idle before")


def _host_time(function: Callable[[], None]) -> float:
    samples = []
    for _ in range(_HOST_CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        function()
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(samples)
