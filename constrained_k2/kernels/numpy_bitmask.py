"""Masks on logits in host memory: on small rows, numpy takes a tenth of what torch's dispatch takes."""

import numpy as np
import numpy.typing as npt
import torch

_NEVER = -np.inf
_TYPES = {torch.float16, torch.float32, torch.float64}  # numpy knows no bfloat16


def takes(logits: torch.Tensor) -> bool:
    """Whether logits can be masked here."""
    return logits.is_cpu and logits.dtype in _TYPES and not logits.requires_grad


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_bitmask.mask_rows`, on logits that :func:`takes` lets in."""
    rows, sources = logits.numpy(), masks.numpy()
    width = logits.shape[1]
    for target, source, _ in plan.tolist():
        row, forbidden = rows[target], _bits(~sources[source], width)
        np.copyto(row[: len(forbidden)], _NEVER, where=forbidden)
        row[len(forbidden) :] = _NEVER


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_bitmask.restore_emptied_rows`, on logits that :func:`takes` lets in."""
    rows, sources = logits.numpy(), masks.numpy()
    width = logits.shape[1]
    for target, source, guarded in plan.tolist():
        row = rows[target]
        if guarded and row.max() == _NEVER:
            allowed = _bits(sources[source], width)
            np.copyto(row[: len(allowed)], 0.0, where=allowed)


def _bits(words: npt.NDArray[np.int32], width: int) -> npt.NDArray[np.bool_]:
    """The bits of a mask's words, lowest first, at most ``width``."""
    bits = np.unpackbits(words.view(np.uint8), count=min(width, 32 * len(words)), bitorder="little")
    return bits.view(np.bool_)
