"""Putting masks on logits."""

from collections.abc import Sequence
from types import ModuleType

import torch

from constrained_k2.kernels import numpy_bitmask, torch_bitmask

__all__ = ["apply_token_bitmask", "mask_rows", "restore_emptied_rows"]


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: Sequence[int] | None = None) -> None:
    """Set the logits of forbidden tokens to -inf, in place.

    Args:
        logits: Floating point ``[batch, width]``, any strides.
        bitmask: int32 ``[n, words]`` on the same device, bit 1 = allowed, lowest bit first; ``32 * words`` may exceed
            or fall short of ``width``; columns without a bit are forbidden.
        rows: Row ``i`` of the bitmask masks row ``rows[i]`` of the logits; by default rows ``0 … n-1``. Rows that
            are not named are neither read nor written.

    Raises:
        ValueError: The shapes do not fit together.
    """
    count = len(bitmask)
    if rows is None:
        rows = range(count)
    if len(rows) != count:
        raise ValueError(f"{len(rows)} rows are named for a bitmask of {count} rows")
    if not count:
        return
    if not 0 <= min(rows) <= max(rows) < logits.shape[0]:
        raise ValueError(f"rows {list(rows)} do not lie in the {logits.shape[0]} rows of the logits")
    plan = torch.tensor([(target, source, 0) for source, target in enumerate(rows)], dtype=torch.int32)
    mask_rows(logits, bitmask, plan.to(logits.device))


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """:func:`constrained_k2.kernels.torch_bitmask.mask_rows`, by the implementation for the logits' device."""
    _implementation(logits).mask_rows(logits, masks, plan)


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """:func:`constrained_k2.kernels.torch_bitmask.restore_emptied_rows`, likewise."""
    _implementation(logits).restore_emptied_rows(logits, masks, plan)


def _implementation(logits: torch.Tensor) -> ModuleType:
    if logits.is_cuda and logits.stride(1) == 1:
        from constrained_k2.kernels import triton_bitmask  # Triton is not installed everywhere

        return triton_bitmask
    return numpy_bitmask if numpy_bitmask.takes(logits) else torch_bitmask
