"""The wire-format automaton of one turn, around an engine's matcher for the arguments.

Every joint of the format is a token of its own, so the automaton works on tokens: outside a call each phase allows a
constant set, in a call's header the set comes from :mod:`constrained_k2.header`, and only between
``<|tool_call_argument_begin|>`` and ``<|tool_call_end|>`` is a grammar engine asked anything.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from operator import index
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from constrained_k2.bitmask import Bitmask, TokenSet, bitmask_rows
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.phases import Phase, constant_moves
from constrained_k2.protocols import CallGrammar, Narrowing
from constrained_k2.tools import ToolCallSpec
from constrained_k2.vocabulary import Vocabulary

# Tokens that can be taken back in place. Further back the turn is replayed from its start: right, only slower.
ROLLBACK_WINDOW = 256


class State(NamedTuple):
    """All that the automaton remembers. The same object stays while only text or arguments grow."""

    phase: Phase
    calls: int = 0
    header: bytes = b""
    arguments: ArgumentMatcher | None = None


class ToolCallMatcher:
    """The state of one turn. Made by :meth:`constrained_k2.CompiledToolCalls.matcher`, one per request.

    Args:
        grammar: The compiled request.
        in_reasoning: Whether the prompt ended in ``<think>``, so that the first token already is reasoning.
    """

    __slots__ = (
        "_grammar", "_history", "_ids", "_initial", "_markers", "_moves", "_narrowing", "_sets", "_state",
        "_vocabulary",
    )  # fmt: skip

    def __init__(self, grammar: CallGrammar, *, in_reasoning: bool = False) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._markers = grammar.vocabulary.format
        self._sets = grammar.phase_sets
        self._moves = constant_moves(self._markers)
        self._initial = State(Phase.REASONING if in_reasoning else Phase.OPEN)
        self._state = self._initial
        self._ids = array("q")
        self._history: deque[State] = deque(maxlen=ROLLBACK_WINDOW)
        self._narrowing: Narrowing | None = None

    @property
    def phase(self) -> Phase:
        """Where the next token stands."""
        return self._state.phase

    @property
    def num_tokens(self) -> int:
        """How many tokens have been accepted."""
        return len(self._ids)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that it matches over."""
        return self._vocabulary

    @property
    def arguments(self) -> ArgumentMatcher | None:
        """The engine's matcher inside the arguments; None elsewhere."""
        return self._state.arguments

    @property
    def spec(self) -> ToolCallSpec:
        """The request that this is a turn of."""
        return self._grammar.spec

    def token_ids(self, start: int = 0) -> Sequence[int]:
        """The accepted tokens from the ``start``-th on."""
        return self._ids[start:]

    def narrow_by(self, narrowing: Narrowing | None) -> None:
        """Have masks narrowed from now on; what :meth:`accept_tokens` takes stays what is legal.

        Args:
            narrowing: Of this turn, owned from here on; None for none.
        """
        self._narrowing = narrowing

    @property
    def is_prepared(self) -> bool:
        """Whether the next token's step waits for no compilation: only that into arguments may."""
        state = self._state
        if state.phase is not Phase.HEADER:
            return True
        name = self._grammar.headers(state.calls).name_of(state.header)
        return name is None or self._grammar.is_prepared(name)

    def token_set(self) -> TokenSet | None:
        """The tokens for the mask where no engine is needed to tell them; None inside the arguments."""
        state = self._state
        if state.phase is Phase.ARGUMENTS:
            return None
        if state.phase is Phase.HEADER:
            return self._grammar.headers(state.calls).allowed(state.header)
        tokens = self._sets[state.phase]
        return tokens if self._narrowing is None else self._narrowing.token_set(self, tokens)

    def narrow(self, row: npt.NDArray[np.int32]) -> None:
        """Narrow a mask that the engine has filled inside the arguments, int32 ``[words]``, where that is asked for."""
        if self._narrowing is not None:
            self._narrowing.narrow(self, row)

    def fill_bitmask(self, bitmask: Bitmask, row: int = 0) -> None:
        """Write the allowed tokens into one row.

        Where the engine has a stretch forced to one spelling, the mask holds the canonical token of it only, and
        :meth:`accept_tokens` takes any tokenization: what the mask allows is always accepted, not the other way round.

        Args:
            bitmask: int32 ``[rows, words_per_row(size)]``, numpy or CPU torch; bit 1 = allowed.
            row: Which row.

        Raises:
            SchemaTooCostly: The engine hit one of its own limits inside the arguments.
            ValueError: The bitmask has another shape, type or layout.
            IndexError: It has no such row.
        """
        rows = bitmask_rows(bitmask, self._vocabulary.size)
        if not self.fill_at_hand(rows[row]):
            assert self._state.arguments is not None
            self._state.arguments.fill(rows[row], rows.address + row * rows.row_bytes)
            self.narrow(rows[row])

    def fill_at_hand(self, row: npt.NDArray[np.int32]) -> bool:
        """Write the allowed tokens into a mask, int32 ``[words]``, where no engine must compute them; else False."""
        arguments = self._state.arguments
        if arguments is None:
            tokens = self.token_set()
            assert tokens is not None
            tokens.fill(row)
            return True
        known = arguments.known_mask()
        if known is None:
            return False
        row[:] = known
        if self._narrowing is not None:
            self._narrowing.narrow(self, row)
        return True

    def accept_tokens(self, ids: Iterable[int]) -> bool:
        """Take tokens.

        Args:
            ids: Token ids in the order of generation. Any integer is taken to be read; an illegal one is refused.

        Returns:
            Whether all were legal. If not, the state is as it was; so it is when an error is raised.

        Raises:
            SchemaTooCostly: The engine hit one of its own limits inside the arguments.
            UnsupportedSchema: The called tool's schema has no grammar (only where it was compiled unchecked).
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
        """The longest prefix of ``ids`` that could be accepted; the state stays as it is.

        Raises:
            SchemaTooCostly: As :meth:`accept_tokens`.
            UnsupportedSchema: As :meth:`accept_tokens`.
        """
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
        """Take back the last ``count`` accepted tokens.

        Raises:
            InvalidRequest: Fewer have been accepted, or ``count`` is negative.
            SchemaTooCostly: The engine hit one of its own limits while the turn was replayed. Where the turn stands
                is lost then: only :meth:`reset` may follow.
        """
        if not 0 <= count <= len(self._ids):
            raise InvalidRequest(f"cannot roll back {count} of {len(self._ids)} tokens", "rollback")
        if count and self._narrowing is not None:
            self._narrowing.roll_back(len(self._ids) - count)
        if count > len(self._history):
            ids = self._ids[: len(self._ids) - count]
            self.reset()
            self.accept_tokens(ids)
            return
        state, in_arguments = self._state, 0
        for _ in range(count):
            before = self._history.pop()
            if before is state and state.arguments is not None:
                in_arguments += 1
            elif before is not state:
                _rollback_arguments(state, in_arguments)
                state, in_arguments = before, 0
        _rollback_arguments(state, in_arguments)
        self._state = state
        del self._ids[len(self._ids) - count :]

    def is_terminated(self) -> bool:
        """Whether a stop has been accepted: nothing can be accepted any more, though masks still allow the stops."""
        return self._state.phase is Phase.DONE

    def reset(self) -> None:
        """Back to the start of the turn."""
        self._state = self._initial
        self._ids = array("q")
        self._history = deque(maxlen=ROLLBACK_WINDOW)
        if self._narrowing is not None:
            self._narrowing.roll_back(0)

    def fork(self) -> "ToolCallMatcher":
        """An independent copy: nothing done to one is seen by the other."""
        copy = ToolCallMatcher(self._grammar)
        copy._initial = self._initial
        copy._ids.extend(self._ids)
        copy._narrowing = self._narrowing and self._narrowing.fork()
        arguments = self._state.arguments
        copy._state = self._state._replace(arguments=arguments and arguments.fork())
        return copy

    def forced_tokens(self, limit: int = 64) -> list[int]:
        """The tokens that must come next, as the model's tokenizer most likely spells them; the state stays as it is.

        For proposing drafts. No schema is compiled for it, so they end at the latest where arguments begin.

        Args:
            limit: How many at most.
        """
        forced: list[int] = []
        state = self._state
        while len(forced) < limit:
            if state.phase is Phase.HEADER:
                return (forced + self._forced_header(state))[:limit]
            if state.arguments is not None:
                ahead = state.arguments.forced_tokens()
                if ahead or not state.arguments.is_complete():
                    return (forced + ahead)[:limit]
                token = self._markers.call_end  # nothing follows a whole object
            elif state.phase is Phase.DONE or (only := self._sets[state.phase].only) is None:
                return forced
            else:
                token = only
            forced.append(token)
            after = self._step(state, token)
            assert after is not None
            state = after
        return forced

    def _forced_header(self, state: State) -> list[int]:
        ahead, is_whole = self._grammar.headers(state.calls).forced(state.header)
        ids, written = [], 0
        for token_id in self._vocabulary.encode((state.header + ahead).decode("utf-8", "ignore")):
            if written >= len(state.header):
                ids.append(token_id)
            written += len(self._vocabulary.ordinary_bytes(token_id))
        # What is not whole may be spelled in another way once its rest is known.
        return [*ids, self._markers.argument_begin] if is_whole else ids[:-1]

    def _accept(self, token_id: int) -> bool:
        token_id = index(token_id)  # a TypeError for what is no integer, before anything has changed
        before = self._state
        after = self._step_arguments(before, token_id) if before.arguments is not None else self._step(before, token_id)
        if after is None:
            return False
        self._ids.append(token_id)
        self._history.append(before)
        self._state = after
        return True

    def _step(self, state: State, token_id: int) -> State | None:
        """The state behind a token; None if the token is illegal."""
        phase = state.phase
        if phase is Phase.ARGUMENTS:
            return self._step_arguments(state, token_id)
        if phase is Phase.HEADER:
            return self._step_header(state, token_id)
        if phase is Phase.DONE or not 0 <= token_id < self._vocabulary.size:
            return None
        tokens = self._sets[phase]
        if (token_id in tokens.listed) is tokens.complement:  # as ``in``, without its call
            return None
        if token_id == self._markers.call_begin:
            return State(Phase.HEADER, state.calls)
        next_phase = self._moves.get((phase, token_id), Phase.TEXT if phase is Phase.OPEN else phase)
        return state if next_phase is phase else State(next_phase, state.calls)

    def _step_header(self, state: State, token_id: int) -> State | None:
        headers = self._grammar.headers(state.calls)
        if token_id == self._markers.argument_begin:
            name = headers.name_of(state.header)
            if name is None:
                return None
            return State(Phase.ARGUMENTS, state.calls, arguments=self._grammar.arguments(name))
        step = headers.step(state.header, token_id)
        if step is None:
            return None
        header, name = step
        if name is not None:
            self._grammar.prepare(name)
        return State(Phase.HEADER, state.calls, header)

    def _step_arguments(self, state: State, token_id: int) -> State | None:
        assert state.arguments is not None
        if token_id == self._markers.call_end:
            return State(Phase.BETWEEN, state.calls + 1) if state.arguments.is_complete() else None
        if not self._vocabulary.is_ordinary(token_id):
            return None
        return state if state.arguments.accept(token_id) else None


def _rollback_arguments(state: State, count: int) -> None:
    if count and state.arguments is not None:
        state.arguments.rollback(count)
