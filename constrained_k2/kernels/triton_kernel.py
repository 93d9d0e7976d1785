"""Applies masks to logits in Triton, with one launch for all rows of a step."""
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917 - Triton kernels are untyped, and constants in capitals

import torch
import triton
import triton.language as tl

from constrained_k2.kernels.plan import BLOCK as _BLOCK
from constrained_k2.kernels.plan import MAX_IDS as _MAX_IDS
from constrained_k2.kernels.plan import PLAN_COLUMNS as _PLAN_COLUMNS
from constrained_k2.kernels.plan import Workspace


@triton.jit  # type: ignore[untyped-decorator]
def _packed(masks, source, words, ids, count, first, BLOCK: tl.constexpr, MAX_IDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words of a mask that cover a block of columns, int32 ``[BLOCK // 32]``; 0 after its last word."""
    word = first // 32 + tl.arange(0, BLOCK // 32)
    packed = tl.load(masks + source + word, mask=(word < words) & (count == 0), other=0)
    if count > 0:
        number = tl.arange(0, MAX_IDS)
        listed = tl.load(ids + number, mask=number < count, other=-1)
        is_there = (word[:, None] == (listed >> 5)[None, :]) & (listed >= 0)[None, :]
        packed = tl.sum(tl.where(is_there, (1 << (listed & 31))[None, :], 0), axis=1)
    return packed


@triton.jit  # type: ignore[untyped-decorator]
def _bits(packed, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of words, int32 ``[BLOCK]``."""
    return ((packed[:, None] >> tl.arange(0, 32)[None, :]) & 1).reshape(BLOCK)


@triton.jit
def _examine_block(partial, values, allowed, column, inside):  # type: ignore[no-untyped-def]
    """Write a block's largest logit, column and sum, the same for forbidden logits, and the number of allowed ones."""
    far = 1 << 30
    forbidden = (allowed == 0) & inside
    best = tl.max(values, axis=0)
    powers = tl.exp(values - tl.where(best == float("-inf"), 0.0, best))
    best_forbidden = tl.max(tl.where(forbidden, values, float("-inf")), axis=0)
    tl.store(partial, best)
    tl.store(partial + 1, tl.min(tl.where(inside & (values == best), column, far), axis=0).to(tl.float32))
    tl.store(partial + 2, tl.sum(powers, axis=0))
    tl.store(partial + 3, best_forbidden)
    tl.store(partial + 4, tl.min(tl.where(forbidden & (values == best_forbidden), column, far), axis=0).to(tl.float32))
    tl.store(partial + 5, tl.sum(tl.where(forbidden, powers, 0.0), axis=0))
    tl.store(partial + 6, tl.sum(((allowed == 1) & (values != float("-inf"))).to(tl.float32), axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _examine_row(result, partial, blocks, restored, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Merge the results of a row's blocks. Loads bypass the first-level cache: other programs wrote these results."""
    far = 1.0 * (1 << 30)
    block = tl.arange(0, BLOCKS)
    of = partial + 7 * block
    is_block = block < blocks
    bests = tl.load(of, mask=is_block, other=float("-inf"), cache_modifier=".cg")
    columns = tl.load(of + 1, mask=is_block, other=far, cache_modifier=".cg")
    sums = tl.load(of + 2, mask=is_block, other=0.0, cache_modifier=".cg")
    bests_forbidden = tl.load(of + 3, mask=is_block, other=float("-inf"), cache_modifier=".cg")
    columns_forbidden = tl.load(of + 4, mask=is_block, other=far, cache_modifier=".cg")
    sums_forbidden = tl.load(of + 5, mask=is_block, other=0.0, cache_modifier=".cg")
    counts = tl.load(of + 6, mask=is_block, other=0.0, cache_modifier=".cg")
    best, best_forbidden = tl.max(bests, axis=0), tl.max(bests_forbidden, axis=0)
    origin = tl.where(best == float("-inf"), 0.0, best)
    scales = tl.exp(bests - origin)
    total = tl.sum(sums * scales, axis=0)
    likeliest = tl.min(tl.where(bests == best, columns, far), axis=0)
    wanted = tl.min(tl.where(bests_forbidden == best_forbidden, columns_forbidden, far), axis=0)
    tl.store(result, tl.where(best_forbidden == float("-inf"), 0.0, wanted))
    tl.store(result + 1, ((wanted == likeliest) & (best_forbidden != float("-inf"))).to(tl.float32))
    tl.store(result + 2, tl.exp(best_forbidden - origin) / total)
    tl.store(result + 3, tl.sum(sums_forbidden * scales, axis=0) / total)
    tl.store(result + 4, tl.sum(counts, axis=0) + restored)


# A forbidden logit is stored on its own, since its neighbours may be allowed. So neighbouring threads should store
# neighbouring logits; if Triton knew of logits aligned to 16 bytes, it would give each thread four in a row.
@triton.jit(do_not_specialize_on_alignment=["logits", "logits_stride", "plan", "ids"])  # type: ignore[untyped-decorator]
def _apply_masks_kernel(  # type: ignore[no-untyped-def]
    logits, logits_stride, masks, masks_stride, plan, ids, width, words, blocks, counters, partials, partials_stride,
    results, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, MAX_IDS: tl.constexpr,
    WATCHED: tl.constexpr,
):  # fmt: skip
    """Program (i, j) masks the j-th block of the row of the plan's i-th entry.

    Each program of a row that is guarded or examined counts itself once its block is done. The one that counts last
    restores the row if no block has an allowed finite logit, and merges the results of the blocks.
    """
    entry = plan + COLUMNS * tl.program_id(0)
    row = tl.load(entry).to(tl.int64)
    if row < 0:
        return
    start, count = tl.load(entry + 1).to(tl.int64), tl.load(entry + 2)
    source, listed = tl.where(count > 0, 0, start * masks_stride), ids + tl.where(count > 0, start, 0)
    first = tl.program_id(1) * BLOCK
    packed = _packed(masks, source, words, listed, count, first, BLOCK, MAX_IDS)
    keep = tl.load(entry + 4).to(tl.int64)
    if keep >= 0:
        word = first // 32 + tl.arange(0, BLOCK // 32)
        tl.store(masks + keep * masks_stride + word, packed, mask=word < words)
    allowed = _bits(packed, BLOCK)
    column = first + tl.arange(0, BLOCK)
    inside = column < width
    target = logits + row * logits_stride
    if WATCHED:
        is_guarded, result = tl.load(entry + 3) != 0, tl.load(entry + 5)
        if is_guarded | (result >= 0):
            values = tl.load(target + column, mask=inside, other=float("-inf")).to(tl.float32)
            is_alive = tl.max(((allowed == 1) & (values != float("-inf"))).to(tl.int32), axis=0)
            partial = partials + result * partials_stride
            if result >= 0:
                _examine_block(partial + 7 * tl.program_id(1), values, allowed, column, inside)
            tl.debug_barrier()  # one thread releases the counter, but all threads write the data that it counts
            counted = 1 + (is_alive << 16)
            counted += tl.atomic_add(counters + tl.program_id(0), counted)
            if (counted & 0xFFFF) == blocks:
                tl.store(counters + tl.program_id(0), 0)
                restored = 0
                if is_guarded & (counted < 0x10000):
                    for begin in range(0, width, BLOCK):
                        there = begin + tl.arange(0, BLOCK)
                        again = _packed(masks, source, words, listed, count, begin, BLOCK, MAX_IDS)
                        is_allowed = (_bits(again, BLOCK) == 1) & (there < width)
                        tl.store(target + there, 0.0, mask=is_allowed)
                        restored += tl.sum(is_allowed.to(tl.int32), axis=0)
                if result >= 0:
                    _examine_row(results + 5 * result, partial, blocks, restored, BLOCKS)
    tl.store(target + column, float("-inf"), mask=(allowed == 0) & inside)


def apply_masks(
    logits: torch.Tensor, masks: torch.Tensor, plan: torch.Tensor, ids: torch.Tensor, workspace: Workspace | None = None
) -> None:
    """As :func:`constrained_k2.kernels.apply_masks`; the columns of the logits and of the masks must be contiguous."""
    width, words = logits.shape[1], masks.shape[1]
    blocks = triton.cdiv(max(width, 32 * words), _BLOCK)
    if workspace is None:
        scratch = (plan, plan, 0, plan)  # the kernel's variant without a workspace reads none of these
    else:
        workspace.check(len(plan), max(width, 32 * words))
        scratch = (workspace.counters, workspace.partials, workspace.partials.stride(0), workspace.results)
    _apply_masks_kernel[len(plan), blocks](
        logits, logits.stride(0), masks, masks.stride(0), plan, ids, width, words, blocks, *scratch,
        COLUMNS=_PLAN_COLUMNS, BLOCK=_BLOCK, BLOCKS=triton.next_power_of_2(blocks), MAX_IDS=_MAX_IDS,
        WATCHED=workspace is not None,
    )  # fmt: skip
