"""Adapts one request's matcher to vLLM's interface of structured-output grammars.

vLLM's scheduler asks it for a bitmask row per draft position, advances it over drafts to do so and rolls them back, and
advances it over what was sampled. vLLM ends a request whose grammar refuses what was sampled, but an exception would
end the engine: an error here ends its own request only.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.intent import Intent
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.pipeline import fill_bitmasks
from constrained_k2.vllm_plugin.shared.counters import MASK_COUNTS, fill
from constrained_k2.vllm_plugin.shared.log import logger
from constrained_k2.vllm_plugin.shared.matcher_factory import FAILED, GuardedMatcher
from constrained_k2.vocabulary.bitmask import TokenSet, empty_rows


class NamedToken(NamedTuple):
    """A mask of a token of a function's name.

    Attributes:
        grammar: The turn's.
        position: The number of tokens before it, drafts among them.
        call: The number of calls before it.
        intent: What decides whether the call is made.
    """

    grammar: "ToolCallGrammar"
    position: int
    call: int
    intent: Intent


class ToolCallGrammar(GuardedMatcher, StructuredOutputGrammar):
    """A turn under vLLM's scheduler; it owns the matcher.

    If a mask cannot be computed, or is empty, its row allows the stop alone, and no token is accepted at its position:
    the request ends with an error when that stop is sampled. After a draft that is not accepted, such a mask ends
    nothing.
    """

    def __init__(
        self,
        matcher: ToolCallMatcher,
        stop: TokenSet,
        request_id: str,
        prompt: Sequence[int] | None = None,
        named: list[NamedToken] | None = None,
    ) -> None:
        super().__init__(matcher, stop)
        self._named = [] if named is None else named  # of the step, and all requests
        self._drafter = Drafter(matcher, prompt or ())
        self.request_id = request_id
        self._after_stop = 0  # stops taken after the first one
        self.unmasked: set[int] = set()  # numbers of tokens after which the grammar has no mask
        self._reported = False

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:  # noqa: ARG002 - vLLM's signature
        """Accept all tokens or, if one is illegal or the engine fails, none of them; vLLM then ends the request."""
        return self.attempt(self._accept, tokens) is True

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The longest prefix that could be accepted; the state stays as it is."""
        legal = self.attempt(self._validate, tokens)
        return [] if legal is FAILED else legal

    def draft(self, limit: int, after: Sequence[int] = ()) -> list[int]:
        """At most ``limit`` tokens that may follow those of ``after``, legal in this order; the state stays."""
        if self.matcher is None:
            return []
        drafts = self.attempt(self._drafter.draft, limit, after)
        return [] if drafts is FAILED else drafts

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        stops = min(num_tokens, self._after_stop)
        self._after_stop -= stops
        if num_tokens > stops and self.matcher is not None:
            self.attempt(self.matcher.rollback, num_tokens - stops)

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the allowed tokens into one row of vLLM's bitmask, int32 ``[rows, words]``."""
        matcher = self.matcher
        if matcher is None or self.attempt(fill, matcher, bitmask, batch_index) is FAILED:
            self._stop.fill(bitmask[batch_index].numpy())
            if matcher is not None:
                self.unmasked.add(matcher.num_tokens)
            return
        if self.unmasked:  # its failure was after other tokens
            self.unmasked.discard(matcher.num_tokens)
        self.note_name()

    def note_name(self) -> None:
        """Note the mask that has just been filled, if it is of a token of a function's name."""
        matcher = self.matcher
        if matcher is not None and matcher.phase is Phase.CALL_ID:
            intent = self.attempt(matcher.intent)
            if isinstance(intent, Intent):
                self._named.append(NamedToken(self, matcher.num_tokens, matcher.num_calls, intent))

    def is_terminated(self) -> bool:
        """Never: vLLM leaves the rows of a terminated grammar unconstrained, ours allow the stops alone."""
        return False

    def reset(self) -> None:
        """Back to the start of the turn."""
        if self.matcher is not None:
            self.attempt(self.matcher.reset)
        self._after_stop = 0
        self.unmasked.clear()

    def failed(self, step: Callable[..., Any], error: BaseException) -> None:
        """Drop the matcher if its state may be lost; log the reason once.

        The state is kept only if computing a mask or accepting a token raised a ``ConstrainedK2Error``.
        """
        matcher = self.matcher
        announced = isinstance(error, ConstrainedK2Error)
        if matcher is not None and not (announced and step in {fill, matcher.accept_tokens}):
            self.matcher = None
        if not self._reported:
            logger.warning("constrained_k2: request %s cannot go on: %r", self.request_id, error)
            self._reported = True

    def _accept(self, tokens: Sequence[int]) -> bool:
        matcher = self.matcher
        if len(tokens) == 1 and matcher is not None and not self.unmasked and not matcher.is_terminated():
            return self.attempt(matcher.accept_tokens, tokens) is True  # as below, without what drafts and stops need
        taken = self._take(tokens)
        if taken < len(tokens):
            self.rollback(taken)
        return taken == len(tokens)

    def _validate(self, tokens: Sequence[int]) -> list[int]:
        self.unmasked.clear()  # of the step before: no mask of the next one has been computed yet
        taken = self._take(tokens)
        self.rollback(taken)
        return list(tokens[:taken])

    def _take(self, tokens: Sequence[int]) -> int:
        """Take tokens up to the first one that is illegal; how many were taken."""
        for number, token in enumerate(tokens):
            matcher = self.matcher
            if matcher is None or (self.unmasked and matcher.num_tokens in self.unmasked):
                return number
            if matcher.is_terminated():  # after a stop only with ignore_eos, and in drafts
                stops = self.attempt(matcher.token_set)
                legal: Any = isinstance(stops, TokenSet) and token in stops
                self._after_stop += legal
            else:
                legal = self.attempt(matcher.accept_tokens, (token,))
                if legal is FAILED:  # vLLM copies the mask before a refused draft to the rows after it
                    self.unmasked.add(matcher.num_tokens + 1)
            if legal is not True:
                return number
        return len(tokens)


def fill_batch(grammars: Sequence[ToolCallGrammar], bitmask: Any) -> None:
    """Fill int32 ``[rows, words]``, a row for each grammar. Rows with a cached mask are filled first.

    Rows that fail, or have failed, are filled one by one, so that each request handles its failure.
    """
    matchers = {row: grammar.matcher for row, grammar in enumerate(grammars) if grammar.matcher is not None}
    try:
        failures = fill_bitmasks(list(matchers.values()), bitmask, list(matchers), MASK_COUNTS)
        failed = {row for row, _ in failures}.union(empty_rows(bitmask.numpy()[: len(grammars)]))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - the row at fault is found, and logged, when each is filled alone
        failed = set(matchers)
    for row, grammar in enumerate(grammars):
        if row in failed or row not in matchers or grammar.unmasked:
            grammar.fill_bitmask(bitmask, row)
        else:
            grammar.note_name()
