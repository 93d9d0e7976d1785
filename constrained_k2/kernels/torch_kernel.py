"""Applies bitmasks to logits in plain torch: the reference, for any dtype on any device."""

import torch

_NEVER = float("-inf")


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """Set the logits of forbidden tokens to -inf, in place. Rows that are not in the plan are not touched.

    Args:
        logits: Floating point ``[batch, width]``, any strides.
        masks: int32 ``[n, words]`` on the same device, bit 1 = allowed, lowest bit first; columns without a bit are
            forbidden.
        plan: int32 ``[m, 3]`` on the same device: row of the logits, row of the masks, and 1 if
            :func:`restore_emptied_rows` applies to it. Not checked.
    """
    width = logits.shape[1]
    for target, source, _ in plan.tolist():
        row, mask = logits[target], masks[source]
        forbidding, allowing = torch.nonzero(mask != -1), torch.nonzero(mask)  # words with a 0 bit, with a 1 bit
        if len(forbidding) <= len(allowing):
            row[_ids(mask, forbidding, 0, width)] = _NEVER
            row[32 * len(mask) :] = _NEVER
        else:
            ids = _ids(mask, allowing, 1, width)
            allowed = row[ids]
            row.fill_(_NEVER)
            row[ids] = allowed


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """Make a mask's tokens equally likely in masked rows that are -inf everywhere, in place; arguments as before.

    Other logits processors may forbid all tokens that the mask allows (``min_tokens`` forbids the stops); a row without
    finite logits would be sampled as garbage.
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
