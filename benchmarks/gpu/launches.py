"""Random launches of the masks' kernel, and their comparison with the reference in plain torch."""

import random
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from constrained_k2.kernels import MAX_IDS, Workspace, torch_kernel, triton_kernel

Layout = Literal["contiguous", "padded rows", "every other row", "unaligned start"]
LAYOUTS: tuple[Layout, ...] = ("contiguous", "padded rows", "every other row", "unaligned start")
NEVER = float("-inf")
INACTIVE = (-1, 0, 0, 0, -1, -1)
"""An entry of a plan that the kernel skips."""

_SOURCES = 7  # rows of the masks that a plan draws from
_INTEGERS = {4: torch.int32, 2: torch.int16}  # element size -> integers of that size
Entry = tuple[int, int, int, int, int, int]


class Case(NamedTuple):
    """The shape of a launch; ``whole``: with a workspace, so that guarded and examined rows are honoured."""

    dtype: torch.dtype
    rows: int
    width: int  # columns of the logits
    words: int  # of a mask; columns without a bit are forbidden
    layout: Layout
    whole: bool

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{kind}, {self.rows} x {self.width}, {self.words} words, {self.layout}"


class Launch(NamedTuple):
    """The arguments of one launch, on one device: int32 but for the logits."""

    logits: torch.Tensor  # [batch, width], columns contiguous
    masks: torch.Tensor  # [n, words]
    plan: torch.Tensor  # [m, 6]: entries
    ids: torch.Tensor  # [k]: lists of allowed tokens
    workspace: Workspace | None


class Inputs(NamedTuple):
    """A launch, and the memory in which its logits are; what is around them must stay as it is."""

    arguments: Launch
    memory: torch.Tensor


def entry(row: int, source: int, count: int = 0, *, guarded: bool = False, keep: int = -1, result: int = -1) -> Entry:  # noqa: PLR0913
    """Return an entry of a plan: ``source`` is a row of the masks, or with ``count`` the index of the first id."""
    return row, source, count, int(guarded), keep, result


def launch(arguments: Launch) -> None:
    """Run the Triton kernel once; on tensors of the host in Triton's interpreter."""
    triton_kernel.apply_masks(*arguments)


def launch_reference(arguments: Launch) -> None:
    """Run the reference in plain torch."""
    torch_kernel.apply_masks(*arguments)


def synchronisation(function: Callable[[], object]) -> str:
    """Run a function; return the error if it waits for the device, else nothing."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        function()
    except RuntimeError as error:
        return str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def make(case: Case, seed: int, device: str) -> Inputs:
    """Draw a launch: a plan over some rows in random order, between entries that are not active."""
    torch.manual_seed(seed)
    chance = random.Random(seed)  # noqa: S311 - no secret
    memory, logits = _logits(case, device)
    masks = _masks(case.words, case.rows, device)
    plan: list[Entry] = []
    ids: list[int] = []
    emptied: list[int] = []
    results = 0
    keeps = iter(range(_SOURCES, len(masks)))
    for row in chance.sample(range(case.rows), chance.randint((case.rows + 1) // 2, case.rows)):
        if chance.random() < 0.2:
            plan.append(INACTIVE)
        guarded = chance.random() < 0.3
        if guarded and chance.random() < 0.5:
            emptied.append(row)
        examined = chance.random() < 0.3
        result = results if examined else -1
        results += examined
        if chance.random() < 0.3:
            count = chance.randint(1, min(MAX_IDS, case.width))
            plan.append(entry(row, len(ids), count, guarded=guarded, result=result))
            ids += chance.sample(range(case.width + 3), count)  # those behind the last column are ignored
        else:
            keep = next(keeps) if chance.random() < 0.3 else -1
            plan.append(entry(row, chance.randrange(_SOURCES), guarded=guarded, keep=keep, result=result))
    logits[emptied] = NEVER
    entries, listed = (torch.tensor(values, dtype=torch.int32, device=device) for values in (plan, ids))
    workspace = workspace_for(case, len(plan), max(1, results), device) if case.whole else None
    return Inputs(Launch(logits, masks, entries, listed, workspace), memory)


def workspace_for(case: Case, entries: int, results: int, device: str) -> Workspace:
    """Return a workspace for launches of this shape."""
    return Workspace(entries, results, max(case.width, 32 * case.words), torch.device(device))


def difference(case: Case, seed: int, device: str) -> str:
    """Run a case in the kernel and in the reference; return what differs."""
    ours, theirs = make(case, seed, device), make(case, seed, device)
    launch(ours.arguments)
    launch_reference(theirs.arguments)
    return compare(ours, theirs)


def compare(ours: Inputs, theirs: Inputs) -> str:
    """Return what differs after two launches: logits, the memory around them and masks bit for bit."""
    (logits, masks, _, _, workspace), (_, _, _, _, other) = ours.arguments, theirs.arguments
    integers = _INTEGERS[ours.memory.element_size()]
    if not torch.equal(ours.memory.view(integers), theirs.memory.view(integers)):
        wrong = logits.view(integers) != theirs.arguments.logits.view(integers)
        rows = torch.nonzero(wrong.any(dim=1)).flatten().tolist()
        return f"logits differ in rows {rows[:5]}" if rows else "memory around the logits was written"
    if not torch.equal(masks, theirs.arguments.masks):
        return "masks that are kept differ"
    if workspace is None or other is None:
        return ""
    if workspace.counters.any():
        return "counters are not zero after the launch"
    found, expected = workspace.results, other.results
    known = ~expected.isnan().any(dim=1)
    if not torch.equal(found[:, [0, 1, 4]][known], expected[:, [0, 1, 4]][known]):
        return "examined rows: tokens or counts differ"
    if not torch.allclose(found[:, 2:4], expected[:, 2:4], rtol=1e-4, atol=1e-6, equal_nan=True):
        return "examined rows: probabilities differ"
    return ""


def _logits(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits, some of them infinite; return the memory that they are in, and the logits ``[rows, width]``."""
    step = 2 if case.layout == "every other row" else 1
    extra = {"padded rows": 67, "unaligned start": 1}.get(case.layout, 0)
    memory = torch.randn((step * case.rows, case.width + extra), dtype=torch.float32, device=device).to(case.dtype)
    memory[:, 5 :: 1 + case.width // 9] = NEVER
    if not case.whole:  # arithmetic on them has a result of its own in each implementation
        memory[:, 3 :: 1 + case.width // 5] = float("inf")
        memory[:, 4 :: 1 + case.width // 5] = float("nan")
    start = 1 if case.layout == "unaligned start" else 0
    return memory, memory[::step, start : start + case.width]


def _masks(words: int, keeps: int, device: str) -> torch.Tensor:
    """Draw the masks of a plan, from those that allow nearly nothing to those that allow all, then rows to write."""
    masks = torch.randint(-(2**31), 2**31, (_SOURCES + keeps, words), device=device).to(torch.int32)
    masks[1] = masks[1] & masks[2] & masks[3]
    masks[2] = masks[2] | masks[3] | masks[4]
    masks[3] = -1
    masks[4] = 0
    masks[4, words // 2] = 1 << 7
    masks[5] = 0
    masks[5, : max(1, words // 300)] = -1
    return masks
