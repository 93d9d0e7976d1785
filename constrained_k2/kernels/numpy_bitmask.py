"""Masks on logits in host memory: on small rows, numpy takes a tenth of what torch's dispatch takes."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_NEVER = -np.inf
_MOST_AT_ONCE = 1 << 16  # logits that are masked together, of which there are two copies meanwhile
_TYPES: dict[torch.dtype, tuple[Any, Any]] = {  # numpy knows no bfloat16
    torch.float16: (np.float16, np.int16),
    torch.float32: (np.float32, np.int32),
    torch.float64: (np.float64, np.int64),
}


def takes(logits: torch.Tensor) -> bool:
    """Whether logits can be masked here."""
    return logits.is_cpu and logits.dtype in _TYPES and not logits.requires_grad


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_bitmask.mask_rows`, on logits that :func:`takes` lets in.

    The logits are taken for integers: what is allowed keeps all its bits, of the rest those of -inf are set. Neighbours
    are masked together, since a call of numpy's takes as long as a small row.
    """
    sources = masks.numpy()
    kept, never = _bits_by_byte(logits.dtype)
    rows = logits.numpy().view(kept.dtype)
    places: list[list[int]] = plan.tolist()
    width = min(logits.shape[1], 32 * sources.shape[1])
    most = max(1, _MOST_AT_ONCE // max(1, width))
    begin = 0
    while begin < len(places):
        target, end = places[begin][0], begin + 1
        while end < len(places) and end - begin < most and places[end][0] == target + end - begin:
            end += 1
        count = end - begin
        bits = sources[[source for _, source, _ in places[begin:end]]].view(np.uint8)
        block = rows[target : target + count, :width]
        block &= kept.take(bits, axis=0).reshape(count, -1)[:, :width]
        block |= never.take(bits, axis=0).reshape(count, -1)[:, :width]
        if width < logits.shape[1]:
            logits[target : target + count, width:] = _NEVER
        begin = end


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_bitmask.restore_emptied_rows`, on logits that :func:`takes` lets in."""
    rows, sources = logits.numpy(), masks.numpy()
    width = min(logits.shape[1], 32 * sources.shape[1])
    for target, source, guarded in plan.tolist():
        row = rows[target]
        if guarded and row.max() == _NEVER:
            allowed = np.unpackbits(
                np.ascontiguousarray(sources[source]).view(np.uint8), count=width, bitorder="little"
            ).view(np.bool_)
            np.copyto(row[:width], 0.0, where=allowed)


@cache
def _bits_by_byte(dtype: torch.dtype) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """For each byte of a mask what its eight logits keep, and what they get: integers as wide, ``[256, 8]`` each."""
    kind, integer = _TYPES[dtype]
    allowed = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(integer)
    return -allowed, np.where(allowed, integer(0), np.array(_NEVER, dtype=kind).view(integer))
