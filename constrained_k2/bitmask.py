"""Token bitmasks: one bit per token id, 1 = allowed, 32 ids per int32 word, lowest bit first.

The layout is that of xgrammar, LLGuidance and vLLM, so a mask can be handed to any of their kernels.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Bitmask = Any
"""A numpy array or a CPU torch tensor, int32 ``[rows, words_per_row(size)]``, contiguous rows."""


def words_per_row(size: int) -> int:
    """The int32 words that a row over ``size`` token ids takes."""
    return (size + 31) // 32


def allocate_bitmask(rows: int, size: int) -> npt.NDArray[np.int32]:
    """An all-forbidden bitmask, int32 ``[rows, words_per_row(size)]``."""
    return np.zeros((rows, words_per_row(size)), dtype=np.int32)


def bitmask_row(bitmask: Bitmask, row: int, size: int) -> npt.NDArray[np.int32]:
    """One row of a bitmask as a numpy view on the same memory, int32 ``[words]``.

    Raises:
        ValueError: It is not int32 ``[rows, words_per_row(size)]`` with contiguous rows: engines write to the memory.
    """
    view: npt.NDArray[np.int32] = (bitmask if isinstance(bitmask, np.ndarray) else bitmask.numpy())[row]
    if view.shape != (words_per_row(size),) or view.dtype != np.int32 or not view.flags.c_contiguous:
        raise ValueError(f"a bitmask is int32 [rows, {words_per_row(size)}] with contiguous rows")
    return view


def allowed_ids(row: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The ids that a row (int32 ``[words]``) allows, ascending, int64 ``[n]``."""
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits)


class TokenSet:
    """A constant set of allowed tokens, made once and then written into masks at memory speed.

    Args:
        ids: The allowed ids; with ``complement``, the forbidden ones (all other ids below ``size`` are allowed).
        size: The width of the logits.
        complement: See ``ids``.

    Attributes:
        ids: As given, ascending, int64 ``[n]``.
        complement: As given.
    """

    __slots__ = ("_background", "_bits", "_listed", "_words", "complement", "ids")

    def __init__(self, ids: Iterable[int], size: int, *, complement: bool = False) -> None:
        self.ids = np.unique(np.fromiter(ids, dtype=np.int64))
        self.complement = complement
        self._listed = frozenset(self.ids.tolist())
        self._words = np.unique(self.ids >> 5)
        words = words_per_row(size)
        full = np.zeros(words, dtype=np.uint32)
        np.bitwise_or.at(full, self.ids >> 5, np.left_shift(np.uint32(1), (self.ids & 31).astype(np.uint32)))
        background = np.zeros(words, dtype=np.uint32)
        if complement:
            background[:] = 0xFFFFFFFF
            if size & 31:  # the last word's bits beyond the vocabulary stay forbidden
                background[-1] = (1 << (size & 31)) - 1
                if words - 1 not in self._words:
                    self._words = np.append(self._words, words - 1)
            full = background & ~full
        self._bits: npt.NDArray[np.int32] = full[self._words].view(np.int32)
        self._background = -1 if complement else 0

    def __contains__(self, token_id: int) -> bool:
        return (token_id in self._listed) != self.complement

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the set into a bitmask row, int32 ``[words]``."""
        row.fill(self._background)
        row[self._words] = self._bits
