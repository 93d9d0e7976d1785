"""Applies bitmasks to logits. Needs torch."""

from collections.abc import Sequence
from types import ModuleType

from constrained_k2.errors import missing_dependency

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_dependency(error), name=error.name) from error

from constrained_k2.kernels import numpy_kernel, torch_kernel

__all__ = ["apply_token_bitmask", "mask_rows", "restore_emptied_rows"]


def apply_token_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: Sequence[int] | None = None) -> None:
    """Set the logits of forbidden tokens to -inf, in place.

    Args:
        logits: Floating point ``[batch, width]``, any strides.
        bitmask: int32 ``[n, words]`` on the same device, bit 1 = allowed, lowest bit first. ``32 * words`` may differ
            from ``width``; columns without a bit are forbidden.
        rows: Row ``i`` of the bitmask masks row ``rows[i]`` of the logits; by default rows ``0 … n-1``. Other rows are
            neither read nor written.
    """
    count = len(bitmask)
    rows = range(count) if rows is None else rows
    if len(rows) != count:
        raise ValueError(f"{len(rows)} rows are given for a bitmask of {count} rows")
    if not count:
        return
    if not 0 <= min(rows) <= max(rows) < logits.shape[0]:
        raise ValueError(f"rows {list(rows)} are not all within the {logits.shape[0]} rows of the logits")
    plan = torch.tensor([(target, source, 0) for source, target in enumerate(rows)], dtype=torch.int32)
    mask_rows(logits, bitmask, plan.to(logits.device))


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """Run :func:`constrained_k2.kernels.torch_kernel.mask_rows` in the fastest implementation for the logits."""
    _implementation(logits).mask_rows(logits, masks, plan)


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """Run :func:`constrained_k2.kernels.torch_kernel.restore_emptied_rows` in the fastest implementation."""
    _implementation(logits).restore_emptied_rows(logits, masks, plan)


def _implementation(logits: torch.Tensor) -> ModuleType:
    if logits.is_cuda and logits.stride(1) == 1:
        from constrained_k2.kernels import triton_kernel  # Triton is not installed everywhere

        return triton_kernel
    return numpy_kernel if numpy_kernel.supports(logits) else torch_kernel
