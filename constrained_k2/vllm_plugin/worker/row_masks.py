"""Brings the masks of one step to the device: constant ones are there already, computed ones go in one copy."""

from collections.abc import Iterable

import numpy as np
import torch

from constrained_k2.kernels import mask_rows, restore_emptied_rows
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.vllm_plugin.metrics.counters import engine_counters, fill
from constrained_k2.vllm_plugin.metrics.row_plan import PlannedRow, RowSampler
from constrained_k2.vllm_plugin.metrics.row_probe import row_probe
from constrained_k2.vocabulary.bitmask import TokenSet, words_per_row

_CONSTANTS = 64
"""Constant sets kept on the device, more than requests make; any beyond these are copied each time."""


class RowMasks:
    """Collects which rows of the logits are masked by what, and masks them all in one launch.

    What goes to the device before is one copy of the plan and, if masks were computed, one of those. A second launch
    follows where a row may have been emptied. Between :meth:`begin` and the next one each row is written at most once,
    so that masks on their way to the device are never overwritten however often :meth:`apply` is called in between.
    """

    def __init__(self, size: int, rows: int, device: torch.device, interval: int, *, pin: bool) -> None:
        self._sampler = RowSampler(interval)
        self._examinable: list[PlannedRow] = []
        self.is_sampled = False  # rows of all requests may be examined in this step, not only of those that ask
        self._on_gpu = device.type == "cuda"
        shape = (rows, words_per_row(size))
        self._masks = torch.zeros((_CONSTANTS + rows, shape[1]), dtype=torch.int32, device=device)  # constants first
        self._plan = torch.zeros((rows, 3), dtype=torch.int32, device=device)  # as mask_rows takes it
        self._host_masks = torch.zeros(shape, dtype=torch.int32, pin_memory=pin)
        self._host_plan = torch.zeros((rows, 3), dtype=torch.int32, pin_memory=pin)
        self._mask_view = self._host_masks.numpy()
        self._plan_view = self._host_plan.numpy()
        self._constants: dict[TokenSet, int] = {}
        self._contents: dict[tuple[bool, frozenset[int]], int] = {}
        self._sent: torch.cuda.Event | None = None  # after the newest copy from the host's buffers
        self.begin()

    def begin(self) -> None:
        """Start a new step; what has been collected and not applied is dropped."""
        self._planned = self._flushed = 0  # rows of the plan: taken, and already applied
        self._computed = self._copied = 0  # rows of the masks: taken, and already copied
        self._guarded = False
        self._has_begun = False
        self._examinable.clear()

    def begin_rows(self) -> None:
        """Begin to mask: a step of which no row is masked counts for nothing."""
        if not self._has_begun:
            self._has_begun = True
            self.is_sampled = self._sampler.begin_step()

    def examine(self, rows: Iterable[PlannedRow]) -> None:
        """Note rows that may be examined; ``request`` is the row of the logits."""
        self._examinable += rows

    def add_constant(self, row: int, tokens: TokenSet, *, guarded: bool = False) -> None:
        """Mask a row of the logits by a constant set; ``guarded`` as for :meth:`add`."""
        self._wait_for_the_host_buffers()
        source = self._constants.get(tokens)
        if source is None:
            source = self._place(tokens)
        if source is None:
            tokens.fill(self._mask_view[self._computed])
        self._take(row, source, guarded=guarded)

    def add(self, row: int, matcher: ToolCallMatcher, *, guarded: bool = False) -> None:
        """Mask a row of the logits by what the matcher allows now; if that raises, the row is not masked.

        ``guarded``: other stages may forbid all that the mask allows, so that the row has to be restored.
        """
        self._wait_for_the_host_buffers()
        # Only sets that requests share go to the device's constants, which have few places.
        if matcher.phase is Phase.CALL_ID or matcher.arguments is not None or matcher.restriction is not None:
            fill(matcher, self._mask_view, self._computed)
            self._take(row, None, guarded=guarded)
        else:
            tokens = matcher.token_set()
            assert tokens is not None
            engine_counters.constant.rows += 1
            self.add_constant(row, tokens, guarded=guarded)

    def apply(self, logits: torch.Tensor) -> None:
        """Mask what has been collected since the last time, in float32 ``[rows, width]``, in place."""
        first, last = self._flushed, self._planned
        if first == last:
            return
        if first == 0:
            engine_counters.masked_steps += 1
        plan = self._sampler.choose(self._examinable) if self._examinable else []
        with row_probe.around(logits, [row.request + row.offset for row in plan], plan):
            self._apply(logits, first, last)
        self._examinable.clear()
        self._flushed = last

    def _apply(self, logits: torch.Tensor, first: int, last: int) -> None:
        if self._copied < self._computed:
            into = self._masks[_CONSTANTS + self._copied : _CONSTANTS + self._computed]
            into.copy_(self._host_masks[self._copied : self._computed], non_blocking=True)
            self._copied = self._computed
        plan = self._plan[first:last].copy_(self._host_plan[first:last], non_blocking=True)
        if self._on_gpu:
            self._sent = self._sent or torch.cuda.Event()
            self._sent.record()
        mask_rows(logits, self._masks, plan)
        if self._guarded:
            restore_emptied_rows(logits, self._masks, plan)
            self._guarded = False

    def _take(self, row: int, source: int | None, *, guarded: bool) -> None:
        if source is None:
            source = _CONSTANTS + self._computed
            self._computed += 1
        self._plan_view[self._planned] = (row, source, guarded)
        self._planned += 1
        self._guarded |= guarded

    def _wait_for_the_host_buffers(self) -> None:
        """At a step's first row, wait until the previous step's copies have left the host's buffers."""
        if self._planned == 0 and self._sent is not None:
            self._sent.synchronize()

    def _place(self, tokens: TokenSet) -> int | None:
        """The place of a constant set on the device, where it is put now; None if there is no room."""
        content = (tokens.complement, tokens.listed)
        location = self._contents.get(content)
        if location is None:
            if len(self._contents) == _CONSTANTS:
                return None
            location = len(self._contents)
            row = np.zeros(self._masks.shape[1], dtype=np.int32)
            tokens.fill(row)
            self._masks[location] = torch.from_numpy(row).to(self._masks.device)
            self._contents[content] = location
        self._constants[tokens] = location
        return location
