"""Masks on logits in plain torch: the reference, the path on CPU, and correct on any device."""

from collections.abc import Sequence

import torch

from constrained_k2.bitmask import TokenSet

_NEVER = float("-inf")


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
    count, words = bitmask.shape
    if rows is None:
        rows = range(count)
    if len(rows) != count:
        raise ValueError(f"{len(rows)} rows are named for a bitmask of {count} rows")
    if count and not 0 <= min(rows) <= max(rows) < logits.shape[0]:
        raise ValueError(f"rows {list(rows)} do not lie in the {logits.shape[0]} rows of the logits")
    width = logits.shape[1]
    shifts = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    for source, target in enumerate(rows):
        bits = (bitmask[source, :, None] >> shifts) & 1  # [words, 32]
        forbidden = bits.view(words * 32)[:width] == 0
        masked = min(width, words * 32)
        logits[target, :masked].masked_fill_(forbidden, _NEVER)
        logits[target, masked:] = _NEVER


def apply_token_set(logits: torch.Tensor, tokens: TokenSet, ids: torch.Tensor) -> None:
    """Mask one row by a constant set, in place; for a set of nearly all tokens only the forbidden few are written.

    Where another processor has already forbidden the whole of a small set (``min_tokens`` forbids the stops), its
    logits become 0: a row never ends up without any token.

    Args:
        logits: Floating point ``[width]``, one row.
        tokens: The set.
        ids: ``tokens.ids`` as int64 ``[n]`` on the logits' device.
    """
    if tokens.complement:
        logits[ids] = _NEVER
        return
    kept = logits[ids]
    kept = torch.where(kept.max() == _NEVER, torch.zeros_like(kept), kept)  # decided on the device, without a sync
    logits.fill_(_NEVER)
    logits[ids] = kept
