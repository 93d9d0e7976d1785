"""Masks on logits in plain torch: the reference, the path on CPU, and correct on any device."""

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
    shifts = torch.arange(8, dtype=torch.uint8, device=masks.device)
    width = logits.shape[1]
    masked = min(width, 32 * masks.shape[1])
    for target, source, _ in plan.tolist():
        bits = (masks[source].view(torch.uint8)[:, None] >> shifts) & 1  # [bytes, 8]
        logits[target, :masked].masked_fill_(bits.view(-1)[:masked] == 0, _NEVER)
        logits[target, masked:] = _NEVER


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """Where nothing is left of a masked row, make the mask's tokens equally likely, in place.

    Another stage may have forbidden all that the mask allows (``min_tokens`` forbids the stops); a row of -inf alone
    would be sampled as garbage.

    Args:
        logits: As for :func:`mask_rows`, already masked.
        masks: As for :func:`mask_rows`.
        plan: As for :func:`mask_rows`; rows whose third column is 0 are not touched.
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=masks.device)
    masked = min(logits.shape[1], 32 * masks.shape[1])
    for target, source, guarded in plan.tolist():
        if guarded and logits[target].max() == _NEVER:
            bits = (masks[source].view(torch.uint8)[:, None] >> shifts) & 1  # [bytes, 8]
            logits[target, :masked].masked_fill_(bits.view(-1)[:masked] == 1, 0.0)
