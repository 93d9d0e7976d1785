"""Triton kernels that drop a tool call if the declared function names have low probability."""
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917 - Triton kernels are untyped, and constants in capitals

import torch
import triton
import triton.language as tl

_BLOCK = 4096
_IDS = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _blocks_kernel(logits, stride, rows, partials, width, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (i, j) writes the largest logit of the i-th row's j-th block, and the sum of its exponentials."""
    row = tl.load(rows + tl.program_id(0))
    if row < 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(logits + row * stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    best = tl.max(values, axis=0)
    powers = tl.exp(values - tl.where(best == float("-inf"), 0.0, best))
    partial = partials + 2 * (tl.program_id(0) * blocks + tl.program_id(1))
    tl.store(partial, best)
    tl.store(partial + 1, tl.sum(powers, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _rows_kernel(  # type: ignore[no-untyped-def]
    logits, stride, rows, plan, ids, partials, chances, width, blocks, BLOCKS: tl.constexpr, IDS: tl.constexpr
):
    """Program i writes the probability of the i-th row's ids."""
    number = tl.program_id(0)
    row = tl.load(rows + number)
    if row < 0:
        return
    block = tl.arange(0, BLOCKS)
    of = partials + 2 * (number * blocks + block)
    bests = tl.load(of, mask=block < blocks, other=float("-inf"))
    sums = tl.load(of + 1, mask=block < blocks, other=0.0)
    best = tl.max(bests, axis=0)
    origin = tl.where(best == float("-inf"), 0.0, best)
    total = tl.sum(sums * tl.exp(bests - origin), axis=0)
    start, count = tl.load(plan + 3 * number), tl.load(plan + 3 * number + 1)
    meant = 0.0
    for first in range(0, count, IDS):
        listed = first + tl.arange(0, IDS)
        token = tl.load(ids + start + listed, mask=listed < count, other=width)
        value = tl.load(logits + row * stride + token, mask=token < width, other=float("-inf")).to(tl.float32)
        meant += tl.sum(tl.exp(value - origin), axis=0)
    tl.store(chances + number, meant / total)


@triton.jit  # type: ignore[untyped-decorator]
def _decline_kernel(  # type: ignore[no-untyped-def]
    logits, stride, rows, plan, chances, threshold, width, BLOCK: tl.constexpr
):
    """Program (i, j) forbids all but the closing token in the j-th block of the i-th row, if the row is declined."""
    number = tl.program_id(0)
    row = tl.load(rows + number)
    if row < 0:
        return
    closing = tl.load(plan + 3 * number + 2)
    if (closing >= 0) & (closing < width) & (tl.load(chances + number) < threshold):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        kept = tl.where(column == closing, 0.0, float("-inf"))
        tl.store(logits + row * stride + column, kept, mask=column < width)


def measure(
    logits: torch.Tensor, rows: torch.Tensor, plan: torch.Tensor, ids: torch.Tensor, chances: torch.Tensor
) -> None:
    """As :meth:`constrained_k2.kernels.declining.NamedRows.measure`; the logits' columns must be contiguous."""
    width, count = logits.shape[1], len(rows)
    blocks = triton.cdiv(width, _BLOCK)
    partials = torch.empty((count, blocks, 2), dtype=torch.float32, device=logits.device)
    _blocks_kernel[count, blocks](logits, logits.stride(0), rows, partials, width, blocks, BLOCK=_BLOCK)
    _rows_kernel[count,](
        logits, logits.stride(0), rows, plan, ids, partials, chances, width, blocks,
        BLOCKS=triton.next_power_of_2(blocks), IDS=_IDS,
    )  # fmt: skip


def decline(
    logits: torch.Tensor, rows: torch.Tensor, plan: torch.Tensor, chances: torch.Tensor, threshold: float
) -> None:
    """As :meth:`constrained_k2.kernels.declining.NamedRows.decline`; the logits' columns must be contiguous."""
    width = logits.shape[1]
    _decline_kernel[len(rows), triton.cdiv(width, _BLOCK)](
        logits, logits.stride(0), rows, plan, chances, threshold, width, BLOCK=_BLOCK
    )
