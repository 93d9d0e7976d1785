"""Thinking budget: once reasoning has spent it, only the marker that ends reasoning may follow.

With a budget of 2, only </think> may follow <think> and two more tokens.
"""

from typing import Self

import numpy as np
import numpy.typing as npt

from constrained_k2.formats.base import ABSENT
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import TokenSet
from constrained_k2.vocabulary.vocabulary import Vocabulary


class ThinkingBudget:
    """The part of a thinking budget that depends only on the vocabulary; make one for each vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        marker = vocabulary.format.think_end
        self._end = None if marker == ABSENT else TokenSet((marker,), vocabulary.size)

    def apply(self, matcher: ToolCallMatcher, max_tokens: int) -> None:
        """Limit a turn's reasoning to ``max_tokens`` tokens, not counting its markers; 0 for no reasoning.

        Call this at the turn's start, after the finish reserve is applied: the reserve may end reasoning by a call.
        """
        if self._end is not None:
            opening = matcher.phase is not Phase.REASONING  # unless the prompt has the marker, the turn begins with it
            matcher.budgets += (_ThinkingFilter(self._end, max_tokens + opening),)


class _ThinkingFilter:
    """The stateless :class:`constrained_k2.turn.pipeline.Budget` of one turn, active from token ``start`` on."""

    def __init__(self, end: TokenSet, start: int) -> None:
        self._end = end
        self._start = start

    def narrow_set(self, turn: ToolCallMatcher, tokens: TokenSet) -> TokenSet:
        return self._end if turn.phase is Phase.REASONING and turn.num_tokens >= self._start else tokens

    def narrows_rows(self, turn: ToolCallMatcher) -> bool:  # noqa: ARG002 - no row of any turn
        return False

    def narrow_row(self, turn: ToolCallMatcher, row: npt.NDArray[np.int32]) -> None:
        """Do nothing: arguments are not reasoning."""

    def truncate(self, num_tokens: int) -> None:
        """Do nothing: no tokens are stored."""

    def fork(self) -> Self:
        return self
