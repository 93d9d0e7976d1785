"""The masks of residuals, shared by all grammars, with the least recently used dropped."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from constrained_k2.engines.llguidance.direct.residual import Residual, Residuals
from constrained_k2.engines.llguidance.direct.tokens import Row, TokenTrie
from constrained_k2.engines.llguidance.direct.values import Values
from constrained_k2.engines.llguidance.direct.walk import mask_of
from constrained_k2.grammar.lark.direct_model import DirectModel
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

_ENTRY_BYTES = 2000  # estimate for a residual, without its mask


class DirectMasks:
    """Computes masks without LLGuidance. Thread-safe.

    Args:
        vocabulary: The vocabulary.
        budget: Bytes of residuals and their masks, at most.
        intern: Returns the one copy of a mask.
    """

    def __init__(self, vocabulary: Vocabulary, budget: int, intern: Callable[[Row], Row]) -> None:
        self._trie = TokenTrie(vocabulary)
        self._values = Values(self._trie)
        self._stop_id = vocabulary.format.engine_stop
        self._intern = intern
        self._rows: OrderedDict[Residual, Row | None] = OrderedDict()  # None where only the engine can compute it
        self._most = budget // (4 * words_per_row(vocabulary.size) + _ENTRY_BYTES)
        self._lock = threading.Lock()

    def residuals(self, model: DirectModel) -> Residuals:
        """Return what computes the residuals of one grammar's positions."""
        return Residuals(self._values.of(model), self._trie)

    @property
    def spent(self) -> int:
        """Estimated bytes of the residuals, without their masks."""
        return len(self._rows) * _ENTRY_BYTES

    def mask(self, residual: Residual) -> Row | None:
        """Return a mask, int32 ``[words]``, read-only; None if only the engine can compute it."""
        with self._lock:
            if residual in self._rows:
                self._rows.move_to_end(residual)
                return self._rows[residual]
            row = mask_of(residual, self._trie, self._stop_id)
            if row is not None:
                row = self._intern(row)
            self._rows[residual] = row
            while len(self._rows) > self._most:
                self._rows.popitem(last=False)
            return row

    def clear(self) -> None:
        """Drop all masks."""
        with self._lock:
            self._rows.clear()
