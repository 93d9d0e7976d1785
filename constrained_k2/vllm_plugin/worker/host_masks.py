"""Masks for logits in host memory: applied in place, and never copied."""

import numpy as np
import torch

from constrained_k2.kernels import numpy_kernel
from constrained_k2.vllm_plugin.shared.row_probe import row_probe
from constrained_k2.vllm_plugin.worker.known_masks import Ids, Row
from constrained_k2.vllm_plugin.worker.row_masks import RowMasks
from constrained_k2.vocabulary.bitmask import TokenSet, words_per_row


class HostMasks(RowMasks):
    """Masks rows in host memory; ``size`` is the vocabulary's, ``rows`` the most of a step."""

    def __init__(self, size: int, rows: int) -> None:
        self._size = size
        self._listed: list[tuple[int, Ids, bool]] = []  # row, its ids, whether it is guarded
        self._forbidding: list[tuple[int, TokenSet]] = []
        self._masks: list[tuple[int, Row, bool]] = []
        super().__init__(np.zeros((rows, words_per_row(size)), dtype=np.int32))

    def add_constant(self, row: int, tokens: TokenSet, *, guarded: bool = False) -> None:
        """As in the base class; a set of forbidden tokens costs as much as it has tokens."""
        if tokens.complement and not guarded:
            self._forbidding.append((row, tokens))
        else:
            super().add_constant(row, tokens, guarded=guarded)

    def _drop(self) -> None:
        self._listed.clear()
        self._forbidding.clear()
        self._masks.clear()

    def _is_collected(self) -> bool:
        return bool(self._listed or self._forbidding or self._masks)

    def _take_ids(self, row: int, ids: Ids, *, guarded: bool) -> None:
        self._listed.append((row, ids, guarded))

    def _take_shared(self, row: int, mask: Row, *, guarded: bool) -> None:
        self._masks.append((row, mask, guarded))

    def _take_written(self, row: int, *, guarded: bool) -> None:
        self._take_shared(row, self._computed[self._written], guarded=guarded)
        self._written += 1

    def _apply(self, logits: torch.Tensor, examined: list[int]) -> None:
        with row_probe.around(logits, examined):
            numbers = logits.numpy()
            width = logits.shape[1]
            for row, ids, _ in self._listed:
                numpy_kernel.allow_only(numbers[row], _below(width, ids))
            for row, tokens in self._forbidding:
                numbers[row, _below(width, tokens.ids)] = -np.inf
                numbers[row, self._size :] = -np.inf
            numpy_kernel.mask_rows(logits, [row for row, *_ in self._masks], [mask for _, mask, _ in self._masks])
            for row, ids, guarded in self._listed:
                if guarded and numbers[row].max() == -np.inf:
                    numbers[row, _below(width, ids)] = 0.0
            for row, mask, guarded in self._masks:
                if guarded:
                    numpy_kernel.restore_if_empty(numbers[row], mask)
        self._drop()


def _below(width: int, ids: Ids) -> Ids:
    """Those of ascending ids that the logits have a column for."""
    return ids if not len(ids) or ids[-1] < width else ids[ids < width]
