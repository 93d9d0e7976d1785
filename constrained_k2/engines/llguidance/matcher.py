r"""Matches a call's arguments by a DFA over tokens; LLGuidance computes masks that the DFA lacks.

{"city": "Oslo     the DFA has a state after each token; LLGuidance has consumed no token
{"city": "Oslo\u   a new DFA state without a mask: LLGuidance consumes all tokens and computes the mask
"""

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

import llguidance
import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.dfa_state import DfaState
from constrained_k2.engines.llguidance.position import StateKind
from constrained_k2.engines.llguidance.refusal import COMPILE_ERRORS
from constrained_k2.engines.llguidance.uniqueness.filter import UniquenessFilter
from constrained_k2.engines.protocol import Failures
from constrained_k2.errors import ConstrainedK2Error, SchemaTooCostly
from constrained_k2.grammar.lark.text_grammar import TextGrammar
from constrained_k2.grammar.plan.nodes import Plan
from constrained_k2.vocabulary.bitmask import BitmaskRows, words_per_row

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar

T = TypeVar("T")
_SLOW_NS = 100_000  # a mask that takes longer is cached at its first visit; caching takes a third of this time
# Smaller batches stay on the calling thread. Measured on two cores: 16 rows take 0.25 ms on two threads and 0.16 ms on
# one; from 64 rows on the time is equal, and the interpreter lock is released once for all rows.
_MIN_THREADED_ROWS = 64
_UNTRACKED = DfaState(None)  # the state of matchers without a DFA


def fill_each(batch: Sequence[tuple[Any, int]], rows: BitmaskRows) -> Failures:
    """Fill the bitmask rows of matchers one by one, on this thread."""
    failed: Failures = []
    for matcher, row in batch:
        try:
            matcher.fill(rows[row], rows.address + row * rows.row_bytes)
        except ConstrainedK2Error as error:
            failed.append((row, error))
    return failed


