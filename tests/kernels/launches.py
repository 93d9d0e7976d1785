"""Random launches and declined rows, and what they should do in the slow and obvious way."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from constrained_k2.kernels import MAX_IDS, PLAN_COLUMNS, Workspace
from constrained_k2.kernels.declining import NamedRows
from constrained_k2.vocabulary.bitmask import allowed_ids

NEVER = float("-inf")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(64, 64), (97, 97), (97, 80), (64, 130), (5000, 4999), (4100, 8300)]


@dataclass
class Launch:
    """The arguments of a launch."""

    logits: torch.Tensor
    masks: torch.Tensor
    plan: torch.Tensor
    ids: torch.Tensor
    workspace: Workspace | None

    def copy(self) -> "Launch":
        """The same on other memory, with a workspace of its own."""
        workspace = self.workspace and workspace_for(self.plan, self.logits, self.masks)
        return Launch(self.logits.clone(), self.masks.clone(), self.plan, self.ids, workspace)


def workspace_for(entries: torch.Tensor, logits: torch.Tensor, masks: torch.Tensor) -> Workspace:
    """A workspace in which every entry may be examined."""
    return Workspace(len(entries), len(entries), max(logits.shape[1], 32 * masks.shape[1]), logits.device)


def random_launch(dtype: torch.dtype, size: int, width: int, seed: int, *, watched: bool) -> Launch:
    """Masks and ids, rows that are guarded, examined, emptied before, free, and entries that are not used."""
    chance = np.random.default_rng(seed)
    words = (size + 31) // 32
    rows = 9
    padded = torch.from_numpy(chance.normal(size=(rows, width + 7)).astype(np.float32) * 4).to(dtype)
    logits = padded[:, :width]
    masks = torch.from_numpy(chance.integers(-(2**31), 2**31, (8, words), dtype=np.int32))
    masks[1] = -1
    entries: list[tuple[int, ...]] = []
    ids: list[int] = []
    for row in chance.permutation(rows)[:7].tolist():
        if chance.random() < 0.5:
            count = int(chance.integers(1, min(MAX_IDS, size) + 1))
            source = len(ids)
            ids += chance.choice(size, count, replace=False).tolist()
        else:
            source, count = int(chance.integers(4)), 0
        if chance.random() < 0.3:
            logits[row] = NEVER  # emptied before
            logits[row, 0] = 1.0  # but for a token that the mask may forbid
        keep = 4 + len(entries) if chance.random() < 0.5 and len(entries) < 4 else -1
        result = len(entries) if chance.random() < 0.6 else -1
        entries.append((row, source, count, int(chance.random() < 0.6), keep, result))
        if chance.random() < 0.3:
            entries.append((-1, 1 << 20, 5, 1, 1 << 20, 1 << 20))
    made = torch.tensor(entries, dtype=torch.int32)
    assert made.shape[1] == PLAN_COLUMNS
    launch = Launch(logits, masks, made, torch.tensor(ids, dtype=torch.int32), None)
    if watched:
        launch.workspace = workspace_for(made, logits, masks)
    return launch


def check(before: Launch, apply_masks: Callable[..., None], workspace: Workspace | None = None) -> None:
    """Launch a kernel, in another workspace if one is given, and compare with what it should have done."""
    after = before.copy()
    after.workspace = after.workspace if workspace is None else workspace
    apply_masks(after.logits, after.masks, after.plan, after.ids, after.workspace)
    expected, masks, width = before.logits.clone(), before.masks.clone(), before.logits.shape[1]
    for entry in before.plan.tolist():
        row, source, count, guarded, keep, result = entry
        if row < 0:
            continue
        ids = before.ids[source : source + count].tolist() if count else allowed_ids(before.masks[source].numpy())
        allowed = torch.zeros(max(width, 32 * masks.shape[1]), dtype=torch.bool)
        allowed[torch.tensor(ids, dtype=torch.int64)] = True
        if keep >= 0:
            packed = np.packbits(allowed[: 32 * masks.shape[1]].numpy(), bitorder="little").view(np.int32)
            masks[keep] = torch.from_numpy(packed)
        allowed = allowed[:width]
        expected[row, ~allowed] = NEVER
        if guarded and after.workspace is not None and (expected[row] == NEVER).all():
            expected[row, allowed] = 0.0
        if result >= 0 and after.workspace is not None:
            check_result(after.workspace.results[result], before.logits[row], allowed, expected[row])
    assert torch.equal(after.logits, expected)
    assert torch.equal(after.masks, masks)
    if after.workspace is not None:
        assert not after.workspace.counters.any()


def check_result(result: torch.Tensor, before: torch.Tensor, allowed: torch.Tensor, after: torch.Tensor) -> None:
    """Compare what was found in a row."""
    chances = torch.softmax(before.double(), 0)
    wanted, overridden, probability, forbidden, left = result.tolist()
    likeliest = int(chances.argmax())
    assert overridden == (not allowed[likeliest])
    assert left == int((after != NEVER).sum())
    assert math.isclose(forbidden, float(chances[~allowed].sum()), rel_tol=1e-4, abs_tol=1e-7)
    if (~allowed).any() and forbidden > 1e-6:
        assert math.isclose(float(chances[~allowed].max()), probability, rel_tol=1e-4)
        assert math.isclose(float(chances[int(wanted)]), probability, rel_tol=1e-4)
        assert wanted == likeliest or not overridden


def check_declined_rows(
    measure: Callable[[NamedRows, torch.Tensor], None],
    decline: Callable[[NamedRows, torch.Tensor, float], None],
    dtype: torch.dtype,
    width: int,
    seed: int,
) -> tuple[int, int]:
    """Measure rows, mask them, decline them, and compare; how many were declined, and how many were not."""
    chance = np.random.default_rng(seed)
    count = 6
    padded = torch.from_numpy(chance.normal(size=(count + 2, width + 7)).astype(np.float32) * 3).to(dtype)
    logits = padded[:, :width]
    logits[1, : width // 2] = NEVER  # as other processors forbid tokens
    rows = [*chance.permutation(count + 2)[: count - 1].tolist(), -1]
    meant = [
        np.sort(chance.choice(width, int(chance.integers(1, width)), replace=False)).astype(np.int32) for _ in rows
    ]
    meant[0] = np.append(meant[0], np.int32(width + 3))  # a token without a logit
    closing = [None if number == 1 else int(chance.integers(0, width)) for number in range(count)]
    before = logits.clone()
    named = NamedRows(meant, closing, rows, torch.device("cpu"))
    measure(named, logits)
    assert torch.equal(logits, before)
    masked = before.clone()
    masked[:, ::2] = NEVER
    logits.copy_(masked)
    decline(named, logits, 0.5)
    declined = kept = 0
    for row, ids, token, found in zip(rows, meant, closing, named.chances.tolist(), strict=True):
        if row < 0:
            continue
        powers = torch.softmax(before[row].double(), 0)
        expected = powers[torch.from_numpy(ids[ids < width]).long()].sum().item()
        assert abs(found - expected) < 1e-4
        if token is not None and expected < 0.5:
            masked[row] = NEVER
            masked[row, token] = 0.0
            declined += 1
        else:
            kept += 1
    assert torch.equal(logits, masked)
    return declined, kept
