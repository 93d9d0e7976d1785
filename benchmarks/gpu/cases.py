"""Random launches of the kernel, and their comparison with the reference."""

import random
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from benchmarks.gpu.kernel_api import MAX_IDS, Launch, Workspace, entry, inactive, launch, launch_reference

Layout = Literal["contiguous", "padded rows", "every other row", "unaligned start"]
LAYOUTS: tuple[Layout, ...] = ("contiguous", "padded rows", "every other row", "unaligned start")
NEVER = float("-inf")
_SOURCES = 7  # rows of the masks that a plan draws from
_INTEGERS = {4: torch.int32, 2: torch.int16}  # element size -> integers of that size


@dataclass(frozen=True, slots=True)
class Case:
    """The shape of a launch.

    Attributes:
        dtype: The logits' type.
        rows: Rows of the batch.
        width: Columns of the logits.
        words: Words of a mask; columns without a bit are forbidden.
        layout: The place of the rows in memory.
        whole: The kernel runs with a workspace, so that guarded and examined rows are honoured.
    """

    dtype: torch.dtype
    rows: int
    width: int
    words: int
    layout: Layout
    whole: bool

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{kind}, {self.rows} x {self.width}, {self.words} words, {self.layout}"


class Inputs(NamedTuple):
    """A launch, and the memory in which its logits are; what is around them must stay as it is."""

    arguments: Launch
    memory: torch.Tensor


def make(case: Case, seed: int, device: str) -> Inputs:
    """Draw a launch: a plan over some rows in random order, between entries that are not active."""
    torch.manual_seed(seed)
    chance = random.Random(seed)  # noqa: S311 - no secret
    memory, logits = _logits(case, device)
    masks = _masks(case.words, case.rows, device)
    plan: list[list[int]] = []
    ids: list[int] = []
    emptied: list[int] = []
    results = 0
    keeps = iter(range(_SOURCES, len(masks)))
    for row in chance.sample(range(case.rows), chance.randint((case.rows + 1) // 2, case.rows)):
        if chance.random() < 0.2:
            plan.append(inactive())
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
    widest = max(case.width, 32 * case.words)
    workspace = Workspace(len(plan), max(1, results), widest, torch.device(device)) if case.whole else None
    return Inputs(Launch(logits, masks, entries, listed, workspace), memory)


def difference(case: Case, seed: int, device: str) -> str | None:
    """Run a case in the kernel and in the reference; return what differs, None for nothing."""
    ours, theirs = make(case, seed, device), make(case, seed, device)
    launch(ours.arguments)
    launch_reference(theirs.arguments)
    return compare(ours, theirs)


def compare(ours: Inputs, theirs: Inputs) -> str | None:
    """Compare two launches that have run: logits, the memory around them and masks bit for bit."""
    integers = _INTEGERS[ours.memory.element_size()]
    if not torch.equal(ours.memory.view(integers), theirs.memory.view(integers)):
        wrong = ours.arguments.logits.view(integers) != theirs.arguments.logits.view(integers)
        rows = torch.nonzero(wrong.any(dim=1)).flatten().tolist()
        return f"logits differ in rows {rows[:5]}" if rows else "memory around the logits was written"
    if not torch.equal(ours.arguments.masks, theirs.arguments.masks):
        return "masks that are kept differ"
    if ours.arguments.workspace is None or theirs.arguments.workspace is None:
        return None
    if ours.arguments.workspace.counters.any():
        return "counters are not zero after the launch"
    return _difference_of_results(ours.arguments.workspace.results, theirs.arguments.workspace.results)


def _difference_of_results(found: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Compare what examination found: tokens and counts exactly, probabilities within 1e-4 of their value."""
    exact = found[:, [0, 1, 4]], expected[:, [0, 1, 4]]
    known = ~expected.isnan().any(dim=1)
    if not torch.equal(exact[0][known], exact[1][known]):
        return "examined rows: tokens or counts differ"
    if not torch.allclose(found[:, 2:4], expected[:, 2:4], rtol=1e-4, atol=1e-6, equal_nan=True):
        return "examined rows: probabilities differ"
    return None


def _logits(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits, some of them infinite; return the memory that they are in, and the logits ``[rows, width]``."""
    lines = 2 * case.rows if case.layout == "every other row" else case.rows
    extra = {"padded rows": 67, "unaligned start": 1}.get(case.layout, 0)
    memory = torch.randn((lines, case.width + extra), dtype=torch.float32, device=device).to(case.dtype)
    memory[:, 5 :: 1 + case.width // 9] = NEVER
    if not case.whole:  # arithmetic on them has a result of its own in each implementation
        memory[:, 3 :: 1 + case.width // 5] = float("inf")
        memory[:, 4 :: 1 + case.width // 5] = float("nan")
    step = 2 if case.layout == "every other row" else 1
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
