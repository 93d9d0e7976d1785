"""The matcher of one assistant message: accepts tokens, fills bitmasks, rolls back and forks.

matcher.accept_tokens(ids)          accepts all tokens, or changes nothing
matcher.fill_bitmask(bitmask, 0)    the tokens that may follow
matcher.rollback(2)                 as if the last two tokens had not been accepted
"""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from operator import index

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.turn import pipeline
from constrained_k2.turn.automaton import Automaton, CallGrammar, TurnState
from constrained_k2.turn.intent import Intent
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.pipeline import Budget, TokenLimiter
from constrained_k2.vocabulary.vocabulary import Vocabulary

# Tokens that can be rolled back in place. Longer rollbacks replay the turn from its start.
ROLLBACK_WINDOW = 256


class ToolCallMatcher:
    """The state of one turn. Made by :meth:`constrained_k2.CompiledToolCalls.matcher`, one per request.

    Args:
        grammar: The compiled request.
        in_reasoning: True if the prompt opened the reasoning, so that the first token already is reasoning
            (:meth:`constrained_k2.Vocabulary.opens_reasoning`).

    Attributes:
        spec: The request.
        vocabulary: The vocabulary of the token ids.
        begins_in_reasoning: The argument ``in_reasoning``.
        grammar: The compiled request.
        automaton: The wire format's automaton.
        state: The automaton's state before the next token. Only this class changes it.
        budgets: The turn's own budgets, which narrow its masks in this order.
        limits: The client's limits on tokens; None for no limits. A limit that would empty a mask is ignored.
    """

    __slots__ = (
        "_history", "_ids", "automaton", "begins_in_reasoning", "budgets", "grammar", "limits", "spec", "state",
        "vocabulary",
    )  # fmt: skip

    def __init__(self, grammar: CallGrammar, *, in_reasoning: bool = False) -> None:
        self.grammar = grammar
        self.spec: ToolCallSpec = grammar.spec
        self.vocabulary: Vocabulary = grammar.vocabulary
        self.automaton = Automaton(grammar)
        self.begins_in_reasoning = in_reasoning
        self.budgets: tuple[Budget, ...] = ()
        self.limits: TokenLimiter | None = None
        self.state = self.automaton.initial(in_reasoning=in_reasoning)
        self._ids = array("q")
        self._history: deque[TurnState] = deque(maxlen=ROLLBACK_WINDOW)

    # Assigned, since one more Python call would cost each mask 0.1 µs.
    token_set = pipeline.token_set
    reusable_mask = pipeline.reusable_mask
    fill_bitmask = pipeline.fill_bitmask

    @property
    def phase(self) -> Phase:
        """The phase of the next token."""
        return self.state.phase

    @property
    def num_tokens(self) -> int:
        """The number of accepted tokens."""
        return len(self._ids)

    @property
    def arguments(self) -> ArgumentMatcher | None:
        """The engine's matcher: in arguments, and in (or before) an answer with a response format; else None."""
        return self.state.arguments

    def token_ids(self, start: int = 0) -> Sequence[int]:
        """The accepted tokens from index ``start``."""
        return self._ids[start:]

    @property
    def is_compiled(self) -> bool:
        """False if the next step would block on compiling the called tool's schema."""
        state = self.state
        if state.phase is not Phase.CALL_ID:
            return True
        name = self.grammar.call_ids(state.calls).name_of(state.call_id)
        return name is None or self.grammar.is_compiled(name)

    def intent(self) -> Intent | None:
        """The condition for making the call whose name is being written; None if no name is being written.

        The mask allows only declared names. The process that has the logits either keeps the masked row, or allows only
        :attr:`Intent.closing`, which the matcher accepts although its mask never allows it. If the client forbids that
        token, the result is None too.
        """
        found = self.automaton.intent(self.state)
        if found is None or found.closing is None or self.limits is None:
            return found
        return None if self.limits.forbids(self, found.closing) else found

    @property
    def num_calls(self) -> int:
        """The number of whole calls."""
        return self.state.calls

    @property
    def has_declined(self) -> bool:
        """True if a call of this turn was declined."""
        return self.state.has_declined

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
        """Undo the acceptance of the last ``count`` tokens.

        Raises:
            InvalidRequest: Fewer tokens have been accepted, or ``count`` is negative.
            SchemaTooCostly: The engine hit one of its own limits while the turn was replayed. The state is lost then:
                only :meth:`reset` may follow.
        """
        if not 0 <= count <= len(self._ids):
            raise InvalidRequest(f"cannot roll back {count} of {len(self._ids)} tokens", "rollback")
        left = len(self._ids) - count
        if count:
            for budget in self.budgets:
                budget.truncate(left)
        if count > len(self._history):
            ids = self._ids[:left]
            self.reset()
            self.accept_tokens(ids)
            return
        state, in_arguments = self.state, 0
        for _ in range(count):  # a matcher has accepted each token between two states that contain it
            before = self._history.pop()
            matcher = before.arguments
            has_accepted = matcher is not None and matcher is (state.held or state.arguments)
            in_arguments = in_arguments + 1 if has_accepted else 0
            state = before
        if in_arguments and state.arguments is not None:
            state.arguments.rollback(in_arguments)
        self.state = state
        del self._ids[left:]

    def is_terminated(self) -> bool:
        """True if a stop has been accepted. Then no token is accepted any more, though masks still allow the stops."""
        return self.state.phase is Phase.DONE

    def reset(self) -> None:
        """Return to the start of the turn."""
        self.state = self.automaton.initial(in_reasoning=self.begins_in_reasoning)
        self._ids = array("q")
        self._history.clear()
        for budget in self.budgets:
            budget.truncate(0)

    def fork(self) -> "ToolCallMatcher":
        """An independent copy."""
        copy = ToolCallMatcher(self.grammar, in_reasoning=self.begins_in_reasoning)
        copy._ids.extend(self._ids)
        copy.budgets = tuple(budget.fork() for budget in self.budgets)
        copy.limits = self.limits
        arguments = self.state.arguments
        copy.state = self.state._replace(arguments=arguments and arguments.fork())
        return copy

    def forced_tokens(self, limit: int = 64) -> list[int]:
        """At most ``limit`` forced tokens, with which all continuations start, in canonical tokenization; for drafts.

        In a call header they stop at the argument marker, so no schema is compiled. In arguments the engine finds them.
        """
        return self.automaton.forced_tokens(self.state, limit)

    def _accept(self, token_id: int) -> bool:
        token_id = index(token_id)  # raises TypeError before anything has changed
        before = self.state
        after = self.automaton.step(before, token_id)
        if after is None:
            return False
        self._ids.append(token_id)
        self._history.append(before)
        self.state = after
        return True
