"""Applies masks to logits in plain torch: the reference, for any floating point type on any device."""

import torch

from constrained_k2.kernels.examination import after_mask, before_mask
from constrained_k2.kernels.plan import Workspace

_NEVER = float("-inf")


def apply_masks(
    logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor, ids: torch.Tensor, workspace: Workspace | None = None
) -> None:
    """As :func:`constrained_k2.kernels.apply_masks`, but waits for the device, and allocates memory."""
    width = logits.shape[1]
    for target, source, count, guarded, keep, result in plan.tolist():
        if target < 0:
            continue
        mask = _listed(ids[source : source + count], masks) if count else masks[source]
        row = logits[target]
        is_examined = workspace is not None and result >= 0
        before = before_mask(row[None]) if is_examined else None
        _mask(row, mask)
        if workspace is not None and guarded and row.max() == _NEVER:
            row[_ids(mask, torch.nonzero(mask), 1, width)] = 0.0
        if before is not None and workspace is not None:
            workspace.results[result] = after_mask(*before, row[None])[0]
        if keep >= 0:
            masks[keep] = mask


def _mask(row: torch.Tensor, mask: torch.Tensor) -> None:
    """Set the forbidden logits of a row to -inf; only the words of the mask that matter are unpacked."""
    width = len(row)
    forbidding, allowing = torch.nonzero(mask != -1), torch.nonzero(mask)  # words with a 0 bit, with a 1 bit
    if len(forbidding) <= len(allowing):
        row[_ids(mask, forbidding, 0, width)] = _NEVER
        row[32 * len(mask) :] = _NEVER
    else:
        ids = _ids(mask, allowing, 1, width)
        allowed = row[ids]
        row.fill_(_NEVER)
        row[ids] = allowed


def _listed(ids: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """The mask that allows only these tokens, int32 ``[words]``."""
    bits = torch.zeros(32 * masks.shape[1], dtype=torch.int64, device=masks.device)
    bits[ids[ids < len(bits)].long()] = 1
    packed = (bits.view(-1, 32) << torch.arange(32, device=masks.device)).sum(dim=1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def _ids(mask: torch.Tensor, words: torch.Tensor, bit: int, width: int) -> torch.Tensor:
    """The ids below ``width`` whose bit is ``bit``, int64 ``[n]``; only the words ``[m, 1]`` of the mask are read."""
    offsets = torch.arange(32, dtype=torch.int32, device=mask.device)
    bits = (mask[words] >> offsets) & 1  # [m, 32]
    ids = (32 * words + offsets)[bits == bit]
    return ids[ids < width]