class LLGuidanceMatcher:
    """The parser state of one call's arguments. Implements :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

    Cached steps and masks come from the grammar's DFA. LLGuidance consumes the tokens later, when it is next needed.
    If its shared lexer fails, the tokens are replayed with a new lexer. If that fails too, or LLGuidance cannot
    compile the grammar, they are replayed with a fallback grammar.

    LLGuidance (1.7.6) returns its latest mask again if its lexer is in the same state after the same number of
    lexemes, even if it was rolled back in between and other lexemes followed. So after a rollback past the latest
    mask, this class has LLGuidance compute a new mask before it consumes more tokens. That does not help if bytes are
    forced there: then all tokens are replayed.
    """

    __slots__ = (
        "_classes",
        "_consumed",
        "_ids",
        "_is_stale",
        "_location",
        "_masked",
        "_matcher",
        "_may_relax",
        "_path",
        "_state",
        "grammar",
        "uniqueness_filter",
        "watch",
    )  # fmt: skip

    def __init__(
        self,
        grammar: "LLGuidanceGrammar",
        location: str,
        *,
        may_relax: bool = False,
        uniqueness: UniquenessFilter | None = None,
    ) -> None:
        self.grammar = grammar
        self._location = location
        self._may_relax = may_relax
        self.uniqueness_filter = uniqueness  # removes tokens that would repeat a key or an item
        self.watch: Callable[[], None] | None = None  # called before each replayed token; may raise
        self._classes = grammar.token_classes
        self._state = _UNTRACKED if grammar.dfa is None else grammar.dfa.begin()
        self._ids: list[int] = []
        self._path = [self._state]  # the state before each token, then the current state
        self._matcher: llguidance.LLMatcher | None = None
        self._consumed = 0  # tokens that LLGuidance has consumed
        self._masked = 0  # tokens that LLGuidance had consumed when it computed its latest mask
        self._is_stale = False  # True if LLGuidance was rolled back past that mask

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        self._fill(row, address)
        if self.uniqueness_filter is not None:
            self.uniqueness_filter.narrow(row)

    def _fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        """Fill a row with the tokens that the grammar allows; the uniqueness filter is not applied yet."""
        cached = self._known_mask()
        if cached is not None:
            row[:] = cached
            return
        address = address or row.ctypes.data
        matcher = self.engine(for_mask=True)
        begun = perf_counter_ns()
        matcher.unsafe_compute_mask_ptr(address, row.nbytes)
        if matcher.is_error():
            self._retry(lambda other: other.unsafe_compute_mask_ptr(address, row.nbytes))
        spent = perf_counter_ns() - begun
        self.note_mask(row, is_slow=spent > _SLOW_NS)
        self.grammar.note_work(spent)

    @staticmethod
    def fill_batch(batch: Sequence[tuple["LLGuidanceMatcher", int]], rows: BitmaskRows) -> Failures:
        # LLGuidance's executor releases the interpreter lock once for the whole batch. Single masks would release it
        # for each row, and each time wait for any other Python thread to return it.
        failed: Failures = []
        if len(batch) >= _MIN_THREADED_ROWS and (threads := batch[0][0].grammar.mask_threads).count > 1:
            ready = []
            for matcher, row in batch:
                try:
                    ready.append((matcher, matcher.engine(for_mask=True), row))
                except ConstrainedK2Error as error:
                    failed.append((row, error))
            pairs, begun = [(engine, row) for _, engine, row in ready], perf_counter_ns()
            threads.executor().unsafe_compute_mask_ptr(pairs, rows.address, rows.row_bytes, len(rows))
            spent = (perf_counter_ns() - begun) * threads.count // len(pairs)
            batch = [(matcher, row) for matcher, engine, row in ready if engine.is_error()]
            for matcher, engine, row in ready:
                if not engine.is_error():
                    matcher.note_mask(rows[row])
                    matcher.grammar.note_work(spent)
                    if matcher.uniqueness_filter is not None:
                        matcher.uniqueness_filter.narrow(rows[row])
        return failed + fill_each(batch, rows)

    def forced_tokens(self) -> list[int]:
        if self._matcher is None:
            try:
                matcher = self.grammar.copy()
            except COMPILE_ERRORS:
                return []
            if matcher.is_error():  # do not replace the grammar only for a draft: its masks may not need LLGuidance
                return []
            self._matcher = matcher
        return self.grammar.prototype.forced_ids(self.engine())  # if LLGuidance hits a limit, so does the next mask

    def accept(self, token_id: int) -> bool:
        state, seen = self._state, self.uniqueness_filter
        if not state.free_loop_classes & self._classes[token_id]:
            after = state.next.get(token_id)
            if after is None:
                if not self._accept_new(token_id):
                    return False
                return seen is None or not seen.matters[token_id] & seen.watched or self._keeps(token_id)
            self._state = state = after
        self._ids.append(token_id)
        self._path.append(state)
        return seen is None or not seen.matters[token_id] & seen.watched or self._keeps(token_id)

    def _keeps(self, token_id: int) -> bool:
        """Pass the latest token to the filter; take it back if it repeats a key or item and another token is legal."""
        seen = self.uniqueness_filter
        assert seen is not None
        if seen.follow(token_id, len(self._ids)):
            return True
        self._take_back(1)
        row = np.zeros(words_per_row(len(self._classes)), dtype=np.int32)
        self._fill(row)
        if seen.without_repetitions(row) is not row:  # another token is legal
            return False
        return self._accept_new(token_id) and seen.follow(token_id, len(self._ids), may_repeat=True)

    def _accept_new(self, token_id: int) -> bool:
        """Accept a token for which the DFA has no step yet: without LLGuidance if the legal tokens are known."""
        dfa, state = self.grammar.dfa, self._state
        row = state.allowed if state.is_direct or dfa is None else dfa.allowed(state)
        if dfa is None or row is None or token_id >= len(self._classes) or token_id < 0:
            return self._accept_by_engine(token_id)
        if not row[token_id >> 5] >> (token_id & 31) & 1:
            return False
        if state.position is not None and not state.position.open and state.position.is_end:
            return self._accept_by_engine(token_id)
        if not state.self_loop_classes & self._classes[token_id]:
            self._state = state = dfa.step(state, token_id)
        self._ids.append(token_id)
        self._path.append(state)
        return True

    def _accept_by_engine(self, token_id: int) -> bool:
        matcher = self.engine()
        taken = bool(matcher.try_consume_tokens([token_id]))
        if not taken and (matcher.is_error() or self._is_allowed(matcher, token_id)):
            taken = self._retry(lambda other: self._takes(other, token_id))
        if not taken:
            return False
        self._consumed += 1
        dfa = self.grammar.dfa
        if dfa is not None and not self._state.self_loop_classes & self._classes[token_id]:
            self._state = dfa.step(self._state, token_id)
        self._ids.append(token_id)
        self._path.append(self._state)
        return True

    @property
    def text_grammar(self) -> TextGrammar | None:
        return self.grammar.source.text_grammar

    @property
    def plan(self) -> Plan | None:
        return self.grammar.source.plan

    def written(self) -> Sequence[int]:
        return self._ids

    def rollback(self, count: int) -> None:
        if not count:
            return
        self._take_back(count)
        if self.uniqueness_filter is not None:
            self.uniqueness_filter.truncate(len(self._ids))

    def _take_back(self, count: int) -> None:
        del self._ids[-count:]
        del self._path[-count:]
        self._state = self._path[-1]
        too_many = self._consumed - len(self._ids)
        if too_many > 0:
            assert self._matcher is not None
            self._consumed -= too_many
            self._is_stale = self._is_stale or self._masked > self._consumed
            if self._matcher.is_error() or not self._matcher.rollback(too_many):
                self._forget_engine()

    def is_complete(self) -> bool:
        state = self._state
        if state.is_complete is not None:
            return state.is_complete
        dfa, position = self.grammar.dfa, state.position
        if dfa is not None and dfa.ends_with_object and position is not None and position.expect is not StateKind.LOST:
            state.is_complete = position.is_end
            return state.is_complete
        matcher = self.engine()
        is_complete = matcher.is_accepting()
        if not is_complete and matcher.is_error():  # a failed matcher is never accepting
            is_complete = self._retry(lambda other: other.is_accepting())
        if state.is_shared and state is self._state:  # a fallback grammar's answer is not cached
            state.is_complete = is_complete
        return is_complete

    def fork(self) -> "LLGuidanceMatcher":
        uniqueness = self.uniqueness_filter and self.uniqueness_filter.after(self._ids)
        copy = LLGuidanceMatcher(self.grammar, self._location, may_relax=self._may_relax, uniqueness=uniqueness)
        copy._ids, copy._path, copy._state = self._ids.copy(), self._path.copy(), self._state
        copy._matcher = self._matcher and self._matcher.deep_copy()
        copy._consumed, copy._masked, copy._is_stale = self._consumed, self._masked, self._is_stale
        return copy

    def mask_without_engine(self) -> npt.NDArray[np.int32] | None:
        row, seen = self._known_mask(), self.uniqueness_filter
        if row is None or seen is None or not seen.may_repeat:
            return row
        return seen.without_repetitions(row)

    def _known_mask(self) -> npt.NDArray[np.int32] | None:
        """Return the tokens that the grammar allows; None if only LLGuidance can compute them."""
        state = self._state
        if state.is_direct is not False and (dfa := self.grammar.dfa) is not None:
            row = None if state.forced else state.allowed
            if row is None:
                row = dfa.direct_mask(state, self._ids[-1] if self._ids else -1)
            if row is not None:
                return row
        if state.representative is not None:
            state = state.representative
        if state.rows_after is None:
            return state.row
        return state.rows_after.get(self._ids[-1] if self._ids else -1)

    def engine(self, *, for_mask: bool = False) -> llguidance.LLMatcher:
        """Return LLGuidance's matcher after it has consumed all tokens; ``for_mask``: it will only compute a mask."""
        matcher = self._matcher
        if matcher is None:
            matcher = self._matcher = self._begin()
        pending = self._ids[self._consumed :] if self._consumed < len(self._ids) else []
        if self._is_stale and (pending or not for_mask):
            matcher.compute_bitmask()
            self._note_computed(matcher)
            if self._is_stale:
                self._forget_engine()
                return self.engine(for_mask=for_mask)
        if pending:
            self._consumed = len(self._ids)
            if not self._consumes(matcher, pending):
                matcher = self._rebuild()
        return matcher

    def note_mask(self, row: npt.NDArray[np.int32], *, is_slow: bool = False) -> None:
        """Record that LLGuidance has just computed a mask, int32 ``[words]``, and cache it for other calls."""
        assert self._matcher is not None
        self._note_computed(self._matcher)
        state, dfa = self._state, self.grammar.dfa
        if dfa is None or not (state.is_shared or state.representative):
            return
        state = state.representative or state
        state.visits += 1
        if is_slow or state.visits > 1:  # most states are visited only once
            # If bytes are forced, LLGuidance chooses their tokens depending on the previous token.
            is_forced = not self.grammar.source.any_tokenization and bool(self._matcher.compute_ff_bytes())
            dfa.cache_mask(state, row, (self._ids[-1] if self._ids else -1) if is_forced else None)

    def _note_computed(self, matcher: llguidance.LLMatcher) -> None:
        if self._is_stale:
            self._is_stale = not self.grammar.source.any_tokenization and bool(matcher.compute_ff_bytes())
        if not self._is_stale:
            self._masked = self._consumed

    def _takes(self, matcher: llguidance.LLMatcher, token_id: int) -> bool:
        """Have LLGuidance consume a token.

        A lexer at its limit may refuse a token without an error. Computing a mask then reports the error.
        """
        taken = bool(matcher.try_consume_tokens([token_id]))
        if not taken and not matcher.is_error():
            self._is_allowed(matcher, token_id)
        return taken

    def _is_allowed(self, matcher: llguidance.LLMatcher, token_id: int) -> bool:
        """Return True if the mask allows a token."""
        mask = matcher.compute_bitmask()
        self._note_computed(matcher)
        return bool(mask[token_id // 8] >> (token_id % 8) & 1)

    def _retry(self, operation: Callable[[llguidance.LLMatcher], T]) -> T:
        """Repeat an operation that failed, with a new lexer or with a fallback grammar, and return its result."""
        matcher = self._rebuild()
        while True:
            result = operation(matcher)
            if not matcher.is_error():
                return result
            matcher = self._go_on(matcher.get_error())

    def _forget_engine(self) -> None:
        """Have LLGuidance consume all tokens again when it is next needed."""
        self._matcher, self._consumed, self._masked, self._is_stale = None, 0, 0, False

    def _begin(self) -> llguidance.LLMatcher:
        """Begin the grammar; if LLGuidance cannot compile it, replay the tokens with a fallback grammar."""
        try:
            return self.grammar.copy()
        except COMPILE_ERRORS as error:
            return self._go_on(str(error))

    def _rebuild(self) -> llguidance.LLMatcher:
        """Replay the tokens with a new lexer, or with a fallback grammar."""
        try:
            matcher = self.grammar.renew()
        except COMPILE_ERRORS as error:
            return self._go_on(str(error))
        return matcher if self._has_replayed(matcher) else self._go_on(matcher.get_error())

    def _go_on(self, problem: str) -> llguidance.LLMatcher:
        """Replay the tokens with the first fallback grammar that accepts them; raises if there is none."""
        problem = (problem.strip() or "it does not accept the tokens when they are replayed")[:300]
        before, failed = (self.grammar, self._state, self._path), self._matcher
        for following in self.grammar.fallbacks.following(self.grammar, may_relax=self._may_relax):
            self.grammar, matcher = following, following.copy()
            self._state, self._path = _UNTRACKED, [_UNTRACKED] * (len(self._ids) + 1)
            if self._has_replayed(matcher):
                before[0].fallbacks.log_failure(self._location, problem.splitlines()[0], following)
                return matcher
        self.grammar, self._state, self._path = before  # whatever needs LLGuidance fails again
        self._matcher = failed
        if failed is None or not failed.is_error():
            self._forget_engine()
        remedy = "Simplify the schema's patterns, or split objects with very many properties"
        raise SchemaTooCostly(f"LLGuidance failed in the arguments: {problem}", self._location, remedy, "llguidance")

    def _has_replayed(self, matcher: llguidance.LLMatcher) -> bool:
        self._matcher, self._consumed = matcher, len(self._ids)
        self._masked, self._is_stale = 0, False
        return self._consumes(matcher, self._ids) and not matcher.is_error()

    def _consumes(self, matcher: llguidance.LLMatcher, ids: list[int]) -> bool:
        """Have LLGuidance consume tokens that were accepted before."""
        if self.watch is None:
            return matcher.try_consume_tokens(ids) == len(ids)
        try:
            for token_id in ids:
                self.watch()
                if not matcher.try_consume_tokens([token_id]):
                    return False
        except ConstrainedK2Error:
            self._forget_engine()
            raise
        return True
