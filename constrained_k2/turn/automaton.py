"""State machine over the tokens of one assistant message: reasoning, text, call headers, arguments.

Every transition of a format begins with a special token, so the automaton works on tokens. A grammar engine is used
only for a call's arguments, and for an answer with a response format.

TEXT   <|tool_calls_section_begin|> SECTION <|tool_call_begin|>          CALL_ID
       functions.move:0                     <|tool_call_argument_begin|> ARGUMENTS
       {"to": "up"}                         <|tool_call_end|>            BETWEEN
       <|tool_calls_section_end|>           CLOSED                       <|im_end|>  DONE
"""

from itertools import chain
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn.call_id import CallIdMatcher
from constrained_k2.turn.intent import Intent
from constrained_k2.turn.phases import Phase, TurnTable
from constrained_k2.turn.repeats import call_key
from constrained_k2.turn.transitions import TransitionTokens
from constrained_k2.vocabulary.bitmask import TokenSet
from constrained_k2.vocabulary.vocabulary import Vocabulary


class CallGrammar(Protocol):
    """The interface of a compiled request; :class:`constrained_k2.CompiledToolCalls` implements and documents it."""

    spec: ToolCallSpec
    vocabulary: Vocabulary
    turn_table: TurnTable
    call_threshold: float

    def call_ids(self, call: int) -> CallIdMatcher: ...  # noqa: D102
    def precompile(self, name: str) -> None: ...  # noqa: D102
    def is_compiled(self, name: str) -> bool: ...  # noqa: D102
    def arguments(self, name: str) -> ArgumentMatcher: ...  # noqa: D102
    def answer(self) -> ArgumentMatcher | None: ...  # noqa: D102


class TurnState(NamedTuple):
    """The automaton's whole state. A token that only extends text, arguments or an answer does not change it."""

    phase: Phase
    calls: int = 0
    call_id: bytes = b""
    arguments: ArgumentMatcher | None = None  # in arguments, and in or before an answer with a response format
    transition: TransitionTokens | None = None  # the state within a transition of several tokens
    has_declined: bool = False  # the section was closed within a call
    name: str = ""  # the called function, in the arguments
    made: frozenset[bytes] = frozenset()  # digests of the calls so far, if none may be repeated
    held: ArgumentMatcher | None = None  # in REPEATED: the matcher that has accepted the arguments' last token


