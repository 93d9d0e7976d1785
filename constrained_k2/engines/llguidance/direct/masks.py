"""The masks of residuals, shared by all grammars, with the least recently used dropped."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from constrained_k2.engines.llguidance.direct.residual import Residual, Residuals
from constrained_k2.engines.llguidance.direct.tokens import Row, TokenTrie
from constrained_k2.engines.llguidance.direct.values import Values
from constrained_k2.engines.llguidance.direct.walk import forced_token, mask_of
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
        tokenize: Returns the tokens of bytes as LLGuidance chooses them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        budget: int,
        intern: Callable[[Row], Row],
        tokenize: Callable[[bytes], Sequence[int]],
    ) -> None:
        self._trie = TokenTrie(vocabulary)
        self._values = Values(self._trie)
        self._stop_id = vocabulary.format.engine_stop
        self._intern = intern
        self._tokenize = tokenize
        self._rows: OrderedDict[tuple[Residual, int], Row | None] = (
            OrderedDict()
        )  # None where only the engine can compute it
        self._most = budget // (4 * words_per_row(vocabulary.size) + _ENTRY_BYTES)
        self._lock = threading.Lock()

    def residuals(self, model: DirectModel) -> Residuals:
        """Return what computes the residuals of one grammar's positions."""
        return Residuals(self._values.of(model), self._trie)

    @property
    def spent(self) -> int:
        """Estimated bytes of the residuals, without their masks."""
        return len(self._rows) * _ENTRY_BYTES

    def allowed(self, residual: Residual) -> Row | None:
        """Return the tokens that a grammar accepts, int32 ``[words]``, read-only; None if only the engine can tell."""
        return self._found((residual, -1), lambda: mask_of(residual, self._trie, self._stop_id))

    def forced(self, residual: Residual, previous: int) -> Row | None:
        """Return the mask where a text is forced, after a token, as :meth:`allowed` does."""

        def compute() -> Row | None:
            token_id = forced_token(residual, self._trie, previous, self._tokenize)
            if token_id == -1:
                return mask_of(residual, self._trie, self._stop_id)
            return None if token_id is None else self._trie.row([token_id])

        return self._found((residual, previous), compute)

    def _found(self, key: tuple[Residual, int], compute: Callable[[], Row | None]) -> Row | None:
        with self._lock:
            if key in self._rows:
                self._rows.move_to_end(key)
                return self._rows[key]
            row = compute()
            if row is not None:
                row = self._intern(row)
            self._rows[key] = row
            while len(self._rows) > self._most:
                self._rows.popitem(last=False)
            return row

    def clear(self) -> None:
        """Drop all masks."""
        with self._lock:
            self._rows.clear()
