"""Caches for recurring masks: rows of constant sets, ids of short masks, slots on the device."""

from collections import OrderedDict
from dataclasses import dataclass
from weakref import ref

import numpy as np
import numpy.typing as npt

from constrained_k2.kernels import MAX_IDS
from constrained_k2.vocabulary.bitmask import TokenSet, allowed_ids

Row = npt.NDArray[np.int32]
Ids = npt.NDArray[np.intp]

_CONSTANTS = 64
"""Constant sets whose rows are kept: 20 KB each for Kimi K2."""

_SHORT = 8192
"""Masks of which it is known whether they are short."""


def ids_if_few(row: Row, words: int) -> Ids | None:
    """The ids that a row allows, ascending, if they are ``MAX_IDS`` at most; ``words`` of the row are not 0."""
    ids = allowed_ids(row) if words <= MAX_IDS else None
    return ids if ids is not None and len(ids) <= MAX_IDS else None


class ConstantRows:
    """The rows of constant sets, of the least recently used not more than some."""

    def __init__(self, words: int) -> None:
        self._words = words
        self._rows: OrderedDict[tuple[bool, frozenset[int]], Row] = OrderedDict()

    def row(self, tokens: TokenSet) -> Row:
        """The row of a set; equal sets have the same array as long as it is kept."""
        content = (tokens.complement, tokens.listed)
        row = self._rows.get(content)
        if row is not None:
            self._rows.move_to_end(content)
            return row
        if len(self._rows) >= _CONSTANTS:
            self._rows.popitem(last=False)
        row = np.zeros(self._words, dtype=np.int32)
        tokens.fill(row)
        self._rows[content] = row
        return row


class ShortMasks:
    """The tokens of masks that allow few. A mask is known by its array, which never changes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[Row], Ids | None]] = {}

    def ids(self, mask: Row) -> Ids | None:
        """The ids that a mask allows, ascending, if they are ``MAX_IDS`` at most; else None."""
        known = self._known.get(id(mask))
        if known is not None and known[0]() is mask:  # else another array had this address before
            return known[1]
        ids = ids_if_few(mask, int(np.count_nonzero(mask)))
        if len(self._known) >= _SHORT:
            self._known.clear()
        self._known[id(mask)] = (ref(mask), ids)
        return ids


@dataclass(slots=True)
class _Kept:
    mask: ref[Row]  # an array that has gone cannot be mistaken for a later one at its address
    slot: int
    launch: int  # the last one that named it


class MaskSlots:
    """The slots of masks, which are identified by their arrays. A slot that a launch uses is not reassigned in it.

    Callers keep the arrays of a launch alive until :meth:`next_launch`.
    """

    def __init__(self, count: int) -> None:
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._unused = range(count)
        self._launch = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, mask: Row) -> int | None:
        """The slot of a mask, which the current launch may read; None if it has none."""
        kept = self._kept.get(id(mask))
        if kept is None or kept.mask() is not mask:
            return None
        self._kept.move_to_end(id(mask))
        kept.launch = self._launch
        return kept.slot

    def take(self, mask: Row) -> int | None:
        """Assign a slot to a new mask, evicting the least recently used; None if this launch uses all slots."""
        stale = self._kept.pop(id(mask), None)
        if stale is not None:
            slot = stale.slot
        elif self._unused:
            slot, self._unused = self._unused[0], self._unused[1:]
        else:
            oldest = next(iter(self._kept.values()), None)
            if oldest is None or oldest.launch == self._launch:
                return None
            slot = self._kept.popitem(last=False)[1].slot
        self._kept[id(mask)] = _Kept(ref(mask), slot, self._launch)
        return slot

    def next_launch(self) -> None:
        """End the current launch."""
        self._launch += 1
