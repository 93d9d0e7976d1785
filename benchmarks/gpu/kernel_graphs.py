"""Checks that launches allocate nothing, do not synchronise, and can be captured in a CUDA graph."""

import torch

from benchmarks.gpu.cases import Case, Inputs, compare, make
from benchmarks.gpu.kernel_api import PLAN_COLUMNS, Launch, Workspace, inactive, launch, launch_reference
from benchmarks.gpu.results import Recorder

_CASE = Case(torch.float32, 32, 163_840, 5_120, "contiguous", whole=True)
_REPLAYS = 8
_DEVICE = "cuda"


def check(record: Recorder) -> None:
    """Record the checks, for both variants of the kernel."""
    for whole in (False, True):
        kind = "mask, restore and examine" if whole else "mask"
        _quiet(record, kind, whole=whole)
        wrong = _replays(whole=whole)
        note = wrong or f"{_REPLAYS} replays with new logits, masks and plans"
        record.check(f"{kind}: a captured launch replays as the reference", passed=wrong is None, note=note)


def _quiet(record: Recorder, kind: str, *, whole: bool) -> None:
    """Launch with synchronisation forbidden, and count allocations."""
    arguments = _static(whole=whole)
    launch(arguments)  # compiles
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    error = ""
    try:
        launch(arguments)
    except RuntimeError as found:
        error = str(found)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    record.check(f"{kind}: a launch does not synchronise", passed=not error, note=error)
    record.check(f"{kind}: a launch allocates nothing", passed=not allocated, note=f"{allocated} allocations")


def _replays(*, whole: bool) -> str | None:
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
        _copy_into(fixed, new.arguments)
        graph.replay()
        torch.cuda.synchronize()
        launch_reference(theirs.arguments)
        found = compare(Inputs(fixed, fixed.logits), theirs._replace(memory=theirs.arguments.logits))
        if found is not None:
            return f"replay {seed}: {found}"
    return None


def _drawn(seed: int, *, whole: bool) -> Inputs:
    """Draw a launch whose results fit the fixed workspace."""
    drawn = make(_CASE, seed, _DEVICE)
    return drawn._replace(arguments=drawn.arguments._replace(workspace=_workspace() if whole else None))


def _static(*, whole: bool) -> Launch:
    """Make the tensors that a graph refers to: as many entries as rows, none of them active."""
    plan = torch.tensor([inactive() for _ in range(2 * _CASE.rows)], dtype=torch.int32, device=_DEVICE)
    assert plan.shape[1] == PLAN_COLUMNS
    drawn = make(_CASE, 0, _DEVICE).arguments
    ids = torch.zeros(32 * _CASE.rows, dtype=torch.int32, device=_DEVICE)
    return Launch(drawn.logits, drawn.masks, plan, ids, _workspace() if whole else None)


def _workspace() -> Workspace:
    widest = max(_CASE.width, 32 * _CASE.words)
    return Workspace(2 * _CASE.rows, _CASE.rows, widest, torch.device(_DEVICE))


def _copy_into(fixed: Launch, new: Launch) -> None:
    fixed.logits.copy_(new.logits)
    fixed.masks.copy_(new.masks)
    fixed.plan.fill_(-1)
    fixed.plan[: len(new.plan)] = new.plan
    fixed.ids[: len(new.ids)] = new.ids
    if fixed.workspace is not None:
        fixed.workspace.results.zero_()
