"""One request's matcher as vLLM's structured-output grammar.

vLLM's scheduler asks it for a mask row per draft position, advances it over drafts to do so and takes them back, and
advances it over what was sampled. Whatever goes wrong in here costs its own request: vLLM ends a request whose
grammar refuses what was sampled, but an exception ends the engine.
"""

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from constrained_k2.bitmask import TokenSet
from constrained_k2.drafting.drafter import Drafter
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.vllm_plugin.filling import fill, fill_batch
from constrained_k2.vllm_plugin.log import logger


class ToolCallGrammar(StructuredOutputGrammar):
    """A turn under vLLM's scheduler.

    A mask that cannot be computed becomes the stop alone. Where masks fail no stop is legal, so the request then ends
    in an error as soon as that stop is sampled; a draft that is never accepted ends nothing.

    Args:
        matcher: The turn's matcher; owned from here on.
        stop: The stop alone.
        request_id: vLLM's name of the request, for the log.
    """

    def __init__(self, matcher: ToolCallMatcher, stop: TokenSet, request_id: str) -> None:
        self._matcher = matcher
        self._drafter = Drafter(matcher)
        self._stop = stop
        self._request_id = request_id
        self._behind = 0  # stops taken behind the first one
        self._broken = False  # an error that no engine announces: the state is worth nothing any more
        self._reported = False

    @property
    def matcher(self) -> ToolCallMatcher | None:
        """The turn's matcher; None once its state is worth nothing."""
        return None if self._broken else self._matcher

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:  # noqa: ARG002 - vLLM's signature
        """Take tokens; if one of them is illegal, or the engine gives up, none of them. vLLM then ends the request."""
        if len(tokens) == 1 and not self._broken and not self._matcher.is_terminated():  # as a rule
            return self._guarded(self._matcher.accept_tokens, tokens) is True
        taken = self._take(tokens)
        if taken < len(tokens):
            self.rollback(taken)
        return taken == len(tokens)

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The longest prefix that could be accepted; the state stays as it is."""
        taken = self._take(tokens)
        self.rollback(taken)
        return list(tokens[:taken])

    def draft(self, limit: int) -> list[int]:
        """Tokens that may come next, legal in this order, at most ``limit``; the state stays as it is."""
        if self._broken or self._matcher.is_terminated():
            return []
        drafts = self._guarded(self._drafter.draft, limit)
        return [] if drafts is _FAILED else drafts

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        behind = min(num_tokens, self._behind)
        self._behind -= behind
        if num_tokens > behind and not self._broken:
            self._guarded(self._matcher.rollback, num_tokens - behind)

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the allowed tokens into one row of vLLM's bitmask, int32 ``[rows, words]``."""
        if self._broken or self._guarded(fill, self._matcher, bitmask, batch_index) is _FAILED:
            self._stop.fill(bitmask[batch_index].numpy())

    @staticmethod
    def fill_batch(grammars: Sequence["ToolCallGrammar"], bitmask: Any) -> None:
        """Write the allowed tokens of each into the row of its number, as :meth:`fill_bitmask` does one by one.

        Args:
            grammars: All that have a row, each once.
            bitmask: int32 ``[rows, words]``, a CPU tensor.
        """
        matchers, rows, alone = [], [], []
        for row, grammar in enumerate(grammars):
            matcher = grammar.matcher
            if matcher is None:
                alone.append(row)
            else:
                matchers.append(matcher)
                rows.append(row)
        try:
            alone += fill_batch(matchers, bitmask, rows)
        except Exception:  # noqa: BLE001 - a mistake in one of them: it is found, and said, when each is filled alone
            alone = list(range(len(grammars)))
        for row in alone:
            grammars[row].fill_bitmask(bitmask, row)

    def is_terminated(self) -> bool:
        """Never: vLLM leaves the rows of a terminated grammar unconstrained, ours allow the stops alone."""
        return False

    def reset(self) -> None:
        """Back to the start of the turn."""
        self._matcher.reset()
        self._behind = 0

    def _take(self, tokens: Sequence[int]) -> int:
        """Take tokens up to the first one that is illegal; how many were taken."""
        for number, token in enumerate(tokens):
            if self._broken:
                return number
            if self._matcher.is_terminated():  # behind a stop only with ignore_eos, and in drafts
                stops = self._matcher.token_set()
                legal: Any = stops is not None and token in stops
                self._behind += legal
            else:
                legal = self._guarded(self._matcher.accept_tokens, (token,))
            if legal is not True:
                return number
        return len(tokens)

    def _guarded(self, step: Callable[..., Any], *args: Any) -> Any:
        """What a step of the matcher returns, or ``_FAILED``; it is said once why."""
        try:
            return step(*args)
        except Exception as error:  # noqa: BLE001 - an error that leaves a grammar ends the engine
            # What engines announce leaves the matcher as it was, save for a rollback that could not be finished. A
            # draft lets through no other announced error than that of its own rollback.
            rolls_back = step in {self._matcher.rollback, self._drafter.draft}
            self._broken = not isinstance(error, ConstrainedK2Error) or rolls_back
            if not self._reported:
                logger.warning("constrained_k2: request %s cannot go on: %r", self._request_id, error)
                self._reported = True
        return _FAILED


_FAILED = object()
