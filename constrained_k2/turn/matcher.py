"""The state of one turn: masks, accepted tokens and rollback, over :mod:`constrained_k2.turn.automaton`."""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from operator import index
from typing import Protocol

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.automaton import Automaton, CallGrammar, State
from constrained_k2.turn.intent import Intent
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import Bitmask, TokenSet, bitmask_rows
from constrained_k2.vocabulary.vocabulary import Vocabulary

# Tokens that can be rolled back in place. Longer rollbacks replay the turn from its start.
ROLLBACK_WINDOW = 256


class MaskFilter(Protocol):
    """Removes tokens from masks. What :meth:`ToolCallMatcher.accept_tokens` accepts does not change."""

    def filter_set(self, turn: "ToolCallMatcher", tokens: TokenSet) -> TokenSet:
        """A non-empty subset of a constant phase's tokens; joints are not filtered."""

    def filters_rows(self, turn: "ToolCallMatcher") -> bool:
        """False if :meth:`filter_row` would leave the next token's mask as it is."""

    def filter_row(self, turn: "ToolCallMatcher", row: npt.NDArray[np.int32]) -> None:
        """Remove some but not all tokens from a mask in the arguments, int32 ``[words]``, in place."""

    def truncate(self, num_tokens: int) -> None:
        """Forget all tokens after the first ``num_tokens``."""

    def fork(self) -> "MaskFilter":
        """An independent copy."""


class Restriction(Protocol):
    """Removes tokens that the client forbids from masks. It holds nothing of the turn."""

    def apply(self, turn: "ToolCallMatcher", row: npt.NDArray[np.int32]) -> None:
        """Remove some but not all tokens from a mask of any phase, int32 ``[words]``, in place."""

    def forbids(self, turn: "ToolCallMatcher", token_id: int) -> bool:
        """True if the client forbids a token here."""


