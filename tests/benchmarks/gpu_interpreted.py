"""The kernels' part of the GPU benchmark in Triton's interpreter, its graphs and clocks replaced; run by test_gpu.py."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import cases, kernel_graphs, kernel_times, kernels
from benchmarks.gpu.cases import Case
from benchmarks.gpu.interpreter import accept_combined_masks
from benchmarks.gpu.kernel_api import Launch
from benchmarks.gpu.parts import PartOptions
from benchmarks.gpu.results import Recorder

accept_combined_masks()


@pytest.fixture
def record(tmp_path: Path) -> Recorder:
    return Recorder("kernels", tmp_path / "part.json")


def options() -> PartOptions:
    return PartOptions(time.monotonic() + 3600, interpret=True, shared="", model=None, output="")


def test_kernels_need_neither_vllm_nor_an_engine() -> None:
    assert not {"vllm", "llguidance", "xgrammar", "httpx"} & sys.modules.keys()


def test_the_part(record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dtype, layout and variant on tiny shapes."""
    monkeypatch.setattr(kernels, "SMALL_ROWS", (1, 3))
    monkeypatch.setattr(kernels, "SMALL_WIDTHS", (97, 4097))
    kernels.measure(options(), record)
    checks = record.result.checks
    assert [check.passed for check in checks] == 7 * [True], checks  # of masks, and one of declined calls
    assert sum(int(check.note.split()[0]) for check in checks[:6]) == 3 * 2 * 2 * 4 * 2
    assert {entry.why for entry in record.result.not_run} == {"they need a GPU"}


def forbidden_logit(arguments: Launch) -> None:
    row = next(entry[0] for entry in arguments.plan.tolist() if entry[0] >= 0)
    arguments.logits[row, 7] = 42.0


def free_row(arguments: Launch) -> None:
    planned = {entry[0] for entry in arguments.plan.tolist()}
    row = next((row for row in range(len(arguments.logits)) if row not in planned), 0)
    arguments.logits[row, 5] = 1.0


def kept_mask(arguments: Launch) -> None:
    arguments.masks[-1, 0] += 1


def result(arguments: Launch) -> None:
    if arguments.workspace is not None:
        arguments.workspace.results[0, 4] += 1


@pytest.mark.parametrize(
    ("fault", "note", "found"),
    [
        (forbidden_logit, "logits differ in rows", 6),
        (free_row, "logits differ in rows", 6),
        (kept_mask, "masks that are kept differ", 6),
        (result, "tokens or counts differ", 3),
    ],
)
def test_a_kernel_that_is_wrong_is_found(
    fault: Callable[[Launch], None], note: str, found: int, record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    right: Callable[[Launch], None] = cases.launch  # type: ignore[attr-defined]
    monkeypatch.setattr(cases, "launch", lambda arguments: (right(arguments), fault(arguments)))
    monkeypatch.setattr(kernels, "SMALL_ROWS", (3,))
    monkeypatch.setattr(kernels, "SMALL_WIDTHS", (97,))
    kernels.measure(options(), record)
    assert len(record.result.failed) == found
    assert all(note in check.note for check in record.result.failed)


def test_what_is_around_the_logits_is_compared(record: Recorder) -> None:
    case = Case(torch.float32, 2, 97, 4, "padded rows", whole=False)
    ours, theirs = (cases.make(case, 1, "cpu") for _ in range(2))
    assert cases.compare(ours, theirs) is None
    ours.memory[1, 100] = 1.0
    assert cases.compare(ours, theirs) == "memory around the logits was written"


def test_cases_are_the_same_for_the_same_seed() -> None:
    case = Case(torch.bfloat16, 6, 300, 11, "every other row", whole=True)
    one, same, other = (cases.make(case, seed, "cpu").arguments for seed in (1, 1, 2))
    for name in ("logits", "masks", "plan", "ids"):
        ours = getattr(one, name)
        assert torch.equal(ours.nan_to_num(), getattr(same, name).nan_to_num())
    assert not torch.equal(one.masks, other.masks)
    assert not torch.equal(one.logits.nan_to_num(), other.logits.nan_to_num())


class Graph:
    """Replays what was launched while it was captured."""

    capturing: "Graph | None" = None

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def replay(self) -> None:
        for captured in self.launches:
            captured()


@contextmanager
def capture(graph: Graph) -> Iterator[None]:
    Graph.capturing = graph
    yield
    Graph.capturing = None


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs, streams and counters as CUDA has them; the launches are the interpreter's."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    gpu: dict[str, Any] = {
        "CUDAGraph": Graph,
        "graph": capture,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: nullcontext(),
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "memory_stats": lambda: {"allocation.all.allocated": 7},
        "set_sync_debug_mode": lambda mode: None,
    }
    for name, value in gpu.items():
        monkeypatch.setattr(torch.cuda, name, value)
    small = Case(torch.float32, 5, 9000, 282, "contiguous", whole=True)
    monkeypatch.setattr(kernel_graphs, "_CASE", small)
    monkeypatch.setattr(kernel_graphs, "_DEVICE", "cpu")
    for module in (kernel_graphs, kernel_times):
        monkeypatch.setattr(module, "launch", launched(module.launch))