class Automaton:
    """The transitions of a compiled request's turns; stateless.

    Attributes:
        translates_arguments: True if an engine's masks of arguments need :meth:`translate`.
    """

    __slots__ = (
        "_argument_markers", "_engine_stop", "_forbids_repeats", "_grammar", "_last_table", "_markers", "_max_calls",
        "_table", "_vocabulary", "translates_arguments",
    )  # fmt: skip

    def __init__(self, grammar: CallGrammar) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._markers = markers = grammar.vocabulary.format
        self._table = grammar.turn_table
        self._last_table = grammar.turn_table.last or grammar.turn_table
        self._max_calls = inf if grammar.spec.max_calls is None else grammar.spec.max_calls
        self._forbids_repeats = grammar.spec.repeated_calls == "forbid"
        self._argument_markers = markers.argument_markers
        self.translates_arguments = markers.engine_stop != markers.call_end
        self._engine_stop = markers.engine_stop >> 5, np.uint32(1 << (markers.engine_stop & 31)).view(np.int32)

    def initial(self, *, in_reasoning: bool) -> TurnState:
        """The state at the start of a turn, with a new engine matcher if the request has a response format."""
        return TurnState(Phase.REASONING) if in_reasoning else TurnState(Phase.START, arguments=self._grammar.answer())

    def step(self, state: TurnState, token_id: int) -> TurnState | None:
        """The state after a token; None if the token is illegal."""
        phase = state.phase
        if state.arguments is not None:
            return self._step_engine(state, token_id)
        if phase is Phase.CALL_ID:
            return self._step_call_id(state, token_id)
        if state.transition is not None:
            after = state.transition.after.get(token_id)
            return None if after is None else self._enter(after, state)
        if phase is Phase.DONE or not 0 <= token_id < self._vocabulary.size:
            return None
        table = self._table if state.calls < self._max_calls else self._last_table
        tokens = table.sets[phase]
        if (token_id in tokens.listed) is tokens.complement:  # ``in tokens`` without its call
            return None
        after = table.moves.get((phase, token_id))
        if after is not None:
            return self._enter(after, state)
        return TurnState(Phase.TEXT, state.calls) if phase is Phase.START else state

    def tokens(self, state: TurnState) -> TokenSet:
        """The allowed tokens of a constant phase; not inside a call header or a transition."""
        return (self._table if state.calls < self._max_calls else self._last_table).sets[state.phase]

    def _enter(self, after: TransitionTokens | Phase, before: TurnState) -> TurnState:
        """The state after the latest token of a transition: the next phase, or a state within the transition."""
        calls, made = before.calls, before.made
        has_declined = before.has_declined or before.phase is Phase.REPEATED
        if isinstance(after, TransitionTokens):
            return TurnState(Phase.TRANSITION, calls, transition=after, has_declined=has_declined, made=made)
        if after is Phase.TEXT:
            return TurnState(Phase.TEXT, calls, arguments=self._grammar.answer())
        return TurnState(after, calls + (after is Phase.BETWEEN), has_declined=has_declined, made=made)

    def _step_engine(self, state: TurnState, token_id: int) -> TurnState | None:
        phase, matcher = state.phase, state.arguments
        assert matcher is not None
        if phase is Phase.ARGUMENTS:
            if token_id == self._markers.call_end and matcher.is_complete():
                return self._end_call(state, matcher)
            may_hold = self._vocabulary.is_ordinary(token_id) or token_id in self._argument_markers
            if not may_hold or not matcher.accept(token_id):
                return None
            return self._unless_repeated(state, matcher) if state.made and not self._argument_markers else state
        if self._vocabulary.is_ordinary(token_id):
            if not matcher.accept(token_id):
                return None
            return state if phase is Phase.ANSWER else TurnState(Phase.ANSWER, state.calls, arguments=matcher)
        is_end = token_id in self._table.sets[Phase.ANSWER] and matcher.is_complete()
        after = (self._table.answered if is_end else self._table.moves).get((phase, token_id))
        return None if after is None else self._enter(after, state)

    def _end_call(self, state: TurnState, matcher: ArgumentMatcher) -> TurnState:
        """The state after the marker that begins the end of a call.

        In XTML more arguments may follow complete ones, so a repeated call is detected only at this marker. The marker
        also begins the end of the section, which alone may follow a repeated call.
        """
        phase, call_end = Phase.ARGUMENTS, self._markers.call_end
        if self._forbids_repeats:
            key = call_key(state.name, matcher.written(), self._vocabulary)
            phase = Phase.REPEATED if key in state.made else phase
            state = state._replace(phase=phase, made=state.made | {key})
        return self._enter(self._table.moves[phase, call_end], state)

    def _unless_repeated(self, state: TurnState, matcher: ArgumentMatcher) -> TurnState:
        """The state after a token of JSON arguments; REPEATED if they are complete and repeat an earlier call."""
        try:
            is_whole = matcher.is_complete()
        except ConstrainedK2Error:
            matcher.rollback(1)  # the token is not in the caller's history yet, so the caller cannot undo it
            raise
        if not is_whole or call_key(state.name, matcher.written(), self._vocabulary) not in state.made:
            return state
        return TurnState(Phase.REPEATED, state.calls, made=state.made, held=matcher)

    def translate(self, state: TurnState, row: npt.NDArray[np.int32]) -> None:
        """Turn an engine's mask, int32 ``[words]``, into the mask of the turn, in place.

        The engine's stop token is replaced by the tokens that begin the end of the arguments or of the answer. Before
        an answer's first token, the tokens that open a call or reasoning instead are added.
        """
        word, bit = self._engine_stop
        phase = state.phase
        if row[word] & bit:
            row[word] &= ~bit
            self._table.sets[phase if phase is Phase.ARGUMENTS else Phase.ANSWER].add_to(row)
        if phase is not Phase.ARGUMENTS and phase is not Phase.ANSWER:
            self._table.sets[phase].add_to(row)

    def changes(self, state: TurnState, row: npt.NDArray[np.int32]) -> bool:
        """True if :meth:`translate` would change a mask."""
        word, bit = self._engine_stop
        phase = state.phase
        if phase is Phase.ARGUMENTS:
            return self.translates_arguments and bool(row[word] & bit)
        return phase is not Phase.ANSWER or bool(row[word] & bit)

    def _step_call_id(self, state: TurnState, token_id: int) -> TurnState | None:
        call_ids = self._grammar.call_ids(state.calls)
        if token_id == self._markers.argument_begin:
            name = call_ids.name_of(state.call_id)
            if name is None:
                return None
            arguments = self._grammar.arguments(name)
            return TurnState(Phase.ARGUMENTS, state.calls, arguments=arguments, name=name, made=state.made)
        if token_id == self._table.closing and call_ids.meant(state.call_id) is not None:
            return self._enter(self._table.moves[Phase.CALL_ID, token_id], state._replace(has_declined=True))
        step = call_ids.step(state.call_id, token_id)
        if step is None:
            return None
        call_id, name = step
        if name is not None:
            self._grammar.precompile(name)
        return TurnState(Phase.CALL_ID, state.calls, call_id, made=state.made)

    def intent(self, state: TurnState) -> Intent | None:
        """See :meth:`constrained_k2.ToolCallMatcher.intent`."""
        if state.phase is not Phase.CALL_ID or not self._grammar.call_threshold:
            return None
        meant = self._grammar.call_ids(state.calls).meant(state.call_id)
        return None if meant is None else Intent(meant, self._table.closing, self._grammar.call_threshold)

    def forced_tokens(self, state: TurnState, limit: int) -> list[int]:
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
                if self._argument_markers:
                    return forced[:limit]  # more XTML arguments may follow
                token = self._markers.call_end  # nothing else follows a complete object
            else:
                only = self.tokens(state).only if state.transition is None else state.transition.forced
                if only is None or state.phase is Phase.DONE:
                    break
                token = only
            forced.append(token)
            after = self.step(state, token)
            assert after is not None
            state = after
        return forced

    def _forced_answer(self, state: TurnState) -> list[int]:
        assert state.arguments is not None
        if state.phase is not Phase.ANSWER and self._table.sets[state.phase].listed:
            return []  # the model may open a call instead of the answer
        return state.arguments.forced_tokens()

    def _forced_call_id(self, state: TurnState) -> list[int]:
        ahead, is_whole = self._grammar.call_ids(state.calls).forced(state.call_id)
        ids, left = list[int](), len(state.call_id)  # bytes of the call id that the next tokens repeat
        text = (state.call_id + ahead).decode("utf-8", "ignore")
        pieces = self._markers.header_pieces.findall(text)
        for token_id in chain.from_iterable(map(self._vocabulary.encode, pieces)):
            raw = self._vocabulary.ordinary_bytes(token_id)
            if left <= 0:
                ids.append(token_id)
            elif left < len(raw):  # another tokenization: the written call id ends within this token
                try:
                    ids += self._vocabulary.encode(raw[left:].decode())
                except UnicodeDecodeError:  # the call id ends within a character
                    return []
            left -= len(raw)
        if is_whole:
            return [*ids, self._markers.argument_begin]
        # If the last piece is unfinished, its last token is dropped: it may become part of a longer token.
        is_end_of_piece = self._markers.header_pieces.findall(f"{text}x")[:-1] == pieces
        return ids if is_end_of_piece else ids[:-1]
