"""Masks on logits in plain torch: the reference, correct for any type on any device."""

import torch

_NEVER = float("-inf")


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """Set the logits of forbidden tokens to -inf, in place. Rows that the plan does not name are not touched.

    Args:
        logits: Floating point ``[batch, width]``, any strides.
        masks: int32 ``[n, words]`` on the same device, bit 1 = allowed, lowest bit first; columns without a bit are
            forbidden.
        plan: int32 ``[m, 3]`` on the same device: a row of the logits, the row of the masks that masks it, and
            whether :func:`restore_emptied_rows` is to look at it. Not checked.
    """
    width = logits.shape[1]
    for target, source, _ in plan.tolist():
        row, mask = logits[target], masks[source]
        shut, opened = torch.nonzero(mask != -1), torch.nonzero(mask)  # words that forbid something, that allow some
        if len(shut) <= len(opened):
            row[_ids(mask, shut, 0, width)] = _NEVER
            row[32 * len(mask) :] = _NEVER
        else:
            ids = _ids(mask, opened, 1, width)
            kept = row[ids]
            row.fill_(_NEVER)
            row[ids] = kept


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """Where nothing is left of a masked row, make the mask's tokens equally likely, in place.

    Another stage may have forbidden all that the mask allows (``min_tokens`` forbids the stops); a row of -inf alone
    would be sampled as garbage.

    Args:
        logits: As for :func:`mask_rows`, already masked.
        masks: As for :func:`mask_rows`.
        plan: As for :func:`mask_rows`; rows whose third column is 0 are not touched.
    """
    width = logits.shape[1]
    for target, source, guarded in plan.tolist():
        row, mask = logits[target], masks[source]
        if guarded and row.max() == _NEVER:
            row[_ids(mask, torch.nonzero(mask), 1, width)] = 0.0


def _ids(mask: torch.Tensor, words: torch.Tensor, bit: int, width: int) -> torch.Tensor:
    """The ids below ``width`` whose bit is ``bit``, int64 ``[n]``; only the words ``[m, 1]`` of the mask are read."""
    offsets = torch.arange(32, dtype=torch.int32, device=mask.device)
    bits = (mask[words] >> offsets) & 1  # [m, 32]
    ids = (32 * words + offsets)[bits == bit]
    return ids[ids < width]
