"""Applies bitmasks to logits in host memory with numpy, in a tenth of torch's time on small rows."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Mask = npt.NDArray[np.int32]
Ids = npt.NDArray[np.intp]
Logits = npt.NDArray[Any]

_NEVER = -np.inf
_MAX_BLOCK = 1 << 16  # logits masked in one numpy call, which makes two copies of them
_TYPES: dict[torch.dtype, tuple[Any, Any]] = {  # numpy has no bfloat16
    torch.float16: (np.float16, np.int16),
    torch.float32: (np.float32, np.int32),
    torch.float64: (np.float64, np.int64),
}


def supports(logits: torch.Tensor) -> bool:
    """True if this implementation can mask these logits."""
    return logits.is_cpu and logits.dtype in _TYPES and not logits.requires_grad


def mask_rows(logits: torch.Tensor, rows: Sequence[int], masks: Sequence[Mask]) -> None:
    """Set the logits of forbidden tokens to -inf, in place, on logits that :func:`supports`; other rows stay as is.

    The logits are viewed as integers: allowed ones keep their bits, the others get the bits of -inf. Neighbouring rows
    are masked together, since a numpy call takes as long as a small row.

    Args:
        logits: ``[batch, width]``, any strides.
        rows: Rows of the logits, each at most once.
        masks: The mask of each row, int32 ``[words]``; columns without a bit are forbidden.
    """
    if not rows:
        return
    keep, never = _bits_by_byte(logits.dtype)
    targets = logits.numpy().view(keep.dtype)
    width = min(logits.shape[1], 32 * len(masks[0]))
    most = max(1, _MAX_BLOCK // max(1, width))
    begin = 0
    while begin < len(rows):
        first, end = rows[begin], begin + 1
        while end < len(rows) and end - begin < most and rows[end] == first + end - begin:
            end += 1
        count = end - begin
        bits = np.array(masks[begin:end]).view(np.uint8)
        block = targets[first : first + count, :width]
        block &= keep.take(bits, axis=0).reshape(count, -1)[:, :width]
        block |= never.take(bits, axis=0).reshape(count, -1)[:, :width]
        if width < logits.shape[1]:
            logits[first : first + count, width:] = _NEVER
        begin = end


def allow_only(row: Logits, ids: Ids) -> None:
    """Set all logits of a row to -inf, except the logits of these tokens."""
    kept = row[ids]
    row.fill(_NEVER)
    row[ids] = kept


def restore_if_empty(row: Logits, mask: Mask) -> None:
    """Make a mask's tokens equally likely in a masked row that is -inf everywhere, in place.

    Other logits processors may forbid all tokens that the mask allows (``min_tokens`` forbids the stops); a row without
    finite logits would be sampled as garbage.
    """
    if row.max() != _NEVER:
        return
    width = min(len(row), 32 * len(mask))
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), count=width, bitorder="little")
    np.copyto(row[:width], 0.0, where=bits.view(np.bool_))


@cache
def _bits_by_byte(dtype: torch.dtype) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Mask byte -> bits to keep of its eight logits, and bits to set: integers ``[256, 8]`` each."""
    kind, integer = _TYPES[dtype]
    allowed = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(integer)
    return -allowed, np.where(allowed, integer(0), np.array(_NEVER, dtype=kind).view(integer))
