"""Computes masks from the token trie, without LLGuidance's parser; all grammars share a cache.

For example, a new tool's first free string may use the mask that was computed for another tool's free string.
"""

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, get_args

import llguidance

from constrained_k2.engines.llguidance.direct.lexemes import number_state
from constrained_k2.engines.llguidance.direct.residual import Keys, Residual, Residuals
from constrained_k2.engines.llguidance.direct.rules import ArrayRule, DirectModel, NumberKind, ObjectRule, ValueRule
from constrained_k2.engines.llguidance.direct.terminals import Terminals
from constrained_k2.engines.llguidance.direct.tokens import Row, TokenTrie
from constrained_k2.engines.llguidance.direct.values import Level, Values
from constrained_k2.engines.llguidance.direct.walk import forced_token, mask_of
from constrained_k2.engines.llguidance.position import StateKind
from constrained_k2.grammar.lark.terminals import MAX_WHITESPACE
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

_ENTRY_BYTES = 2000  # estimate for a residual, without its mask
_MISSING: Any = object()
_REST_BYTES = 300  # estimate for each key suffix in a residual


class DirectMasks:
    """Computes masks without LLGuidance. Thread-safe.

    Args:
        vocabulary: The vocabulary.
        budget: Bytes of residuals and their masks, at most.
        intern: Interns a mask: returns the stored equal one.
        on_growth: Called after ``spent`` has grown.
        tokenizer: LLGuidance's tokenizer of the vocabulary.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        budget: int,
        intern: Callable[[Row], Row],
        on_growth: Callable[[], None],
        tokenizer: llguidance.LLTokenizer,
    ) -> None:
        self._trie = TokenTrie(vocabulary)
        self.terminals = Terminals(self._trie, tokenizer, budget)
        self._values = Values(self._trie)
        self._stop_id = vocabulary.format.engine_stop
        self._intern = intern
        self._on_growth = on_growth
        self._tokenize = tokenizer.tokenize_bytes
        # Two generations. A mask that is used moves to ``_new``. When that takes half of the budget, it becomes
        # ``_old``, and the former ``_old`` is dropped. So a look-up needs one hash of a residual, and masks that were
        # not used lately are evicted. The value is None if only the engine can compute the mask.
        self._new: dict[Hashable, Any] = {}  # Row or None, by residual, or by residual and previous token
        self._old: dict[Hashable, Any] = {}
        self._new_bytes = self._old_bytes = 0  # bytes of residuals, without their masks
        self._half = budget // 2
        self._row_bytes = 4 * words_per_row(vocabulary.size)
        self._lock = threading.Lock()
        self.empty = self._trie.empty()
        """The mask that allows no token; always this object, so that callers can compare by identity."""
        for residual in _frequent(self._values):  # now rather than within some request's first mask
            mask_of(residual, self._trie, self.terminals, self._stop_id)

    def residuals(self, model: DirectModel) -> Residuals:
        """Return the object that computes the residuals of one grammar's parser states."""
        return Residuals(self._values.of(model), self._trie, self.terminals)

    @property
    def spent(self) -> int:
        """Estimated bytes of the residuals, without their masks, and of terminals."""
        return self._new_bytes + self._old_bytes + self.terminals.spent

    def allowed(self, residual: Residual) -> Row | None:
        """Return the tokens that a grammar accepts, int32 ``[words]``, read-only; None if the engine must decide."""
        row: Row | None = self._new.get(residual, _MISSING)
        if row is _MISSING:
            row = self._old.get(residual, _MISSING)
            row = self._keep(residual, residual, self._mask_of(residual) if row is _MISSING else row)
        return row

    def forced(self, residual: Residual, previous: int) -> Row | None:
        """Return the mask after the token ``previous`` if bytes are forced; None if the engine must decide."""
        key = residual, previous
        row: Row | None = self._new.get(key, _MISSING)
        if row is _MISSING:
            row = self._old.get(key, _MISSING)
            row = self._keep(key, residual, self._forced(residual, previous) if row is _MISSING else row)
        return row

    def _forced(self, residual: Residual, previous: int) -> Row | None:
        token_id = forced_token(residual, self._trie, self.terminals, previous, self._tokenize)
        if token_id == -1:
            return self._mask_of(residual)
        return None if token_id is None else self._intern(self._trie.row([token_id]))

    def _mask_of(self, residual: Residual) -> Row | None:
        row = mask_of(residual, self._trie, self.terminals, self._stop_id)
        if row is None:
            return None
        return self._intern(row) if row.any() else self.empty

    def _keep(self, key: Hashable, residual: Residual, row: Row | None) -> Row | None:
        size = _ENTRY_BYTES + (0 if residual.keys is None else _REST_BYTES * len(residual.keys.rests))
        with self._lock:
            if self._new_bytes + size + self._row_bytes * (len(self._new) + 1) > self._half:
                self._old, self._old_bytes = self._new, self._new_bytes
                self._new, self._new_bytes = {}, 0
            self._new[key] = row
            self._new_bytes += size
        self._on_growth()
        return row

    def clear(self) -> None:
        """Drop all masks."""
        with self._lock:
            self._new, self._old = {}, {}
            self._new_bytes = self._old_bytes = 0
        self.terminals.clear()


def _frequent(values: Values) -> Iterator[Residual]:
    """Yield some residuals that are computed in advance, since the trie nodes for their masks serve most masks."""
    members, items = ObjectRule((), 0, 0, any_spelling=True), ArrayRule(0, 0, None)
    words = (b"false", b"null", b"true")
    rule = ValueRule(has_strings=True, number="number", words=words, object=members, array=items)
    (value,) = values.of((rule,))
    (integer,) = values.of((ValueRule(number="integer"),))
    inner = Level(is_object=True, may_end=True, may_go_on=True, value=value)
    outer = Level(is_object=False, may_end=True, may_go_on=True, value=value)
    for any_spelling in (True, False):
        level = inner._replace(any_spelling=any_spelling)
        keys, stack = Keys(level, ()), (level, outer)
        yield Residual(StateKind.KEY, MAX_WHITESPACE, keys=keys, is_first=True, stack=(outer,))
        yield Residual(StateKind.IN_KEY, keys=keys, stack=(outer,))
    for blanks in (MAX_WHITESPACE, MAX_WHITESPACE - 1):
        for expect in (StateKind.VALUE, StateKind.COLON, StateKind.FIRST_ITEM):
            yield from (Residual(expect, blanks, one, is_first=True, stack=stack) for one in (value, integer))
        yield from (Residual(StateKind.AFTER_VALUE, blanks, stack=levels) for levels in (stack, stack[1:]))
    for begun in (), (b"\\",):
        yield from (Residual(StateKind.IN_FREE_STRING, rests=begun, stack=levels) for levels in (stack, stack[1:]))
    for text in (b"0", b"1", b"12", b"123"):
        for kind in get_args(NumberKind)[1:]:
            if (state := number_state(kind, text, 1)) is not None:
                yield Residual(StateKind.IN_SCALAR, number=(kind, state), stack=stack)
