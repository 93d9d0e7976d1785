"""Follows one constrained request in a logits processor, and masks its rows of logits."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from vllm import SamplingParams

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.log import logger
from constrained_k2.vllm_plugin.shared.matcher_factory import FAILED, GuardedMatcher, MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.worker.row_masks import RowMasks
from constrained_k2.vocabulary.bitmask import TokenSet

_SERIALS = count()
"""Tells requests apart whose objects get the same address."""


class MaskedRequest(GuardedMatcher):
    """Follows what is sampled, and masks the request's rows.

    An error ends the request: only a stop is allowed from then on, and what was written so far is parsed as cut off.
    ``guarded``: whether its sampling parameters may forbid all that its masks allow.
    """

    def __init__(self, matcher: ToolCallMatcher | None, stop: TokenSet, *, guarded: bool) -> None:
        super().__init__(matcher, stop)
        self.num_tokens = 0
        self._guarded = guarded
        self._serial = next(_SERIALS)
        self._has_declined = False

    @classmethod
    def start(
        cls, factory: MatcherFactory, compiled: CompiledToolCalls, prompt: PromptInfo, params: SamplingParams
    ) -> "MaskedRequest":
        """A request at the start of its turn; refused if its matcher cannot be made.

        ``min_tokens`` forbids the stops, which ``stop_token_ids`` may add any token to; ``logit_bias`` is bounded in
        the servers' protocols, but not where vLLM is called in process. ``allowed_token_ids`` and ``bad_words`` are
        found here only if the request did not pass vLLM's own front end.
        """
        forbidding = (params.min_tokens, params.logit_bias, params.allowed_token_ids, params.bad_words_token_ids)
        guarded = any(forbidding)
        try:
            matcher = factory.matcher(compiled, prompt, params)
        except Exception as error:  # noqa: BLE001 - an error that leaves a logits processor ends the whole engine
            return cls.refused(factory, error)
        return cls(matcher, factory.stop, guarded=guarded)

    @classmethod
    def refused(cls, factory: MatcherFactory, error: Exception) -> "MaskedRequest":
        """A request that cannot be constrained: it ends at once."""
        request = cls(None, factory.stop, guarded=True)
        request.fail(repr(error))
        return request

    def take(self, ids: Sequence[int], *, is_replayed: bool = False) -> None:
        """Take sampled tokens; those of a request that was preempted come a second time.

        Tokens behind a stop (with ``ignore_eos``) change nothing.
        """
        start, matcher = self.num_tokens, self.matcher
        self.num_tokens += len(ids)
        for position, token_id in enumerate(ids, start):
            if matcher is None or matcher.is_terminated():
                return
            accepted = self.attempt(matcher.accept_tokens, (token_id,))
            if accepted is not True:
                if accepted is not FAILED:
                    self.fail(f"token {token_id} at {position} is not in the grammar ({matcher.phase.name})")
                return
            if matcher.has_declined and not self._has_declined:
                self._has_declined = True
                engine_counters.declined_calls += not is_replayed

    def take_back(self, count: int) -> None:
        """Take back the last sampled tokens."""
        self.num_tokens -= count
        if self.matcher is not None:  # it has taken none after a stop
            self.attempt(self.matcher.rollback, max(0, self.matcher.num_tokens - self.num_tokens))

    def failed(self, step: Callable[..., Any], error: BaseException) -> None:  # noqa: ARG002 - all steps are alike here
        """End this request."""
        self.fail(repr(error))

    def fail(self, reason: str) -> None:
        """End this request, and no other one."""
        self.matcher = None
        engine_counters.ended_early += 1
        logger.warning("constrained_k2: a request is ended early: %s", reason)

    def mask(self, masks: RowMasks, row: int) -> None:
        """Mask one row of the logits: the next token's."""
        masks.begin_rows()
        self._mask(masks, row)
        self._examine(masks, row, 1)

    def _mask(self, masks: RowMasks, row: int) -> None:
        if self.matcher is None or self.attempt(self._add, masks, row, self._serial) is FAILED:
            masks.add_constant(row, self._stop, guarded=self._guarded)

    def mask_drafts(self, masks: RowMasks, first_row: int, drafts: Sequence[int]) -> None:
        """Mask the rows of a request with draft tokens (-1 for none), one more than these; its state stays as it is.

        A row after an illegal draft is never sampled from, since the draft before it cannot be accepted; it gets the
        stop set all the same, so that every row of the request is masked.
        """
        masks.begin_rows()
        self._mask(masks, first_row)
        taken, legal = 0, self.matcher is not None
        masked = 0  # drafts after which there is a mask
        for row, token_id in enumerate(drafts, first_row + 1):
            if legal:
                result = self.attempt(self._mask_draft, masks, row, token_id)
                legal = result is not FAILED and result is not None
                taken += result if legal else 0
                masked += legal
            if not legal:
                masks.add_constant(row, self._stop, guarded=self._guarded)
        self._examine(masks, first_row, 1 + masked)
        if self.matcher is not None and taken:
            self.attempt(self.matcher.rollback, taken)

    def _examine(self, masks: RowMasks, first_row: int, rows: int) -> None:
        if self.matcher is not None and masks.is_sampled:
            masks.examine(range(first_row, first_row + rows))

    def _mask_draft(self, masks: RowMasks, row: int, token_id: int) -> int | None:
        """Take a draft and mask the row after it: the number of tokens taken; None for an illegal draft."""
        matcher = self.matcher
        assert matcher is not None
        before = matcher.num_tokens
        try:
            if not matcher.is_terminated() and not matcher.accept_tokens((token_id,)):
                return None
            self._add(masks, row)
        except ConstrainedK2Error:  # of a token that may never be sampled: it ends the request only if it is
            matcher.rollback(matcher.num_tokens - before)
            return None
        return matcher.num_tokens - before

    def _add(self, masks: RowMasks, row: int, request: int | None = None) -> None:
        assert self.matcher is not None
        masks.add(row, self.matcher, guarded=self._guarded, request=request)
