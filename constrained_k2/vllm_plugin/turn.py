"""One constrained request inside the engine, whichever model runner serves it."""

from collections.abc import Sequence

from constrained_k2.bitmask import TokenSet
from constrained_k2.counters import engine_counters
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.vllm_plugin.log import logger
from constrained_k2.vllm_plugin.row_masks import RowMasks


class Turn:
    """A request's matcher, and what becomes of the request when something goes wrong with it.

    No method raises: an error that leaves a logits processor ends the whole engine. It ends the request instead: only a
    stop is allowed from then on, and what was written so far is parsed as cut off.

    Args:
        matcher: The turn's state; None for a request that has failed already.
        stop: The set of tokens by which a failed request ends.
        guarded: Whether sampling parameters of the request may forbid what its masks allow.

    Attributes:
        matcher: As given; None once the request has failed.
        num_tokens: How many sampled tokens have been taken.
    """

    __slots__ = ("_guarded", "_stop", "matcher", "num_tokens")

    def __init__(self, matcher: ToolCallMatcher | None, stop: TokenSet, *, guarded: bool) -> None:
        self.matcher = matcher
        self.num_tokens = 0
        self._stop = stop
        self._guarded = guarded

    def take(self, ids: Sequence[int]) -> None:
        """Take sampled tokens. What follows a stop (with ``ignore_eos``) changes nothing."""
        start, matcher = self.num_tokens, self.matcher
        self.num_tokens += len(ids)
        if matcher is None:
            return
        try:
            for place, token_id in enumerate(ids, start):
                if matcher.is_terminated():
                    return
                if not matcher.accept_tokens((token_id,)):
                    self.fail(f"token {token_id} at {place} is not in the grammar ({matcher.phase.name})")
                    return
        except Exception as error:  # noqa: BLE001 - see the class
            self.fail(repr(error))

    def take_back(self, count: int) -> None:
        """Take back the last sampled tokens."""
        self.num_tokens -= count
        matcher = self.matcher
        if matcher is None:
            return
        try:
            matcher.rollback(max(0, matcher.num_tokens - self.num_tokens))  # none were taken behind a stop
        except Exception as error:  # noqa: BLE001 - see the class
            self.fail(repr(error))

    def fail(self, reason: str) -> None:
        """End this request, and no other one."""
        self.matcher = None
        engine_counters.ended_early += 1
        logger.warning("constrained_k2: a request is ended early: %s", reason)

    def mask(self, masks: RowMasks, row: int) -> None:
        """Mask one row of the logits: the next token's."""
        if self.matcher is not None:
            try:
                masks.add(row, self.matcher, guarded=self._guarded)
            except Exception as error:  # noqa: BLE001 - see the class
                self.fail(repr(error))
            else:
                return
        masks.add_constant(row, self._stop, guarded=self._guarded)

    def mask_drafts(self, masks: RowMasks, first_row: int, drafts: Sequence[int]) -> None:
        """Mask the rows of a request with draft tokens; its state stays as it is.

        A row behind an illegal draft is never sampled from, since the draft before it cannot be accepted; it gets the
        stop set all the same, so that no row of the request is ever left free.

        Args:
            masks: Takes the masks.
            first_row: The row of the first draft's position; the others follow, one more than there are drafts.
            drafts: The draft tokens in order; -1 for one that is none.
        """
        self.mask(masks, first_row)
        matcher = self.matcher
        taken, legal = 0, matcher is not None
        for row, token_id in enumerate(drafts, first_row + 1):
            try:
                if matcher is not None and legal and not matcher.is_terminated():
                    legal = matcher.accept_tokens((token_id,))
                    taken += legal
                if matcher is not None and legal:
                    masks.add(row, matcher, guarded=self._guarded)
                    continue
            except ConstrainedK2Error:  # of a token that may never be sampled: it ends the request only if it is
                legal = False
            except Exception as error:  # noqa: BLE001 - see the class
                self.fail(repr(error))
                matcher = None
            masks.add_constant(row, self._stop, guarded=self._guarded)
        if matcher is not None and taken:
            try:
                matcher.rollback(taken)
            except Exception as error:  # noqa: BLE001 - see the class
                self.fail(repr(error))
