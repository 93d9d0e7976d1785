"""Masks on logits, against the slow and obvious way; Triton's kernels interpreted, and compiled without a GPU."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from constrained_k2 import apply_token_bitmask
from constrained_k2.kernels import Workspace, numpy_kernel, torch_kernel
from constrained_k2.kernels.declining import NamedRows
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.kernels.launches import DTYPES, NEVER

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 70, 97])
def test_apply_token_bitmask(dtype: torch.dtype, size: int) -> None:
    chance = np.random.default_rng(size)
    logits = torch.randn(7, 2 * size, dtype=torch.float32).to(dtype)[:, ::2]  # strided
    before = logits.clone()
    bitmask = torch.from_numpy(chance.integers(-(2**31), 2**31, (3, (size + 31) // 32), dtype=np.int32))
    apply_token_bitmask(logits, bitmask, rows=[5, 0, 3])
    expected = before.clone()
    for source, target in enumerate([5, 0, 3]):
        allowed = set(allowed_ids(bitmask[source].numpy()).tolist())
        expected[target, [token for token in range(size) if token not in allowed]] = NEVER
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("rows", [[0], [0, 5], [-1, 0]])
def test_rows_that_do_not_fit(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="rows"):
        apply_token_bitmask(torch.zeros(2, 32), torch.zeros(2, 1, dtype=torch.int32), rows=rows)


def test_restored_rows_in_host_memory() -> None:
    logits = np.arange(40, dtype=np.float32)
    mask = np.array([0b0011_1000], dtype=np.int32)
    numpy_kernel.restore_if_empty(logits, mask)
    assert (logits == np.arange(40)).all()
    logits.fill(NEVER)
    numpy_kernel.restore_if_empty(logits, mask)
    assert np.flatnonzero(logits == 0).tolist() == [3, 4, 5]
    assert np.isinf(logits).sum() == 37


@pytest.mark.parametrize("at_once", [1, 200, 1 << 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("size", "width"), [(64, 64), (97, 97), (97, 80), (64, 130)])
def test_numpy_masks_as_torch_does(
    dtype: torch.dtype, size: int, width: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_kernel, "_MAX_BLOCK", at_once)
    torch.manual_seed(size)
    logits = torch.randn(12, 2 * width).to(dtype)[:, ::2]  # strided
    logits[:3, 5] = float("inf")
    masks = torch.randint(-(2**31), 2**31, (4, 2 * ((size + 31) // 32))).to(torch.int32)[:, ::2]
    rows, sources = [5, 0, 1, 2, 3, 4, 9, 11, 10], [1, 3, 2, 2, 0, 1, 0, 3, 3]
    expected = logits.clone()
    assert numpy_kernel.supports(logits)
    numpy_kernel.mask_rows(logits, rows, [masks[source].numpy() for source in sources])
    entries = [(row, source, 0, 0, -1, -1) for row, source in zip(rows, sources, strict=True)]
    torch_kernel.apply_masks(expected, masks, torch.tensor(entries, dtype=torch.int32), torch.zeros(0))
    assert torch.equal(logits, expected)


def test_numpy_allows_listed_tokens_alone() -> None:
    logits = np.arange(40, dtype=np.float32)
    numpy_kernel.allow_only(logits, np.array([3, 39]))
    assert np.flatnonzero(np.isfinite(logits)).tolist() == [3, 39]
    assert logits[39] == 39


def test_rows_that_are_no_numbers_are_not_declined() -> None:
    for bad in (math.nan, -math.inf, math.inf):
        logits = torch.full((1, 40), bad)
        named = NamedRows([np.arange(3, dtype=np.int32)], [7], [0], torch.device("cpu"))
        named.measure(logits)
        before = logits.clone()
        named.decline(logits, 0.5)
        assert torch.equal(logits.nan_to_num(), before.nan_to_num())


def test_a_workspace_that_is_too_small() -> None:
    workspace = Workspace(2, 1, 100, torch.device("cpu"))
    workspace.check(2, 100)
    for entries, width in ((3, 100), (2, 101)):
        with pytest.raises(ValueError, match="larger workspace"):
            workspace.check(entries, width)


def run(*arguments: str, **variables: str) -> str:
    """The output of a process of Python's."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.slow
def test_in_tritons_interpreter() -> None:
    options = ("-x", "-q", "--noconftest", "-p", "no:cacheprovider", "-p", "tests.kit.triton_on_cpu")
    run("-m", "pytest", *options, "tests/kernels/test_launches.py", TRITON_INTERPRET="1")


@pytest.mark.slow
def test_it_compiles_for_gpus(tmp_path: Path) -> None:
    """To machine code, without a GPU; no thread keeps anything in slow memory."""
    printed = run("-m", "tests.kernels.compiled", TRITON_CACHE_DIR=str(tmp_path))
    assert len(printed.splitlines()) == 5 * len(DTYPES)
