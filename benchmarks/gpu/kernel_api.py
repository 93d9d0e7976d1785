"""The kernels under test, as this benchmark calls them: the only file that knows their signature."""

from typing import NamedTuple

import torch

from constrained_k2.kernels import MAX_IDS, PLAN_COLUMNS, Workspace, torch_kernel, triton_kernel

__all__ = ["MAX_IDS", "PLAN_COLUMNS", "Launch", "Workspace", "entry", "inactive", "launch", "launch_reference"]


class Launch(NamedTuple):
    """The arguments of one launch, on one device.

    Attributes:
        logits: Floating point ``[batch, width]``, columns contiguous.
        masks: int32 ``[n, words]``.
        plan: int32 ``[m, PLAN_COLUMNS]``, made of :func:`entry` and :func:`inactive`.
        ids: int32 ``[k]``, lists of allowed tokens.
        workspace: For guarded and examined rows; None runs the variant of the kernel without them.
    """

    logits: torch.Tensor
    masks: torch.Tensor
    plan: torch.Tensor
    ids: torch.Tensor
    workspace: Workspace | None


def entry(  # noqa: PLR0913 - the columns of a plan
    row: int, source: int, count: int = 0, *, guarded: bool = False, keep: int = -1, result: int = -1
) -> list[int]:
    """Return an entry of a plan.

    Args:
        row: Row of the logits.
        source: Row of the masks; with ``count``, the index of the first allowed id.
        count: Number of allowed ids; 0 for a row of the masks.
        guarded: Restore the row if it is -inf everywhere.
        keep: Row of the masks that takes a copy of the mask; -1 for none.
        result: Row of the workspace's results; -1 if the row is not examined.
    """
    return [row, source, count, int(guarded), keep, result]


def inactive() -> list[int]:
    """Return an entry that the kernel skips."""
    return entry(-1, 0)


def launch(arguments: Launch) -> None:
    """Run the Triton kernel once; on tensors of the host in Triton's interpreter."""
    triton_kernel.apply_masks(*arguments)


def launch_reference(arguments: Launch) -> None:
    """Run the reference in plain torch."""
    torch_kernel.apply_masks(*arguments)
