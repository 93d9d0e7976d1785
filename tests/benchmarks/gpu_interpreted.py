"""The kernels' part of the GPU benchmark in Triton's interpreter, its graphs and clocks replaced; run by test_gpu.py."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import kernels, launches, times
from benchmarks.gpu.interpreter import accept_combined_masks
from benchmarks.gpu.launches import Case, Launch
from benchmarks.report import Report

accept_combined_masks()


@pytest.fixture
def report() -> Report:
    return Report()


def compare(report: Report, rows: tuple[int, ...], widths: tuple[int, ...]) -> None:
    kernels.check_launches(report, rows, widths, "cpu", time.monotonic() + 3600)


def test_kernels_need_neither_vllm_nor_an_engine() -> None:
    assert not {"vllm", "llguidance", "xgrammar", "httpx"} & sys.modules.keys()


def test_the_part(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    """Every dtype, layout and variant on tiny shapes."""
    compare(report, (1, 3), (97, 4097))
    kernels.check_declining(report, (1, 3), (97, 4097), "cpu")
    assert not report.failed
    printed = capsys.readouterr().out
    assert printed.count("* ok: ") == 7  # of masks, and one of declined calls
    assert printed.count("(16 launches of 1 to 3 rows, widths [97, 4097])") == 6


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
    fault: Callable[[Launch], None], note: str, found: int, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = launches.launch
    monkeypatch.setattr(launches, "launch", lambda arguments: (right(arguments), fault(arguments)))
    compare(report, (3,), (97,))
    assert len(report.failed) == found
    assert all(note in failed for failed in report.failed)


def test_what_is_around_the_logits_is_compared() -> None:
    case = Case(torch.float32, 2, 97, 4, "padded rows", whole=False)
    ours, theirs = (launches.make(case, 1, "cpu") for _ in range(2))
    assert not launches.compare(ours, theirs)
    ours.memory[1, 100] = 1.0
    assert launches.compare(ours, theirs) == "memory around the logits was written"


class Graph:
    """Replays what was launched while it was captured."""

    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []

    def replay(self) -> None:
        for captured in self.launches:
            captured()


@contextmanager
def capture(graph: Graph) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        right: Callable[[Launch], None] = kernels.launch  # type: ignore[attr-defined]
        patch.setattr(kernels, "launch", lambda arguments: graph.launches.append(partial(right, arguments)))
        yield


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
    monkeypatch.setattr(kernels, "_CAPTURED", small)
    monkeypatch.setattr(kernels, "_DEVICE", "cpu")


def test_graphs(on_a_gpu: None, report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    kernels.check_graphs(report)
    assert not report.failed
    assert capsys.readouterr().out.count("* ok: ") == 6


def test_graphs_that_differ(on_a_gpu: None, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "replay", lambda self: None)
    kernels.check_graphs(report)
    assert ["replay 0: logits differ in rows" in failed for failed in report.failed] == [True, True]


def test_launches_that_synchronise_or_allocate(on_a_gpu: None, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(100))
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"allocation.all.allocated": next(counts)})
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    right: Callable[[Launch], None] = kernels.launch  # type: ignore[attr-defined]

    def launch(arguments: Launch) -> None:
        if modes[-1:] == ["error"]:
            raise RuntimeError("called a synchronizing CUDA operation")
        right(arguments)

    monkeypatch.setattr(kernels, "launch", launch)
    kernels.check_graphs(report)
    assert [failed.split(": ")[1] for failed in report.failed] == 2 * [
        "a launch does not synchronise", "a launch allocates nothing",
    ]  # fmt: skip
    assert modes == 2 * ["error", "default"]


def test_times(
    on_a_gpu: None, report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every table is made: what is timed runs, and each figure has its column."""
    ran = []

    def do_bench(function: Callable[[], None], **_: object) -> float:
        function()
        ran.append(function)
        return 0.002 * len(ran)

    monkeypatch.setattr(times, "do_bench", do_bench)
    small = {"_DEVICE": "cpu", "_WIDTH": 2048, "_ROWS": (1, 2), "_BATCH": 4, "_COPIED": 1 << 10}
    for name, value in small.items():
        monkeypatch.setattr(times, name, value)
    times.measure(report)
    printed = capsys.readouterr().out
    titles = ("Launches", "Free rows")
    assert [title for title in titles if f"**{title}, µs**" in printed] == [*titles]
    floor = 6 + 2048 / 8 / (2 * 1024 / 2)  # of a fill, and of the mask at the copy's rate
    assert f"| float32, 1 rows | 0.00819 | 4 | 6 | {floor:.3g} | {floor / 4:.3g} |" in printed  # after the copy's 2 us