class ToolCallMatcher:
    """The state of one turn. Made by :meth:`constrained_k2.CompiledToolCalls.matcher`, one per request.

    Args:
        grammar: The compiled request.
        in_reasoning: True if the prompt began the reasoning, so that the first token already is reasoning
            (:meth:`constrained_k2.Vocabulary.opens_reasoning`).

    Attributes:
        spec: The request.
        vocabulary: The vocabulary of the token ids.
        begins_in_reasoning: The argument ``in_reasoning``.
        mask_filters: Filter the masks, in this order; they belong to this turn.
        restriction: The request's own limits on tokens, kept where a mask leaves the choice; None for none.
    """

    __slots__ = (
        "_automaton", "_grammar", "_history", "_ids", "_state", "_translates",
        "begins_in_reasoning", "mask_filters", "restriction", "spec", "vocabulary",
    )  # fmt: skip

    def __init__(self, grammar: CallGrammar, *, in_reasoning: bool = False) -> None:
        self._grammar = grammar
        self.spec: ToolCallSpec = grammar.spec
        self.vocabulary: Vocabulary = grammar.vocabulary
        self._automaton = Automaton(grammar)
        self._translates = self._automaton.translates_arguments
        self.begins_in_reasoning = in_reasoning
        self.mask_filters: tuple[MaskFilter, ...] = ()
        self.restriction: Restriction | None = None
        self._state = self._automaton.initial(in_reasoning=in_reasoning)
        self._ids = array("q")
        self._history: deque[State] = deque(maxlen=ROLLBACK_WINDOW)

    @property
    def phase(self) -> Phase:
        """The phase of the next token."""
        return self._state.phase

    @property
    def num_tokens(self) -> int:
        """The number of accepted tokens."""
        return len(self._ids)

    @property
    def arguments(self) -> ArgumentMatcher | None:
        """The engine's matcher, in the arguments and where an answer of some form may be written; None elsewhere."""
        return self._state.arguments

    def token_ids(self, start: int = 0) -> Sequence[int]:
        """The accepted tokens from index ``start``."""
        return self._ids[start:]

    @property
    def is_compiled(self) -> bool:
        """False if the next step would block on compiling the called tool's schema."""
        state = self._state
        if state.phase is not Phase.CALL_ID:
            return True
        name = self._grammar.call_ids(state.calls).name_of(state.call_id)
        return name is None or self._grammar.is_compiled(name)

    def token_set(self) -> TokenSet | None:
        """The allowed tokens, without the restriction; None where :attr:`arguments` is an engine's matcher."""
        state = self._state
        if state.arguments is not None:
            return None
        if state.phase is Phase.CALL_ID:
            return self._grammar.call_ids(state.calls).allowed(state.call_id)
        if state.joint is not None:
            return state.joint.tokens
        tokens = self._automaton.sets[state.phase]
        for mask_filter in self.mask_filters:
            tokens = mask_filter.filter_set(self, tokens)
        return tokens

    def intent(self) -> Intent | None:
        """The condition for making the call whose name is being written; None if no name is being written.

        The mask allows only declared names. The process that has the logits either keeps the masked row, or allows only
        :attr:`Intent.closing`, which the matcher accepts although its mask never allows it. If the client forbids that
        token, the result is None too.
        """
        found = self._automaton.intent(self._state)
        if found is None or found.closing is None or self.restriction is None:
            return found
        return None if self.restriction.forbids(self, found.closing) else found

    @property
    def num_calls(self) -> int:
        """The number of whole calls."""
        return self._state.calls

    @property
    def has_declined(self) -> bool:
        """True if a call of this turn was declined."""
        return self._state.has_declined

    def shared_mask(self) -> TokenSet | npt.NDArray[np.int32] | None:
        """The mask, if it is a constant set, or a row that the engine caches and never changes; None if it is neither.

        A cached row, int32 ``[words]``, is read-only; turns that have the same one have the same array.
        """
        if self.restriction is not None:
            return None
        state = self._state
        if state.arguments is None:
            return self.token_set()
        for mask_filter in self.mask_filters:
            if mask_filter.filters_rows(self):
                return None
        row = state.arguments.cached_mask()
        if row is None or row.flags.writeable or self._automaton.changes(state, row):
            return None
        return row

    def finish_row(self, row: npt.NDArray[np.int32]) -> None:
        """Turn a mask that the engine computed, int32 ``[words]``, into the turn's, in place."""
        if self._translates or self._state.phase is not Phase.ARGUMENTS:
            self._automaton.translate(self._state, row)
        if self.restriction is not None:
            self.restriction.apply(self, row)
        for mask_filter in self.mask_filters:
            mask_filter.filter_row(self, row)

    def fill_bitmask(self, bitmask: Bitmask, row: int = 0) -> None:
        """Write the allowed tokens into one row.

        Where the engine forces a text, the mask allows only its canonical tokenization, while :meth:`accept_tokens`
        accepts any: whatever the mask allows is accepted, but not the other way round.

        Args:
            bitmask: int32 ``[rows, words_per_row(size)]``, numpy or CPU torch; bit 1 = allowed.
            row: The row's index.

        Raises:
            SchemaTooCostly: The engine hit one of its own limits in the arguments.
        """
        rows = bitmask_rows(bitmask, self.vocabulary.size)
        if not self.try_fill(rows[row]):
            assert self._state.arguments is not None
            self._state.arguments.fill(rows[row], rows.address + row * rows.row_bytes)
            self.finish_row(rows[row])

    def try_fill(self, row: npt.NDArray[np.int32]) -> bool:
        """Write the allowed tokens into a mask, int32 ``[words]``; False if the engine has to compute them."""
        arguments = self._state.arguments
        if arguments is None:
            tokens = self.token_set()
            assert tokens is not None
            tokens.fill(row)
            if self.restriction is not None:
                self.restriction.apply(self, row)
            return True
        cached = arguments.cached_mask()
        if cached is None:
            return False
        row[:] = cached
        if (
            self._translates
            or self._state.phase is not Phase.ARGUMENTS
            or self.mask_filters
            or self.restriction is not None
        ):
            self.finish_row(row)
        return True

    def accept_tokens(self, ids: Iterable[int]) -> bool:
        """Advance over tokens, any integers; False, or an error, leaves the state as it was.

        Raises:
            SchemaTooCostly: The engine hit one of its own limits in the arguments.
            UnsupportedSchema: The called tool's schema has no grammar (only if it was compiled unchecked).
        """
        start = self.num_tokens
        try:
            for token_id in ids:
                if not self._accept(token_id):
                    self.rollback(self.num_tokens - start)
                    return False
        except ConstrainedK2Error:
            self.rollback(self.num_tokens - start)
            raise
        return True

    def validate_tokens(self, ids: Iterable[int]) -> list[int]:
        """The longest prefix of ``ids`` that would be accepted; the state stays unchanged."""
        legal: list[int] = []
        try:
            for token_id in ids:
                if not self._accept(token_id):
                    break
                legal.append(token_id)
        finally:
            self.rollback(len(legal))
        return legal

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` accepted tokens.

        Raises:
            InvalidRequest: Fewer have been accepted, or ``count`` is negative.
            SchemaTooCostly: The engine hit one of its own limits while the turn was replayed. The state is lost then:
                only :meth:`reset` may follow.
        """
        if not 0 <= count <= len(self._ids):
            raise InvalidRequest(f"cannot roll back {count} of {len(self._ids)} tokens", "rollback")
        left = len(self._ids) - count
        if count:
            for mask_filter in self.mask_filters:
                mask_filter.truncate(left)
        if count > len(self._history):
            ids = self._ids[:left]
            self.reset()
            self.accept_tokens(ids)
            return
        state, in_arguments = self._state, 0
        for _ in range(count):
            before = self._history.pop()
            in_arguments = in_arguments + 1 if before.arguments is state.arguments else 0
            state = before
        if in_arguments and state.arguments is not None:
            state.arguments.rollback(in_arguments)
        self._state = state
        del self._ids[left:]

    def is_terminated(self) -> bool:
        """True if a stop has been accepted. Then no token is accepted any more, though masks still allow the stops."""
        return self._state.phase is Phase.DONE

    def reset(self) -> None:
        """Return to the start of the turn."""
        self._state = self._automaton.initial(in_reasoning=self.begins_in_reasoning)
        self._ids = array("q")
        self._history.clear()
        for mask_filter in self.mask_filters:
            mask_filter.truncate(0)

    def fork(self) -> "ToolCallMatcher":
        """An independent copy."""
        copy = ToolCallMatcher(self._grammar, in_reasoning=self.begins_in_reasoning)
        copy._ids.extend(self._ids)
        copy.mask_filters = tuple(mask_filter.fork() for mask_filter in self.mask_filters)
        copy.restriction = self.restriction
        arguments = self._state.arguments
        copy._state = self._state._replace(arguments=arguments and arguments.fork())
        return copy

    def forced_tokens(self, limit: int = 64) -> list[int]:
        """At most ``limit`` tokens of the only possible continuation, in its likely tokenization; for draft tokens.

        It ends where arguments begin at the latest, since it compiles no schema.
        """
        return self._automaton.forced_tokens(self._state, limit)

    def _accept(self, token_id: int) -> bool:
        token_id = index(token_id)  # raises TypeError before anything has changed
        before = self._state
        after = self._automaton.step(before, token_id)
        if after is None:
            return False
        self._ids.append(token_id)
        self._history.append(before)
        self._state = after
        return True