def launched(launch: Callable[[Launch], None]) -> Callable[[Launch], None]:
    def instead(arguments: Launch) -> None:
        if Graph.capturing is None:
            launch(arguments)
        else:
            Graph.capturing.launches.append(lambda: launch(arguments))

    return instead


def test_graphs(on_a_gpu: None, record: Recorder) -> None:
    kernel_graphs.check(record)
    assert len(record.result.checks) == 6
    assert not record.result.failed, record.result.failed


def test_graphs_that_differ(on_a_gpu: None, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "replay", lambda self: None)
    kernel_graphs.check(record)
    assert [check.note[:31] for check in record.result.failed] == 2 * ["replay 0: logits differ in rows"]


def test_launches_that_synchronise_or_allocate(
    on_a_gpu: None, record: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter(range(100))
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"allocation.all.allocated": next(counts)})
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    right: Callable[[Launch], None] = kernel_graphs.launch  # type: ignore[attr-defined]

    def launch(arguments: Launch) -> None:
        if modes[-1:] == ["error"]:
            raise RuntimeError("called a synchronizing CUDA operation")
        right(arguments)

    monkeypatch.setattr(kernel_graphs, "launch", launch)
    kernel_graphs.check(record)
    assert [check.what.partition(": ")[2] for check in record.result.failed] == 2 * [
        "a launch does not synchronise", "a launch allocates nothing",
    ]  # fmt: skip
    assert modes == 2 * ["error", "default"]


def test_times(on_a_gpu: None, record: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table is made: what is timed runs, and each figure has its column."""
    ran = []

    def do_bench(function: Callable[[], None], **_: object) -> float:
        function()
        ran.append(function)
        return 0.002 * len(ran)

    monkeypatch.setattr(kernel_times, "do_bench", do_bench)
    small = {"_DEVICE": "cpu", "_WIDTH": 2048, "_ROWS": (1, 2), "_BATCH": 4, "_COPIED": 1 << 10, "_HOST_CALLS": 2}
    for name, value in small.items():
        monkeypatch.setattr(kernel_times, name, value)
    kernel_times.measure(record, time.monotonic() + 3600)
    titles = [table.title.partition(",")[0] for table in record.result.tables]
    assert titles == [
        "Launches", "Free rows", "Kinds of masks", "Guarded and examined rows", "Host time of a launch",
    ]  # fmt: skip
    first = record.result.tables[0].rows[0]
    assert first[:4] == ("float32, 1 rows", 2048 * 4 / 1e6, 4.0, 6.0)  # after the copy's 2 us
    kernel_times.measure(record, time.monotonic() - 1)
    assert [entry.why for entry in record.result.not_run] == 5 * ["the time was used up"]
