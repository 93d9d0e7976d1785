"""Thinking budget: once it is spent, masks allow only the marker that ends reasoning.

With a budget of 2, <think> and two more tokens, only </think> may follow.
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
        """Allow a turn, from its start, ``max_tokens`` tokens of reasoning, its markers not counted; 0 for none.

        A finish budget, which may end reasoning by a call as well, is applied before.
        """
        if self._end is not None:
            opening = matcher.phase is not Phase.REASONING  # reasoning opens with the turn's first token, or before it
            matcher.budgets += (_ThinkingFilter(self._end, max_tokens + opening),)


class _ThinkingFilter:
    """The :class:`constrained_k2.turn.pipeline.Budget` of one turn, active from token ``start`` on; stateless."""

    def __init__(self, end: TokenSet, start: int) -> None:
        self._end = end
        self._start = start

    def narrow_set(self, turn: ToolCallMatcher, tokens: TokenSet) -> TokenSet:
        return self._end if turn.phase is Phase.REASONING and turn.num_tokens >= self._start else tokens

    def narrows_rows(self, turn: ToolCallMatcher) -> bool:  # noqa: ARG002 - no row of any turn
        return False

    def narrow_row(self, turn: ToolCallMatcher, row: npt.NDArray[np.int32]) -> None:
        """Arguments are not reasoning."""

    def truncate(self, num_tokens: int) -> None:
        """Do nothing: no tokens are stored."""

    def fork(self) -> Self:
        return self
