"""Measures in torch what a mask forbade in rows of logits: the likeliest token, the total probability."""

import torch


def before_mask(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens of rows, ``[n, 1]``, and all probabilities, float32 ``[n, width]``, before the mask."""
    return logits.argmax(dim=1, keepdim=True), torch.softmax(logits, dim=1, dtype=torch.float32)


def after_mask(likeliest: torch.Tensor, probabilities: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The columns of :attr:`constrained_k2.kernels.Workspace.results`, float32 ``[n, 5]``; token ids are exact.

    A token that was forbidden before the mask (a logit of -inf) has no probability, and does not count as allowed.
    """
    is_forbidden = logits == -float("inf")
    is_overridden = is_forbidden.gather(1, likeliest)
    probabilities.mul_(is_forbidden)
    probability, wanted = probabilities.max(dim=1, keepdim=True)
    columns = (
        torch.where(is_overridden, likeliest, wanted),
        is_overridden,
        probability,
        probabilities.sum(dim=1, keepdim=True),
        logits.shape[1] - is_forbidden.sum(dim=1, keepdim=True),
    )
    return torch.cat([column.float() for column in columns], dim=1)
