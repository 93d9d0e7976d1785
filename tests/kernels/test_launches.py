"""Launches and declined rows: in torch, and in Triton's interpreter, where test_kernels.py runs these tests again."""

import math
import sys
from typing import Any

import pytest
import torch

from constrained_k2.kernels import PLAN_COLUMNS, Column, Workspace, torch_kernel
from constrained_k2.kernels.declining import NamedRows
from constrained_k2.kernels.plan import BLOCK
from tests.kernels.launches import (
    DTYPES,
    NEVER,
    SHAPES,
    Launch,
    check,
    check_declined_rows,
    random_launch,
    workspace_for,
)
from tests.kit.budget import tries

INTERPRETED = "tests.kit.triton_on_cpu" in sys.modules
if INTERPRETED:
    from constrained_k2.kernels import triton_declining, triton_kernel

    apply_masks: Any = triton_kernel.apply_masks
else:
    apply_masks = torch_kernel.apply_masks


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "width"), SHAPES)
def test_random_launches(dtype: torch.dtype, size: int, width: int, *, watched: bool) -> None:
    for seed in range(tries(3, fast=1, everything=6)):
        check(random_launch(dtype, size, width, seed, watched=watched), apply_masks)


def test_entries_that_are_not_used() -> None:
    plan = torch.full((3, PLAN_COLUMNS), 7, dtype=torch.int32)
    plan[:, Column.ROW] = -1
    logits, masks = torch.randn(2, BLOCK + 5), torch.zeros((1, 4), dtype=torch.int32)
    check(Launch(logits, masks, plan, plan[:0, 0], workspace_for(plan, logits, masks)), apply_masks)


def test_a_workspace_is_used_again() -> None:
    """The last block of a row leaves nothing behind for the next launch."""
    workspace = Workspace(16, 16, 9024, torch.device("cpu"))
    for seed in range(6):
        check(random_launch(torch.float32, 8999, 8999, seed, watched=True), apply_masks, workspace)


def test_a_mask_that_is_kept_is_read_by_the_next_launch() -> None:
    masks = torch.zeros((3, 3), dtype=torch.int32)
    masks[2] = torch.tensor([5, 0, -1])
    ids = torch.tensor([3, 64], dtype=torch.int32)
    logits = torch.zeros(4, 96)
    first = torch.tensor([(0, 2, 0, 0, 0, -1), (1, 0, 2, 0, 1, -1)], dtype=torch.int32)
    apply_masks(logits, masks, first, ids)
    second = torch.tensor([(2, 0, 0, 0, -1, -1), (3, 1, 0, 0, -1, -1)], dtype=torch.int32)
    apply_masks(logits, masks, second, ids[:0])
    assert torch.equal(logits[:2], logits[2:])
    assert torch.nonzero(logits[3] == 0).flatten().tolist() == [3, 64]


@pytest.mark.parametrize("bad", [[math.nan], [NEVER] * 9000, [math.inf]], ids=["nan", "-inf", "inf"])
def test_logits_that_are_no_numbers_have_no_result(bad: list[float]) -> None:
    logits = torch.zeros(1, 9000)
    logits[0, : len(bad)] = torch.tensor(bad)
    workspace = Workspace(1, 1, 9024, torch.device("cpu"))
    masks = torch.full((1, 282), 0x55, dtype=torch.int32)
    plan = torch.tensor([(0, 0, 0, 0, -1, 0)], dtype=torch.int32)
    apply_masks(logits, masks, plan, plan[:0, 0], workspace)
    assert not workspace.results[0, 3] >= 0.0  # as row_probe tells them


def measure(named: NamedRows, logits: torch.Tensor) -> None:
    if INTERPRETED:
        triton_declining.measure(logits, named.rows, named.plan, named.ids, named.chances)
    else:
        named.measure(logits)


def decline(named: NamedRows, logits: torch.Tensor, threshold: float) -> None:
    if INTERPRETED:
        triton_declining.decline(logits, named.rows, named.plan, named.chances, threshold)
    else:
        named.decline(logits, threshold)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 97, 9000])
def test_declined_rows(dtype: torch.dtype, width: int) -> None:
    """In torch: by numpy, and by torch for types that numpy has not."""
    found = [check_declined_rows(measure, decline, dtype, width, seed) for seed in range(4 if INTERPRETED else 8)]
    assert all(map(sum, zip(*found, strict=True)))
