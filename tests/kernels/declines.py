"""Random rows that write names, and what should become of them in the slow and obvious way."""

from collections.abc import Callable

import numpy as np
import torch

from constrained_k2.kernels.declining import NamedRows

NEVER = float("-inf")


def check_random_rows(
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
