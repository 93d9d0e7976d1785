"""Drops a tool call, on the logits' device, if the declared function names have low probability.

The mask of a function's name allows only declared names, so a model that wants another function would call a declared
function. Before the mask, the logits give the probability of all tokens consistent with a declared name. If it is below
the threshold, only the token that closes the section keeps a finite logit after the mask. The host does not wait.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from constrained_k2.kernels import numpy_kernel

_NEVER = float("-inf")


class NamedRows:
    """The rows of a step in which the model writes function names.

    Args:
        meant: For each row, the tokens consistent with a declared name, int32 ``[n]``, distinct.
        closing: For each row, the token that closes the section; None if the call cannot be declined.
        rows: For each row, its row in the logits, or -1; a tensor is int64, on the device.
        device: The device of the logits.

    Attributes:
        plan: int32 ``[rows, 3]``: the start and length of each row's part of ``ids``, and the closing token or -1.
        ids: int32 ``[n]``: the tokens that are consistent with a declared name, row after row.
        rows: int64 ``[rows]``.
        chances: float32 ``[rows]``, once measured: the probability of each row's ``ids`` together.
    """

    def __init__(
        self,
        meant: Sequence[npt.NDArray[np.int32]],
        closing: Sequence[int | None],
        rows: Sequence[int] | torch.Tensor,
        device: torch.device,
    ) -> None:
        counts = [len(ids) for ids in meant]
        starts = [0, *accumulate(counts)][: len(counts)]
        pin = device.type == "cuda"
        closes = (-1 if token is None else token for token in closing)
        plan = torch.tensor(list(zip(starts, counts, closes, strict=True)), dtype=torch.int32, pin_memory=pin)
        ids = torch.from_numpy(np.concatenate(meant))
        known = rows if isinstance(rows, torch.Tensor) else torch.tensor(rows, dtype=torch.int64, pin_memory=pin)
        self.plan = plan.to(device, non_blocking=True)
        self.ids = (ids.pin_memory() if pin else ids).to(device, non_blocking=True)
        self.rows = known.to(device, non_blocking=True)
        self.chances = torch.ones(len(counts), dtype=torch.float32, device=device)

    def measure(self, logits: torch.Tensor) -> None:
        """Measure rows of floating point ``[batch, width]`` before they are masked."""
        if logits.is_cuda and logits.stride(1) == 1:
            from constrained_k2.kernels import triton_declining  # Triton is not installed everywhere

            triton_declining.measure(logits, self.rows, self.plan, self.ids, self.chances)
            return
        for number, (row, (start, count, _)) in enumerate(zip(self.rows.tolist(), self.plan.tolist(), strict=True)):
            if row >= 0:
                self.chances[number] = _chance(logits[row], self.ids[start : start + count])

    def decline(self, logits: torch.Tensor, threshold: float) -> None:
        """Leave only the closing token in measured rows below the threshold, in place, after they are masked."""
        if logits.is_cuda and logits.stride(1) == 1:
            from constrained_k2.kernels import triton_declining

            triton_declining.decline(logits, self.rows, self.plan, self.chances, threshold)
            return
        for row, (_, _, closing), is_low in zip(
            self.rows.tolist(), self.plan.tolist(), (self.chances < threshold).tolist(), strict=True
        ):
            if row >= 0 and 0 <= closing < logits.shape[1] and is_low:
                logits[row] = _NEVER
                logits[row, closing] = 0.0


def _chance(row: torch.Tensor, ids: torch.Tensor) -> float:
    """The probability of these tokens; numpy is faster on small rows."""
    ids = ids[ids < len(row)].long()
    if not numpy_kernel.supports(row):
        return float(torch.softmax(row, dim=0, dtype=torch.float32)[ids].sum())
    values = row.numpy()
    with np.errstate(invalid="ignore"):  # a row without a finite logit: its probability is NaN
        powers = np.exp(values - values.max(), dtype=np.float32)
        return float(powers[ids.numpy()].sum() / powers.sum())
