"""Putting masks on logits."""

from constrained_k2.kernels.torch_bitmask import apply_token_bitmask, apply_token_set

__all__ = ["apply_token_bitmask", "apply_token_set"]
