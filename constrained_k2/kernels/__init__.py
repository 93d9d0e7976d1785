"""Applies bitmasks to logits: Triton on a GPU, torch or numpy on a CPU. Needs torch."""

from collections.abc import Sequence
from types import ModuleType

from constrained_k2.errors import missing_dependency

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_dependency(error), name=error.name) from error

from constrained_k2.kernels import numpy_kernel, torch_kernel
from constrained_k2.kernels.plan import MAX_IDS, PLAN_COLUMNS, Column, Workspace

__all__ = ["MAX_IDS", "PLAN_COLUMNS", "Column", "Workspace", "apply_masks", "apply_token_bitmask"]


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
    if numpy_kernel.supports(logits):
        numpy_kernel.mask_rows(logits, list(rows), list(bitmask.numpy()))
        return
    entries = [(target, source, 0, 0, -1, -1) for source, target in enumerate(rows)]
    plan = torch.tensor(entries, dtype=torch.int32).to(logits.device)
    apply_masks(logits, bitmask, plan, plan[:0, 0])


def apply_masks(
    logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor, ids: torch.Tensor, workspace: Workspace | None = None
) -> None:
    """Mask rows of the logits in place, restore rows without a finite logit, and measure some rows, in one launch.

    Rows that are not in the plan are neither read nor written. In Triton, in rows that are neither guarded
    (restored if empty) nor examined (measured), only the forbidden logits are written; nothing is allocated and nothing
    waits. A plan of fixed length, whose entries may be unused, can be captured in a CUDA graph.

    Args:
        logits: Floating point ``[batch, width]``; in Triton their columns must be contiguous.
        masks: int32 ``[n, words]``, bit 1 = allowed, lowest bit first; columns without a bit are forbidden.
        plan: int32 ``[entries, PLAN_COLUMNS]``, contiguous: see :class:`Column`. Not checked.
        ids: int32 ``[n]``: the tokens that entries list.
        workspace: Memory for guarded and examined rows; without it no row is guarded or examined.

    All are on the device of the logits.
    """
    _implementation(logits).apply_masks(logits, masks, plan, ids, workspace)


def _implementation(logits: torch.Tensor) -> ModuleType:
    if logits.is_cuda and logits.stride(1) == 1:
        from constrained_k2.kernels import triton_kernel  # Triton is not installed everywhere

        return triton_kernel
    return torch_kernel
