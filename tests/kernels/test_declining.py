"""Declined rows on a CPU: by numpy, and by torch for types that numpy has not."""

import math

import numpy as np
import pytest
import torch

from constrained_k2.kernels.declining import NamedRows
from tests.kernels.declines import check_random_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 97, 9000])
def test_random_rows(dtype: torch.dtype, width: int) -> None:
    found = [check_random_rows(NamedRows.measure, NamedRows.decline, dtype, width, seed) for seed in range(8)]
    assert all(map(sum, zip(*found, strict=True)))


def test_rows_that_are_no_numbers_are_not_declined() -> None:
    for bad in (math.nan, -math.inf, math.inf):
        logits = torch.full((1, 40), bad)
        named = NamedRows([np.arange(3, dtype=np.int32)], [7], [0], torch.device("cpu"))
        named.measure(logits)
        before = logits.clone()
        named.decline(logits, 0.5)
        assert torch.equal(logits.nan_to_num(), before.nan_to_num())
