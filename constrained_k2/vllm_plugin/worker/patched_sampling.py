"""Patch of vLLM's CPU build, which discards temperature, top-k and top-p of draft tokens."""

from typing import Any

import torch

from constrained_k2.vllm_plugin.start.patch import wrapper


@wrapper
def expand_batch_to_tokens(  # noqa: PLR0913, PLR0917 - vLLM's signature
    original: Any,
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Repeat each request's parameter for its draft tokens. On a GPU vLLM's kernel does that.

    On a CPU, vLLM's ``_expand_kernel_impl`` (``vllm/utils/cpu_triton_utils.py``) has a C++ kernel write to an int64
    copy of the result and discards the copy, so the parameters are uninitialized memory. Copying back would not be
    enough: as int64, a temperature of 0.7 is 0.

    Args:
        original: vLLM's function.
        x: ``[requests]``, one parameter, any dtype.
        cu_num_tokens: ``[requests]``, cumulative number of draft tokens.
        num_tokens: Number of draft tokens of the batch.
        replace_from: Value to replace, such as the temperature 0 of greedy requests.
        replace_to: Its replacement.

    Returns:
        ``[num_tokens]``, the dtype of ``x``.
    """
    if x.device.type != "cpu":
        return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)
