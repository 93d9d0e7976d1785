"""Times launches on the device with CUDA events, beside the floor that memory sets."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from triton.testing import do_bench

from benchmarks.gpu.cases import NEVER
from benchmarks.gpu.kernel_api import Launch, Workspace, entry, inactive, launch
from benchmarks.gpu.results import Cell, Recorder, Table

_WIDTH = 163_840  # Kimi K2's logits
_ROWS = (1, 8, 32, 64, 256, 512)
_BATCH = 256
_KINDS = ("16 tokens allowed", "half allowed", "all but 16 allowed")
_COPIED = 1 << 30
_HOST_CALLS = 200
_DEVICE = "cuda"


class _Timed(NamedTuple):
    """One row: the launch, and the plain fill of the same rows."""

    launch: float
    fill: float
    floor: float

    @property
    def share(self) -> float:
        return self.floor / self.launch


def measure(record: Recorder, end: float) -> None:
    """Record the tables, the most important first, until the time ends."""
    rate = _copy_rate()
    tables: Sequence[tuple[str, Callable[[], Table]]] = (
        ("share of the write floor", lambda: _floors(rate)),
        ("free rows", _free_rows),
        ("masks and lists of ids", lambda: _kinds(rate)),
        ("guarded and examined rows", _whole),
        ("time on the host, and of a replay", _host),
    )
    for name, make in tables:
        if time.monotonic() > end:
            record.not_run(f"times: {name}", "the time was used up")
            continue
        record.say(f"times: {name}")
        record.table(make())
        torch.cuda.empty_cache()


def _microseconds(function: Callable[[], None]) -> float:
    """The median time between two CUDA events around a call, after a write that clears the L2 cache."""
    found: float = do_bench(function, warmup=5, rep=40, quantiles=[0.5])
    return 1e3 * found


def _copy_rate() -> float:
    """Bytes per microsecond, read and written, of a large copy on the device."""
    source = torch.empty(_COPIED, dtype=torch.uint8, device=_DEVICE).random_()
    target = torch.empty_like(source)
    return 2 * _COPIED / _microseconds(lambda: _do(target.copy_(source)))


def _do(_: object) -> None:
    """Take a value that is not used."""


def _arguments(
    rows: int, plan: list[list[int]], dtype: torch.dtype = torch.float32, kind: str = _KINDS[0], *, whole: bool = False
) -> Launch:
    logits = torch.randn((rows, _WIDTH), dtype=torch.float32, device=_DEVICE).to(dtype)
    masks = torch.zeros((rows, _WIDTH // 32), dtype=torch.int32, device=_DEVICE)
    if kind == _KINDS[1]:
        masks = torch.randint(-(2**31), 2**31, masks.shape, device=_DEVICE).to(torch.int32)
    else:
        masks[:, 7 :: _WIDTH // 32 // 16] = 1 << 5
        if kind == _KINDS[2]:
            masks.bitwise_not_()
    ids = torch.arange(32 * rows, dtype=torch.int32, device=_DEVICE)
    made = torch.tensor(plan, dtype=torch.int32, device=_DEVICE)
    workspace = Workspace(len(plan), max(1, len(plan)), _WIDTH, torch.device(_DEVICE)) if whole else None
    return Launch(logits, masks, made, ids, workspace)


def _every_row(rows: int) -> list[list[int]]:
    return [entry(row, row) for row in range(rows)]


def _timed(arguments: Launch, rate: float) -> _Timed:
    logits, masks = arguments.logits, arguments.masks
    found = _microseconds(lambda: launch(arguments))
    fill = _microseconds(lambda: _do(logits.fill_(NEVER)))
    return _Timed(found, fill, fill + masks.numel() * masks.element_size() / rate)


def _floors(rate: float) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for count in _ROWS:
            found = _timed(_arguments(count, _every_row(count), dtype), rate)
            name = f"{str(dtype).removeprefix('torch.')}, {count} rows"
            size = count * _WIDTH * dtype.itemsize / 1e6
            rows.append((name, size, found.launch, found.fill, found.floor, found.share))
    note = (
        f"{_WIDTH:,} columns, {_KINDS[0]}. The floor is a plain fill of the same rows, and the mask's bytes at the "
        f"rate of a copy ({rate / 1e6:.2f} TB/s, read and written). Medians of CUDA events, L2 cleared before each"
    )
    return Table("Launches, µs", ("", "logits, MB", "launch", "fill", "floor", "share of the floor"), tuple(rows), note)


def _free_rows() -> Table:
    alone = _microseconds(_launches(_arguments(1, _every_row(1))))
    one = _microseconds(_launches(_arguments(_BATCH, [entry(_BATCH // 2, 0)])))
    fixed = [entry(_BATCH // 2, 0), *([inactive()] * (_BATCH - 1))]
    padded = _microseconds(_launches(_arguments(_BATCH, fixed)))
    rows: tuple[tuple[Cell, ...], ...] = (
        ("1 row alone", alone, 1.0),
        (f"1 masked row of {_BATCH}", one, one / alone),
        (f"1 masked row of {_BATCH}, a plan of {_BATCH} entries, the others not active", padded, padded / alone),
    )
    return Table("Free rows, µs", ("", "launch", "to 1 row alone"), rows, f"float32, {_WIDTH:,} columns")


def _launches(arguments: Launch) -> Callable[[], None]:
    return lambda: launch(arguments)


def _kinds(rate: float) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for kind in _KINDS:
        found = _timed(_arguments(_BATCH, _every_row(_BATCH), kind=kind), rate)
        rows.append((kind, found.launch, found.share))
    listed = [entry(row, 32 * row, 16) for row in range(_BATCH)]
    found = _timed(_arguments(_BATCH, listed), rate)
    rows.append(("16 tokens allowed, as a list of ids", found.launch, found.fill / found.launch))
    kept = [entry(row, row, keep=_BATCH + row) for row in range(_BATCH)]
    arguments = _arguments(_BATCH, kept)
    twice = arguments._replace(masks=torch.cat([arguments.masks, torch.zeros_like(arguments.masks)]))
    found = _timed(twice, rate)
    rows.append(("16 tokens allowed, and the mask is kept", found.launch, found.share))
    note = f"float32, {_BATCH} rows of {_WIDTH:,} columns"
    return Table("Kinds of masks, µs", ("", "launch", "share of the floor"), tuple(rows), note)


def _whole() -> Table:
    plain = _microseconds(_launches(_arguments(_BATCH, _every_row(_BATCH))))
    rows: list[tuple[Cell, ...]] = [("no workspace", plain, 1.0)]

    def add(name: str, plan: list[list[int]]) -> None:
        found = _microseconds(_launches(_arguments(_BATCH, plan, whole=True)))
        rows.append((name, found, found / plain))

    add("a workspace, no row guarded or examined", _every_row(_BATCH))
    for count in (1, 16, _BATCH):
        add(f"{count} examined", [entry(row, row, result=row if row < count else -1) for row in range(_BATCH)])
    add(f"{_BATCH} guarded, none emptied", [entry(row, row, guarded=True) for row in range(_BATCH)])
    emptied = _arguments(_BATCH, [entry(row, row, guarded=True) for row in range(_BATCH)], whole=True)

    def refill() -> None:
        emptied.logits.fill_(NEVER)

    def restore() -> None:
        refill()
        launch(emptied)

    found = _microseconds(restore) - _microseconds(refill)
    rows.append((f"{_BATCH} guarded, all emptied and restored", found, found / plain))
    note = f"float32, {_BATCH} rows of {_WIDTH:,} columns"
    return Table("Guarded and examined rows, µs", ("", "launch", "to no workspace"), tuple(rows), note)


def _host() -> Table:
    rows: list[tuple[Cell, ...]] = []
    for count in (1, 32, _BATCH):
        for whole in (False, True):
            arguments = _arguments(count, _every_row(count), whole=whole)
            launch(arguments)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                launch(arguments)
            name = f"{count} rows{', with a workspace' if whole else ''}"
            rows.append((name, _host_time(_launches(arguments)), _host_time(graph.replay), _microseconds(graph.replay)))
    columns = ("", "launch: host", "replay: host", "replay: device")
    return Table("Host time of a launch, µs", columns, tuple(rows), "Median of single calls, the device is idle before")


def _host_time(function: Callable[[], None]) -> float:
    samples = []
    for _ in range(_HOST_CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        function()
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(samples)
