"""Applies bitmasks to logits in host memory. On small rows numpy takes a tenth of the time of torch's dispatch."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

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


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_kernel.mask_rows`, on logits that :func:`supports`.

    The logits are viewed as integers: allowed ones keep their bits, the others get those of -inf. Neighbouring rows are
    masked together, since a numpy call takes as long as a small row.
    """
    sources = masks.numpy()
    keep, never = _bits_by_byte(logits.dtype)
    rows = logits.numpy().view(keep.dtype)
    items: list[list[int]] = plan.tolist()
    width = min(logits.shape[1], 32 * sources.shape[1])
    most = max(1, _MAX_BLOCK // max(1, width))
    begin = 0
    while begin < len(items):
        target, end = items[begin][0], begin + 1
        while end < len(items) and end - begin < most and items[end][0] == target + end - begin:
            end += 1
        count = end - begin
        bits = sources[[source for _, source, _ in items[begin:end]]].view(np.uint8)
        block = rows[target : target + count, :width]
        block &= keep.take(bits, axis=0).reshape(count, -1)[:, :width]
        block |= never.take(bits, axis=0).reshape(count, -1)[:, :width]
        if width < logits.shape[1]:
            logits[target : target + count, width:] = _NEVER
        begin = end


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_kernel.restore_emptied_rows`, on logits that :func:`supports`."""
    rows, sources = logits.numpy(), masks.numpy()
    width = min(logits.shape[1], 32 * sources.shape[1])
    for target, source, guarded in plan.tolist():
        row = rows[target]
        if guarded and row.max() == _NEVER:
            mask = np.ascontiguousarray(sources[source]).view(np.uint8)
            np.copyto(row[:width], 0.0, where=np.unpackbits(mask, count=width, bitorder="little").view(np.bool_))


@cache
def _bits_by_byte(dtype: torch.dtype) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Mask byte -> bits to keep of its eight logits, and bits to set: integers ``[256, 8]`` each."""
    kind, integer = _TYPES[dtype]
    allowed = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(integer)
    return -allowed, np.where(allowed, integer(0), np.array(_NEVER, dtype=kind).view(integer))
