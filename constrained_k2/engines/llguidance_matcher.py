"""A call's arguments in LLGuidance, which is asked only where no call of the same grammar has been before."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import llguidance
import numpy as np
import numpy.typing as npt

from constrained_k2.bitmask import BitmaskRows
from constrained_k2.engines.state_cache import GrammarState
from constrained_k2.errors import ConstrainedK2Error, SchemaTooCostly

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance import LLGuidanceGrammar

# Rows below which the batch stays on the calling thread. Measured on two cores: 16 rows take 0.25 ms on two threads and
# 0.16 ms on one; from 64 on there is no difference there but that the interpreter lock is let go once.
_ROWS_WORTH_A_THREAD = 64


class LLGuidanceMatcher:
    """One call's arguments. An error of the shared lexer is answered once by a new one, with the tokens replayed.

    Where other calls have been before, tokens and masks come from the grammar's states, and LLGuidance is told of the
    tokens only when it is next needed.

    LLGuidance (1.7.6) gives its latest mask again where its lexer stands alike after as many lexemes, even if it was
    rolled back meanwhile and other lexemes came. So where it goes back behind its latest mask, a new one is computed
    before it goes on; but where bytes are forced its masks are made in another way, and the tokens are replayed.

    Args:
        grammar: The grammar.
        place: Where the schema stands in the request, for errors.

    Attributes:
        grammar: As given.
    """

    __slots__ = ("_ids", "_is_stale", "_masked", "_matcher", "_path", "_place", "_plain", "_state", "_told", "grammar")

    def __init__(self, grammar: "LLGuidanceGrammar", place: str) -> None:
        self.grammar = grammar
        self._place = place
        self._plain = grammar.plain
        self._state = _ALONE if grammar.states is None else grammar.states.begin()
        self._ids: list[int] = []
        self._path = [self._state]  # before each token, and now
        self._matcher: llguidance.LLMatcher | None = None
        self._told = 0  # tokens that the matcher has taken
        self._masked = 0  # how many it had taken at its latest mask
        self._is_stale = False  # whether it went back behind that

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        known = self.known_mask()
        if known is not None:
            row[:] = known
            return
        address = address or row.ctypes.data
        matcher = self.engine(for_mask=True)
        matcher.unsafe_compute_mask_ptr(address, row.nbytes)
        if matcher.is_error():
            self._rebuild().unsafe_compute_mask_ptr(address, row.nbytes)
            self._raise_on_error()
        self.note_mask(row)

    @staticmethod
    def fill_batch(
        batch: Sequence[tuple["LLGuidanceMatcher", int]], rows: BitmaskRows
    ) -> list[tuple[int, ConstrainedK2Error]]:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

        LLGuidance's executor lets go of the interpreter lock once for the whole batch. A mask at a time would once a
        row, and would each time have to wait for any other thread that runs Python then.
        """
        failed: list[tuple[int, ConstrainedK2Error]] = []
        if len(batch) >= _ROWS_WORTH_A_THREAD and batch[0][0].grammar.mask_threads.count > 1:
            batch = LLGuidanceMatcher._fill_in_threads(batch, rows, failed)
        for matcher, row in batch:
            try:
                matcher.fill(rows[row], rows.address + row * rows.row_bytes)
            except ConstrainedK2Error as error:
                failed.append((row, error))
        return failed

    @staticmethod
    def _fill_in_threads(
        batch: Sequence[tuple["LLGuidanceMatcher", int]],
        rows: BitmaskRows,
        failed: list[tuple[int, ConstrainedK2Error]],
    ) -> list[tuple["LLGuidanceMatcher", int]]:
        """Fill rows by LLGuidance's threads; those that are to be tried again are returned."""
        told: list[tuple[LLGuidanceMatcher, llguidance.LLMatcher, int]] = []
        for matcher, row in batch:
            try:
                told.append((matcher, matcher.engine(for_mask=True), row))
            except ConstrainedK2Error as error:
                failed.append((row, error))
        threads = batch[0][0].grammar.mask_threads
        pairs = [(engine, row) for _, engine, row in told]
        threads.executor().unsafe_compute_mask_ptr(pairs, rows.address, rows.row_bytes, len(rows))
        again = []
        for matcher, engine, row in told:
            if engine.is_error():
                again.append((matcher, row))
            else:
                matcher.note_mask(rows[row])
        return again

    def forced_tokens(self) -> list[int]:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

        A limit that the engine hits here it hits at the next mask too, where it is handled.
        """
        forced: list[int] = self.engine().compute_ff_tokens()
        return forced

    def accept(self, token_id: int) -> bool:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        state = self._state
        if not (state.loops and self._plain[token_id] == 1):
            after = state.next.get(token_id)
            if after is None:
                return self._accept_by_engine(token_id)
            self._state = state = after
        self._ids.append(token_id)
        self._path.append(state)
        return True

    def _accept_by_engine(self, token_id: int) -> bool:
        matcher = self.engine()
        taken = matcher.try_consume_tokens([token_id])
        if not taken and (matcher.is_error() or self._is_allowed(matcher, token_id)):
            taken = self._rebuild().try_consume_tokens([token_id])
            self._raise_on_error()
        if not taken:
            return False
        self._told += 1
        states = self.grammar.states
        if states is not None and not (self._state.keeps and self._plain[token_id] == 1):
            self._state = states.step(self._state, token_id)
        self._ids.append(token_id)
        self._path.append(self._state)
        return True

    def rollback(self, count: int) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        if not count:
            return
        del self._ids[-count:]
        del self._path[-count:]
        self._state = self._path[-1]
        too_many = self._told - len(self._ids)
        if too_many > 0:
            assert self._matcher is not None
            self._told -= too_many
            self._is_stale = self._is_stale or self._masked > self._told
            if self._matcher.is_error() or not self._matcher.rollback(too_many):
                self._rebuild()

    def is_complete(self) -> bool:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        state = self._state
        if state.is_complete is not None:
            return state.is_complete
        found = self.engine().is_accepting()
        if state.is_shared:
            state.is_complete = found
        return found

    def fork(self) -> "LLGuidanceMatcher":
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        copy = LLGuidanceMatcher(self.grammar, self._place)
        copy._ids = self._ids.copy()
        copy._path = self._path.copy()
        copy._state = self._state
        copy._matcher = self._matcher and self._matcher.deep_copy()
        copy._told = self._told
        copy._masked = self._masked
        copy._is_stale = self._is_stale
        return copy

    def known_mask(self) -> npt.NDArray[np.int32] | None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        state = self._state
        if state.rows_behind is None:
            return state.row
        return state.rows_behind.get(self._ids[-1] if self._ids else -1)

    def engine(self, *, for_mask: bool = False) -> llguidance.LLMatcher:
        """LLGuidance's matcher, told of all tokens.

        Args:
            for_mask: Whether it is asked for nothing but a mask.
        """
        matcher = self._matcher
        if matcher is None:
            matcher = self._matcher = self.grammar.copy()
        untold = self._ids[self._told :] if self._told < len(self._ids) else ()
        if self._is_stale and (untold or not for_mask):
            matcher.compute_bitmask()
            self._note_computed(matcher)
            if self._is_stale:
                matcher = self._matcher = self.grammar.copy()
                self._told, self._masked, self._is_stale = 0, 0, False
                untold = self._ids
        if untold:
            self._told = len(self._ids)
            if matcher.try_consume_tokens(untold) != len(untold):
                matcher = self._rebuild()
        return matcher

    def note_mask(self, row: npt.NDArray[np.int32]) -> None:
        """Note that LLGuidance has just computed a mask, int32 ``[words]``; other calls may need it too."""
        assert self._matcher is not None
        self._note_computed(self._matcher)
        state, states = self._state, self.grammar.states
        if states is None or not state.is_shared:
            return
        state.visits += 1
        if state.visits > 1:  # most masks that are seen once are never seen again
            # Where bytes are forced, LLGuidance chooses their tokens by the token before.
            is_forced = bool(self._matcher.compute_ff_bytes())
            states.keep(state, row, (self._ids[-1] if self._ids else -1) if is_forced else None)

    def _note_computed(self, matcher: llguidance.LLMatcher) -> None:
        """Note that a mask has been computed where the matcher is."""
        if self._is_stale:
            self._is_stale = bool(matcher.compute_ff_bytes())
        if not self._is_stale:
            self._masked = self._told

    def _is_allowed(self, matcher: llguidance.LLMatcher, token_id: int) -> bool:
        """Whether the mask allows a token: a lexer that is full may refuse one without saying so."""
        mask = matcher.compute_bitmask()
        self._note_computed(matcher)
        return matcher.is_error() or bool(mask[token_id // 8] >> (token_id % 8) & 1)

    def _rebuild(self) -> llguidance.LLMatcher:
        matcher = self._matcher = self.grammar.renew()
        taken = matcher.try_consume_tokens(self._ids)
        self._told = len(self._ids)
        self._masked, self._is_stale = 0, False
        self._raise_on_error()
        if taken != len(self._ids):
            raise self._given_up(f"it took {taken} of {len(self._ids)} tokens when they were replayed")
        return matcher

    def _raise_on_error(self) -> None:
        if self._matcher is not None and self._matcher.is_error():
            raise self._given_up(self._matcher.get_error().strip()[:300])

    def _given_up(self, reason: str) -> SchemaTooCostly:
        return SchemaTooCostly(
            f"the engine gave up on the arguments: {reason}",
            self._place,
            "Simplify the schema's patterns, or split objects with very many properties",
            budget="llguidance",
        )


_ALONE = GrammarState(None)
"""The state of matchers that share none."""
