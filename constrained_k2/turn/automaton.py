"""The wire-format automaton of one turn, around an engine's matcher for the arguments, or for an answer with a form.

Every joint of the format is a special token, so the automaton works on tokens; a grammar engine is used only between
``<|tool_call_argument_begin|>`` and ``<|tool_call_end|>``, and for the text of a turn whose answer has a form.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.call_id import CallIdMatcher
from constrained_k2.turn.phases import Phase, constant_moves
from constrained_k2.vocabulary.bitmask import TokenSet
from constrained_k2.vocabulary.vocabulary import Vocabulary


class CallGrammar(Protocol):
    """A compiled request, as :class:`constrained_k2.CompiledToolCalls` implements and documents it."""

    spec: ToolCallSpec
    vocabulary: Vocabulary
    phase_sets: Mapping[Phase, TokenSet]

    def call_ids(self, call: int) -> CallIdMatcher: ...  # noqa: D102
    def precompile(self, name: str) -> None: ...  # noqa: D102
    def is_compiled(self, name: str) -> bool: ...  # noqa: D102
    def arguments(self, name: str) -> ArgumentMatcher: ...  # noqa: D102
    def answer(self) -> ArgumentMatcher | None: ...  # noqa: D102


class State(NamedTuple):
    """The automaton's whole state. The object stays the same while only text, arguments or an answer grow."""

    phase: Phase
    calls: int = 0
    call_id: bytes = b""
    arguments: ArgumentMatcher | None = None  # also of an answer with a form, from before its first token on


class Automaton:
    """The transitions of a compiled request's turns; stateless."""

    __slots__ = ("_engine_stop", "_grammar", "_markers", "_moves", "_sets", "_vocabulary")

    def __init__(self, grammar: CallGrammar) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._markers = grammar.vocabulary.format
        self._sets = grammar.phase_sets
        self._moves = constant_moves(self._markers)
        self._engine_stop = self._markers.call_end >> 5, np.uint32(1 << (self._markers.call_end & 31)).view(np.int32)

    def initial(self, *, in_reasoning: bool) -> State:
        """The state at the start of a turn, with an engine's matcher of its own."""
        return State(Phase.REASONING) if in_reasoning else State(Phase.START, arguments=self._grammar.answer())

    def step(self, state: State, token_id: int) -> State | None:
        """The state after a token; None if the token is illegal."""
        phase = state.phase
        if state.arguments is not None:
            if phase is not Phase.ARGUMENTS:
                return self._step_answer(state, token_id)
            if token_id == self._markers.call_end:
                return State(Phase.BETWEEN, state.calls + 1) if state.arguments.is_complete() else None
            return state if self._vocabulary.is_ordinary(token_id) and state.arguments.accept(token_id) else None
        if phase is Phase.CALL_ID:
            return self._step_call_id(state, token_id)
        if phase is Phase.DONE or not 0 <= token_id < self._vocabulary.size:
            return None
        tokens = self._sets[phase]
        if (token_id in tokens.listed) is tokens.complement:  # ``in tokens`` without its call
            return None
        if token_id == self._markers.call_begin:
            return State(Phase.CALL_ID, state.calls)
        next_phase = self._moves.get((phase, token_id), Phase.TEXT if phase is Phase.START else phase)
        if next_phase is Phase.TEXT and phase is Phase.REASONING:
            return State(Phase.TEXT, state.calls, arguments=self._grammar.answer())
        return state if next_phase is phase else State(next_phase, state.calls)

    def _step_answer(self, state: State, token_id: int) -> State | None:
        phase, matcher = state.phase, state.arguments
        assert matcher is not None
        if self._vocabulary.is_ordinary(token_id):
            if not matcher.accept(token_id):
                return None
            return state if phase is Phase.ANSWER else State(Phase.ANSWER, state.calls, arguments=matcher)
        if token_id in self._sets[Phase.ANSWER]:
            return State(Phase.DONE, state.calls) if matcher.is_complete() else None
        if phase is Phase.ANSWER or token_id not in self._sets[phase]:
            return None
        return State(self._moves[phase, token_id], state.calls)

    def open_answer(self, state: State, row: npt.NDArray[np.int32]) -> None:
        """Turn an engine's mask of an answer, int32 ``[words]``, into the turn's, in place.

        The engine's stop token stands for the stops; before the first token, what may open instead is allowed too.
        """
        word, bit = self._engine_stop
        if row[word] & bit:
            row[word] &= ~bit
            self._sets[Phase.ANSWER].add_to(row)
        if state.phase is not Phase.ANSWER:
            self._sets[state.phase].add_to(row)

    def _step_call_id(self, state: State, token_id: int) -> State | None:
        call_ids = self._grammar.call_ids(state.calls)
        if token_id == self._markers.argument_begin:
            name = call_ids.name_of(state.call_id)
            if name is None:
                return None
            return State(Phase.ARGUMENTS, state.calls, arguments=self._grammar.arguments(name))
        step = call_ids.step(state.call_id, token_id)
        if step is None:
            return None
        call_id, name = step
        if name is not None:
            self._grammar.precompile(name)
        return State(Phase.CALL_ID, state.calls, call_id)

    def forced_tokens(self, state: State, limit: int) -> list[int]:
        """See :meth:`constrained_k2.ToolCallMatcher.forced_tokens`."""
        forced: list[int] = []
        while len(forced) < limit:
            if state.phase is Phase.CALL_ID:
                return (forced + self._forced_call_id(state))[:limit]
            if state.arguments is not None:
                if state.phase is not Phase.ARGUMENTS:
                    return forced + self._forced_answer(state)[: limit - len(forced)]
                ahead = state.arguments.forced_tokens()
                if ahead or not state.arguments.is_complete():
                    return (forced + ahead)[:limit]
                token = self._markers.call_end  # nothing else follows a complete object
            elif state.phase is Phase.DONE or (only := self._sets[state.phase].only) is None:
                break
            else:
                token = only
            forced.append(token)
            after = self.step(state, token)
            assert after is not None
            state = after
        return forced

    def _forced_answer(self, state: State) -> list[int]:
        assert state.arguments is not None
        if state.phase is not Phase.ANSWER and self._sets[state.phase].listed:
            return []  # a call may be opened instead
        return state.arguments.forced_tokens()

    def _forced_call_id(self, state: State) -> list[int]:
        ahead, is_whole = self._grammar.call_ids(state.calls).forced(state.call_id)
        ids, written = [], 0
        for token_id in self._vocabulary.encode((state.call_id + ahead).decode("utf-8", "ignore")):
            if written >= len(state.call_id):
                ids.append(token_id)
            written += len(self._vocabulary.ordinary_bytes(token_id))
        # The last token of an unfinished call id may change once its rest is known.
        return [*ids, self._markers.argument_begin] if is_whole else ids[:-1]
