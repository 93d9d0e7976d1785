"""The slots for masks on the device: a bounded number, reused in LRU order."""

from collections import OrderedDict
from dataclasses import dataclass
from weakref import ref

from constrained_k2.vllm_plugin.worker.known_masks import Row


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
