"""Launches in Triton's interpreter; run by test_apply_masks.py in a process of its own."""

import tests.kit.triton_on_cpu  # isort: skip # noqa: F401 - before Triton's kernels are defined

import math

import pytest
import torch

from constrained_k2.kernels import Workspace, triton_declining, triton_kernel
from constrained_k2.kernels.declining import NamedRows
from tests.kernels.declines import check_random_rows
from tests.kernels.launches import DTYPES, NEVER, SHAPES, check, no_rows, random_launch
from tests.kit.budget import tries


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "width"), SHAPES)
def test_random_launches(dtype: torch.dtype, size: int, width: int, *, watched: bool) -> None:
    for seed in range(tries(3, fast=1, everything=6)):
        check(random_launch(dtype, size, width, seed, watched=watched), triton_kernel.apply_masks)


def test_entries_that_are_not_used() -> None:
    check(no_rows(), triton_kernel.apply_masks)


def test_a_workspace_is_used_again() -> None:
    """The last block of a row leaves nothing behind for the next launch."""
    workspace = Workspace(16, 16, 9024, torch.device("cpu"))
    for seed in range(6):
        before = random_launch(torch.float32, 8999, 8999, seed, watched=True)
        check(before, triton_kernel.apply_masks, workspace)


def test_a_mask_that_is_kept_is_read_by_the_next_launch() -> None:
    masks = torch.zeros((3, 3), dtype=torch.int32)
    masks[2] = torch.tensor([5, 0, -1])
    ids = torch.tensor([3, 64], dtype=torch.int32)
    logits = torch.zeros(4, 96)
    first = torch.tensor([(0, 2, 0, 0, 0, -1), (1, 0, 2, 0, 1, -1)], dtype=torch.int32)
    triton_kernel.apply_masks(logits, masks, first, ids)
    second = torch.tensor([(2, 0, 0, 0, -1, -1), (3, 1, 0, 0, -1, -1)], dtype=torch.int32)
    triton_kernel.apply_masks(logits, masks, second, ids[:0])
    assert torch.equal(logits[:2], logits[2:])
    assert torch.nonzero(logits[3] == 0).flatten().tolist() == [3, 64]


def test_logits_that_are_no_numbers_have_no_result() -> None:
    for bad in ([math.nan], [NEVER] * 9000, [math.inf]):
        logits = torch.zeros(1, 9000)
        logits[0, : len(bad)] = torch.tensor(bad)
        workspace = Workspace(1, 1, 9024, torch.device("cpu"))
        masks = torch.full((1, 282), 0x55, dtype=torch.int32)
        plan = torch.tensor([(0, 0, 0, 0, -1, 0)], dtype=torch.int32)
        triton_kernel.apply_masks(logits, masks, plan, plan[:0, 0], workspace)
        assert not workspace.results[0, 3] >= 0.0  # as row_probe tells them


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 97, 9000])
def test_declined_rows(dtype: torch.dtype, width: int) -> None:
    def measure(named: NamedRows, logits: torch.Tensor) -> None:
        triton_declining.measure(logits, named.rows, named.plan, named.ids, named.chances)

    def decline(named: NamedRows, logits: torch.Tensor, threshold: float) -> None:
        triton_declining.decline(logits, named.rows, named.plan, named.chances, threshold)

    found = [check_random_rows(measure, decline, dtype, width, seed) for seed in range(4)]
    assert all(map(sum, zip(*found, strict=True)))
