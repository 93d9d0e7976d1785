"""Collects the masks of one step by row of the logits, and applies them together.

Subclasses mask logits in host memory or on a device.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from constrained_k2.kernels import MAX_IDS
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.vllm_plugin.shared.counters import MASK_COUNTS, engine_counters, fill
from constrained_k2.vllm_plugin.shared.declining import declining
from constrained_k2.vllm_plugin.shared.row_plan import NamedRow, RowSampler
from constrained_k2.vllm_plugin.worker.known_masks import ConstantRows, Ids, Row, ShortMasks, ids_if_few
from constrained_k2.vocabulary.bitmask import TokenSet


class RowMasks(ABC):
    """The masks of one step. Between :meth:`begin` and the next one each row of the logits is masked at most once.

    A mask that few tokens pass is collected as their ids; one that turns share, by reference. Only masks that are
    computed for one turn, and those that a filter changes, are written for the step.

    Args:
        computed: int32 ``[rows, words]``: takes the masks that are written, as many as a step has rows.
    """

    def __init__(self, computed: npt.NDArray[np.int32]) -> None:
        self._sampler = RowSampler()
        self._examinable: list[int] = []  # rows of the logits
        self._in_names: dict[int, NamedRow] = {}  # by row of the logits
        self.is_sampled = False  # rows may be examined in this step
        self._computed = computed
        self._constants = ConstantRows(computed.shape[1])
        self._short = ShortMasks()
        self._written = 0  # rows of ``computed`` that this step has written
        self._has_begun = False
        self._is_counted = False

    def begin(self) -> None:
        """Start a new step; what has been collected and not applied is dropped."""
        self._written = 0
        self._has_begun = self._is_counted = False
        self._examinable.clear()
        self._in_names.clear()
        self._drop()

    def begin_rows(self) -> None:
        """Begin to mask rows of this step; steps without such rows are not counted."""
        if not self._has_begun:
            self._has_begun = True
            self.is_sampled = self._sampler.begin_step()

    def examine(self, rows: Iterable[int]) -> None:
        """Note rows of the logits that may be examined."""
        self._examinable += rows

    def add_constant(self, row: int, tokens: TokenSet, *, guarded: bool = False) -> None:
        """Mask a row of the logits by a constant set; ``guarded`` as for :meth:`add`."""
        if not tokens.complement and len(tokens.listed) <= MAX_IDS:
            self._take_ids(row, tokens.ids, guarded=guarded)
        else:
            self._take_shared(row, self._constants.row(tokens), guarded=guarded)

    def add(
        self, row: int, matcher: ToolCallMatcher, *, guarded: bool = False, request: Hashable | None = None
    ) -> None:
        """Mask a row of the logits by what the matcher allows now; if that raises, the row is not masked.

        Args:
            row: The row.
            matcher: The turn's.
            guarded: Other stages may forbid all that the mask allows, so that the row has to be restored.
            request: The request, by which its calls are counted; None behind a draft, which may not be accepted.
        """
        if matcher.phase is Phase.CALL_ID and (intent := matcher.intent()) is not None:
            call = None if request is None else (request, matcher.num_calls)
            self._in_names[row] = NamedRow(call, intent)
        start = perf_counter()
        mask = matcher.reusable_mask()
        if mask is not None and self._add_known(row, mask, guarded=guarded):
            count = MASK_COUNTS[matcher.phase]
            count.rows += 1
            count.seconds += perf_counter() - start
            return
        self._before_writing()
        words = fill(matcher, self._computed, self._written)
        ids = ids_if_few(self._computed[self._written], words)
        if ids is None:
            self._take_written(row, guarded=guarded)
        else:
            self._take_ids(row, ids, guarded=guarded)

    def apply(self, logits: torch.Tensor) -> None:
        """Mask what has been collected since the last time, in float32 ``[rows, width]``, in place."""
        if not self._is_collected():
            return
        if not self._is_counted:
            self._is_counted = True
            engine_counters.masked_steps += 1
        with declining.around(logits, list(self._in_names), list(self._in_names.values())):
            self._apply(logits, self._sampler.choose(self._examinable) if self._examinable else [])
        self._examinable.clear()
        self._in_names.clear()

    def _add_known(self, row: int, mask: TokenSet | Row, *, guarded: bool) -> bool:
        """Collect a row with a shared mask; False if no token passes it."""
        if isinstance(mask, TokenSet):
            if not (mask.listed or mask.complement):
                return False
            self.add_constant(row, mask, guarded=guarded)
            return True
        ids = self._short.ids(mask)
        if ids is None:
            self._take_shared(row, mask, guarded=guarded)
        elif len(ids):
            self._take_ids(row, ids, guarded=guarded)
        return ids is None or len(ids) > 0

    def _before_writing(self) -> None:  # noqa: B027 - most memory may be written at any time
        """Wait until ``computed`` may be written."""

    @abstractmethod
    def _drop(self) -> None:
        """Forget what has been collected."""

    @abstractmethod
    def _is_collected(self) -> bool:
        """True if there is something to apply."""

    @abstractmethod
    def _take_ids(self, row: int, ids: Ids, *, guarded: bool) -> None:
        """Collect a row whose only allowed tokens these are, at most ``MAX_IDS``."""

    @abstractmethod
    def _take_shared(self, row: int, mask: Row, *, guarded: bool) -> None:
        """Collect a row with a mask that never changes, and that may come again as the same array."""

    @abstractmethod
    def _take_written(self, row: int, *, guarded: bool) -> None:
        """Collect a row with the mask that was written last into ``computed``."""

    @abstractmethod
    def _apply(self, logits: torch.Tensor, examined: list[int]) -> None:
        """Mask the collected rows, examine some, and forget what has been collected."""
