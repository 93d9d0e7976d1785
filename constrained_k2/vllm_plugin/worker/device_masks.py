"""Masks for logits on a GPU: recurring masks stay in device slots, the rest are uploaded per step."""

from array import array

import numpy as np
import torch

from constrained_k2.kernels import MAX_IDS, PLAN_COLUMNS, Column, Workspace, apply_masks
from constrained_k2.vllm_plugin.shared.matcher_factory import MatcherFactory
from constrained_k2.vllm_plugin.shared.row_plan import SAMPLED_ROWS
from constrained_k2.vllm_plugin.shared.row_probe import row_probe
from constrained_k2.vllm_plugin.worker.host_masks import HostMasks
from constrained_k2.vllm_plugin.worker.known_masks import Ids, MaskSlots, Row
from constrained_k2.vllm_plugin.worker.row_masks import RowMasks
from constrained_k2.vocabulary.bitmask import words_per_row

_SLOTS = 2048
"""Masks kept on the device: 42 MB for Kimi K2."""


class DeviceMasks(RowMasks):
    """Masks rows on a device, all in one launch.

    A step copies its plan and the ids that the plan lists, and behind them the masks that the device does not hold yet:
    two copies at most. Those of shared masks are given slots as they are first used.

    Host buffers are written only once the copies of the step before have been made. Whatever the device does, it does
    on one stream: so a slot that is given away is read by earlier launches before a later one overwrites it.

    Args:
        size: The vocabulary's.
        rows: The most rows of a step.
        device: That of the logits.
        pin: Whether memory can be pinned.
        slots: Masks that are kept on the device.

    Attributes:
        uploaded_bytes: Copied to the device so far.
    """

    def __init__(self, size: int, rows: int, device: torch.device, *, pin: bool, slots: int = _SLOTS) -> None:
        words = words_per_row(size)
        self._host_masks = torch.zeros((rows, words), dtype=torch.int32, pin_memory=pin)
        super().__init__(self._host_masks.numpy())
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._slots = MaskSlots(slots)
        self._first_written = slots
        self._masks = torch.zeros((slots + rows, words), dtype=torch.int32, device=device)  # slots first
        room = rows * (PLAN_COLUMNS + MAX_IDS)
        self._orders = torch.zeros(room, dtype=torch.int32, device=device)  # of each launch: its plan, and its ids
        self._host_orders = torch.zeros(room, dtype=torch.int32, pin_memory=pin)
        self._orders_view = self._host_orders.numpy()
        self._workspace: Workspace | None = None
        self._sent: torch.cuda.Event | None = None  # after the newest copy from the host's buffers
        self._may_write = False
        self._ordered = self._copied = 0  # what the step has sent: of the orders, and rows of the masks
        self.uploaded_bytes = 0
        self._plan: list[int] = []  # of the next launch, row by row
        self._ids: list[int] = []
        self._new: dict[int, tuple[Row, int, int]] = {}  # by id: shared mask, its written row, the entry that names it
        self._named: list[Row] = []  # keeps the arrays of a launch alive

    def warm_up(self, width: int) -> None:
        """Compile the kernel for logits of this width: that takes about a second for each of its two variants."""
        logits = torch.zeros((1, width), device=self._device)
        for guarded in (False, True):
            self.begin()
            self._take_ids(0, np.zeros(1, dtype=np.intp), guarded=guarded)
            self._apply(logits, [])
        self.begin()
        self.uploaded_bytes = 0

    def _drop(self) -> None:
        self._ordered = self._copied = 0
        self._may_write = False
        self._forget()

    def _forget(self) -> None:
        self._plan.clear()
        self._ids.clear()
        self._new.clear()
        self._named.clear()

    def _is_collected(self) -> bool:
        return bool(self._plan)

    def _before_writing(self) -> None:
        """At a step's first writing, wait until the previous step's copies have left the host's buffers."""
        if not self._may_write:
            self._may_write = True
            if self._sent is not None:
                self._sent.synchronize()

    def _take_ids(self, row: int, ids: Ids, *, guarded: bool) -> None:
        self._plan += (row, len(self._ids), len(ids), guarded, -1, -1)
        self._ids += ids.tolist()

    def _take_shared(self, row: int, mask: Row, *, guarded: bool) -> None:
        source = self._slots.find(mask)
        if source is None:
            new = self._new.get(id(mask))
            if new is None:
                self._before_writing()
                self._computed[self._written] = mask
                new = self._new[id(mask)] = (mask, self._first_written + self._written, len(self._plan))
                self._written += 1
            source = new[1]
        else:
            self._named.append(mask)
        self._plan += (row, source, 0, guarded, -1, -1)

    def _take_written(self, row: int, *, guarded: bool) -> None:
        self._plan += (row, self._first_written + self._written, 0, guarded, -1, -1)
        self._written += 1

    def _apply(self, logits: torch.Tensor, examined: list[int]) -> None:
        for mask, _, entry in self._new.values():
            slot = self._slots.take(mask)
            self._plan[entry + Column.KEEP] = -1 if slot is None else slot
        self._slots.next_launch()
        results = self._examine(examined)
        if self._workspace is None:
            entries = len(self._host_masks)
            width = max(logits.shape[1], 32 * self._masks.shape[1])
            self._workspace = Workspace(entries, SAMPLED_ROWS, width, logits.device)
        orders, ids = self._send()
        watched = self._workspace if results or any(self._plan[Column.GUARDED :: PLAN_COLUMNS]) else None
        self._launch(logits, orders, ids, watched)
        if results:
            row_probe.record(self._workspace.results[:results])
        self._forget()

    def _launch(self, logits: torch.Tensor, plan: torch.Tensor, ids: torch.Tensor, workspace: Workspace | None) -> None:
        apply_masks(logits, self._masks, plan, ids, workspace)

    def _examine(self, rows: list[int]) -> int:
        """Have the launch examine those of these rows that it masks; how many it does."""
        if not rows:
            return 0
        entries = {self._plan[entry]: entry for entry in range(0, len(self._plan), PLAN_COLUMNS)}
        found = [entries[row] for row in rows if row in entries]
        for number, entry in enumerate(found):
            self._plan[entry + Column.RESULT] = number
        return len(found)

    def _send(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy what the launch needs to the device: its plan and its ids, as they lie there."""
        self._before_writing()
        length, start = len(self._plan), self._ordered
        orders = array("i", self._plan)
        orders.extend(self._ids)
        end = start + len(orders)
        self._orders_view[start:end] = np.frombuffer(orders, dtype=np.intc)
        self._orders[start:end].copy_(self._host_orders[start:end], non_blocking=True)
        self.uploaded_bytes += 4 * (end - start)
        self._ordered = end
        if self._copied < self._written:
            into = self._masks[self._first_written + self._copied : self._first_written + self._written]
            into.copy_(self._host_masks[self._copied : self._written], non_blocking=True)
            self.uploaded_bytes += into.nbytes
            self._copied = self._written
        if self._on_gpu:
            self._sent = self._sent or torch.cuda.Event()
            self._sent.record()
        plan = self._orders[start : start + length].view(-1, PLAN_COLUMNS)
        return plan, self._orders[start + length : end]


def row_masks(factory: MatcherFactory, rows: int, device: torch.device, *, pin: bool) -> RowMasks:
    """The masks of a worker whose steps have so many rows at most, ready for the first of them."""
    size = factory.vocabulary.size
    if device.type == "cpu":
        return HostMasks(size, rows)
    masks = DeviceMasks(size, rows, device, pin=pin)
    masks.warm_up(size)
    return masks
