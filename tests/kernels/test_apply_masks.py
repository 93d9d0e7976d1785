"""Launches in torch, and in Triton's interpreter; and the kernel compiled for a GPU, where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from constrained_k2.kernels import Workspace, apply_masks, apply_token_bitmask, torch_kernel
from tests.kernels.launches import DTYPES, SHAPES, check, no_rows, random_launch

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "width"), SHAPES)
def test_the_reference(dtype: torch.dtype, size: int, width: int, *, watched: bool) -> None:
    for seed in range(4):
        check(random_launch(dtype, size, width, seed, watched=watched), torch_kernel.apply_masks)


def test_entries_that_are_not_used() -> None:
    check(no_rows(), apply_masks)


def test_masks_of_bfloat16_logits_in_host_memory() -> None:
    logits = torch.ones(2, 40, dtype=torch.bfloat16)
    apply_token_bitmask(logits, torch.tensor([[0b101, 0]], dtype=torch.int32), rows=[1])
    assert (logits[0] == 1).all()
    assert torch.nonzero(logits[1] == 1).flatten().tolist() == [0, 2]


def test_a_workspace_that_is_too_small() -> None:
    workspace = Workspace(2, 1, 100, torch.device("cpu"))
    workspace.check(2, 100)
    for entries, width in ((3, 100), (2, 101)):
        with pytest.raises(ValueError, match="larger workspace"):
            workspace.check(entries, width)


def run(*arguments: str, **variables: str) -> str:
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


@pytest.mark.slow
def test_in_tritons_interpreter() -> None:
    options = ("-x", "-q", "--noconftest", "-p", "no:cacheprovider")
    run("-m", "pytest", *options, "tests/kernels/interpreted.py", TRITON_INTERPRET="1")


@pytest.mark.slow
def test_it_compiles_for_gpus(tmp_path: Path) -> None:
    """To machine code, without a GPU; no thread keeps anything in slow memory."""
    printed = run("-m", "tests.kernels.compiled", TRITON_CACHE_DIR=str(tmp_path))
    assert len(printed.splitlines()) == 5 * len(DTYPES)
