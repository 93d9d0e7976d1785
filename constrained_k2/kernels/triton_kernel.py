"""Applies bitmasks to logits in Triton: one launch for all rows of a step. Runs on GPUs and in Triton's interpreter."""
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917 - Triton kernels are untyped, and constants in capitals

import torch
import triton
import triton.language as tl

_BLOCK = 4096  # logits per program: 128 words of the mask


@triton.jit  # type: ignore[untyped-decorator]
def _bits(mask, words, first, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of a block of columns in one row of the masks, int32 ``[BLOCK]``; 0 after its last word."""
    word = first // 32 + tl.arange(0, BLOCK // 32)
    packed = tl.load(mask + word, mask=word < words, other=0)
    return ((packed[:, None] >> tl.arange(0, 32)[None, :]) & 1).reshape(BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _mask_rows_kernel(  # type: ignore[no-untyped-def]
    logits, logits_stride, masks, masks_stride, plan, width, words, BLOCK: tl.constexpr
):
    """Program (i, j) masks the j-th block of the plan's i-th row."""
    item = tl.program_id(0)
    row = tl.load(plan + 3 * item).to(tl.int64)
    source = tl.load(plan + 3 * item + 1).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    forbidden = _bits(masks + source * masks_stride, words, first, BLOCK) == 0
    column = first + tl.arange(0, BLOCK)
    tl.store(logits + row * logits_stride + column, float("-inf"), mask=forbidden & (column < width))


@triton.jit  # type: ignore[untyped-decorator]
def _restore_kernel(  # type: ignore[no-untyped-def]
    logits, logits_stride, masks, masks_stride, plan, width, words, BLOCK: tl.constexpr
):
    """Program i restores the plan's i-th row: one program per row, so that none reads what another writes."""
    item = tl.program_id(0)
    if tl.load(plan + 3 * item + 2) == 0:
        return
    row = logits + tl.load(plan + 3 * item).to(tl.int64) * logits_stride
    mask = masks + tl.load(plan + 3 * item + 1).to(tl.int64) * masks_stride
    best = float("-inf")
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        values = tl.load(row + column, mask=column < width, other=float("-inf"))
        best = tl.maximum(best, tl.max(values.to(tl.float32), axis=0))
    if best == float("-inf"):
        for first in range(0, width, BLOCK):
            allowed = _bits(mask, words, first, BLOCK) == 1
            column = first + tl.arange(0, BLOCK)
            tl.store(row + column, 0.0, mask=allowed & (column < width))


def mask_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_kernel.mask_rows`; the logits' columns must be contiguous."""
    width = logits.shape[1]
    _mask_rows_kernel[len(plan), triton.cdiv(width, _BLOCK)](
        logits, logits.stride(0), masks, masks.stride(0), plan, width, masks.shape[1], BLOCK=_BLOCK
    )


def restore_emptied_rows(logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor) -> None:
    """As :func:`constrained_k2.kernels.torch_kernel.restore_emptied_rows`; columns must be contiguous."""
    _restore_kernel[(len(plan),)](
        logits, logits.stride(0), masks, masks.stride(0), plan, logits.shape[1], masks.shape[1], BLOCK=_BLOCK
    )
