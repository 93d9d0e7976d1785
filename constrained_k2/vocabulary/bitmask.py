"""Token bitmasks: one bit per token id, 1 = allowed, 32 ids per int32 word, lowest bit first.

xgrammar, LLGuidance and vLLM have the same layout, so a mask can be handed to any of their kernels.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Bitmask = Any
"""A numpy array or a CPU torch tensor, int32 ``[rows, words_per_row(size)]``, contiguous."""


def words_per_row(size: int) -> int:
    """The number of int32 words in a row over ``size`` token ids."""
    return (size + 31) // 32


def allocate_bitmask(rows: int, size: int) -> npt.NDArray[np.int32]:
    """An all-forbidden bitmask, int32 ``[rows, words_per_row(size)]``."""
    return np.zeros((rows, words_per_row(size)), dtype=np.int32)


class BitmaskRows:
    """A bitmask's rows as numpy views, checked once rather than at every step; its memory must not move.

    Attributes:
        address: Memory address of the first row.
        row_bytes: Bytes from one row to the next.
    """

    __slots__ = ("_array", "_views", "address", "bitmask", "row_bytes", "size")

    def __init__(self, bitmask: Bitmask, size: int) -> None:
        array: npt.NDArray[np.int32] = bitmask if isinstance(bitmask, np.ndarray) else bitmask.numpy()
        words = words_per_row(size)
        if array.ndim != 2 or array.shape[1] != words or array.dtype != np.int32 or not array.flags.c_contiguous:
            raise ValueError(f"a bitmask is int32 [rows, {words}], contiguous")  # engines write to its memory
        self.bitmask = bitmask
        self.size = size
        self.address = int(array.ctypes.data)
        self.row_bytes = 4 * words
        self._array = array
        self._views: list[npt.NDArray[np.int32] | None] = [None] * len(array)

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, row: int) -> npt.NDArray[np.int32]:
        """One row, int32 ``[words]``."""
        if row < 0:
            raise IndexError(f"the bitmask has no row {row}")
        view = self._views[row]
        if view is None:
            view = self._views[row] = self._array[row]
        return view


_latest: BitmaskRows | None = None  # a process usually has one bitmask; this reference keeps its memory alive


def bitmask_rows(bitmask: Bitmask, size: int) -> BitmaskRows:
    """The rows of a bitmask; the result for the latest bitmask is cached."""
    global _latest  # noqa: PLW0603 - a cache with one entry
    rows = _latest
    if rows is None or rows.bitmask is not bitmask or rows.size != size:
        rows = _latest = BitmaskRows(bitmask, size)
    return rows


def allowed_ids(row: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The ids that a row (int32 ``[words]``) allows, ascending, int64 ``[n]``."""
    words = np.flatnonzero(row)
    bits = np.flatnonzero(np.unpackbits(row[words].view(np.uint8), bitorder="little"))
    ids: npt.NDArray[np.int64] = (words[bits >> 5] << 5) + (bits & 31)
    return ids


def row_of(ids: Iterable[int], size: int) -> npt.NDArray[np.int32]:
    """A row, int32 ``[words]``, that allows these ids, each below ``size``."""
    bits = np.zeros(32 * words_per_row(size), dtype=np.uint8)
    bits[np.fromiter(ids, np.intp)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def narrow_to(row: npt.NDArray[np.int32], left: npt.NDArray[np.int32]) -> bool:
    """Replace a row by a subset of it, int32 ``[words]``; False, and no change, if the subset allows no token."""
    if not left.any():
        return False
    row[:] = left
    return True


def empty_rows(rows: npt.NDArray[np.int32]) -> list[int]:
    """The indices of the rows that allow no token; ``rows``: int32 ``[rows, words]``."""
    bits = np.bitwise_or.reduce(rows, axis=1)
    return [] if bits.all() else np.flatnonzero(bits == 0).tolist()


class TokenSet:
    """A constant set of allowed tokens that is written into masks at memory speed.

    ``listed`` has the allowed ids; with ``complement``, the forbidden ones (other ids below ``size`` are allowed).
    """

    __slots__ = ("_bits", "_ids", "_row", "_words", "complement", "listed")

    def __init__(self, ids: Iterable[int], size: int, *, complement: bool = False) -> None:
        self.complement = complement
        self.listed = frozenset(map(int, ids))
        words: dict[int, int] = {}  # sets made during decoding have few ids: numpy would take 40 us
        for token_id in self.listed:
            words[token_id >> 5] = words.get(token_id >> 5, 0) | 1 << (token_id & 31)
        self._words = np.fromiter(words, np.intp, len(words))
        bits = np.fromiter(words.values(), np.uint32, len(words))
        self._bits: npt.NDArray[np.int32] = bits.view(np.int32)
        self._ids: npt.NDArray[np.intp] | None = None
        self._row: npt.NDArray[np.int32] | None = None
        if complement:  # a whole row, 20 KB for Kimi K2; there are few such sets
            row = np.full(words_per_row(size), 0xFFFFFFFF, dtype=np.uint32)
            if size & 31:  # the last word's bits beyond the vocabulary stay forbidden
                row[-1] = (1 << (size & 31)) - 1
            row[self._words] &= ~bits
            self._row = row.view(np.int32)

    @property
    def only(self) -> int | None:
        """The only allowed token; None unless there is exactly one."""
        return next(iter(self.listed)) if len(self.listed) == 1 and not self.complement else None

    @property
    def ids(self) -> npt.NDArray[np.intp]:
        """The listed ids, ascending."""
        if self._ids is None:
            self._ids = np.array(sorted(self.listed), dtype=np.intp)
        return self._ids

    def __contains__(self, token_id: int) -> bool:
        return (token_id in self.listed) != self.complement

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Write the set into a bitmask row, int32 ``[words]``."""
        if self._row is not None:
            row[:] = self._row
        else:
            row.fill(0)
            row[self._words] = self._bits

    def add_to(self, row: npt.NDArray[np.int32]) -> None:
        """Allow the set's tokens in a bitmask row too, int32 ``[words]``; not for sets with ``complement``."""
        assert not self.complement
        row[self._words] |= self._bits
