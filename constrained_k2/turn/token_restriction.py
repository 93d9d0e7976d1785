"""Applies a client's ``allowed_token_ids`` and ``bad_words`` to masks, and never empties a mask.

With the bad word ``}``, ``{"a": 1`` may continue with blanks, ``,`` or digits. If only ``}`` may follow, it is allowed
and the limit counts as ignored.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import narrow_to, row_of

Row = npt.NDArray[np.int32]


class TokenRestriction:
    """The :class:`constrained_k2.turn.pipeline.TokenLimiter` of one request.

    If a limit would empty a mask, it is ignored for that mask. Markers within arguments, which end strings in some
    formats, need not be among the allowed ids.

    Args:
        size: The width of the logits.
        allowed: The ids that may be written; None for all.
        bad_words: Token sequences that must not be completed: the last token of a sequence is forbidden if the turn so
            far ends with its other tokens.
        on_ignored: Called for each mask for which a limit is ignored.
    """

    def __init__(
        self,
        size: int,
        allowed: Iterable[int] | None,
        bad_words: Iterable[Sequence[int]],
        on_ignored: Callable[[], None],
    ) -> None:
        self._size = size
        self._allowed = None if allowed is None else row_of(allowed, size)
        self._in_arguments: Row | None = None  # the allowed ids and the markers that arguments may contain
        words = [array("q", word) for word in bad_words if word]
        self._not_bad = ~row_of((word[0] for word in words if len(word) == 1), size) if words else None
        # For words of several tokens: the last but one token -> (all tokens but the last, the last token).
        self._endings: dict[int, list[tuple[array[int], int]]] = {}
        for word in words:
            if len(word) > 1:
                self._endings.setdefault(word[-2], []).append((word[:-1], word[-1]))
        self._on_ignored = on_ignored

    def apply(self, turn: ToolCallMatcher, row: Row) -> None:
        """Remove the tokens that the client forbids from a mask, in place."""
        ignored = self._allowed is not None and not narrow_to(row, row & self._allowed_in(turn, self._allowed))
        if self._not_bad is not None:
            left = row & self._not_bad
            for token_id in self._completing(turn):
                left[token_id >> 5] &= ~np.uint32(1 << (token_id & 31)).view(np.int32)
            ignored |= not narrow_to(row, left)
        if ignored:
            self._on_ignored()

    def forbids(self, turn: ToolCallMatcher, token_id: int) -> bool:
        """True if the client forbids a token as the next one."""
        rows = (self._allowed, self._not_bad)
        is_out = any(row is not None and not row[token_id >> 5] >> (token_id & 31) & 1 for row in rows)
        return is_out or token_id in self._completing(turn)

    def _allowed_in(self, turn: ToolCallMatcher, allowed: Row) -> Row:
        """The client's allowed ids, for the turn's current phase."""
        if turn.phase is not Phase.ARGUMENTS:
            return allowed
        if self._in_arguments is None:
            self._in_arguments = allowed | row_of(turn.vocabulary.format.argument_markers, self._size)
        return self._in_arguments

    def _completing(self, turn: ToolCallMatcher) -> Iterable[int]:
        """The tokens that would complete a bad word of several tokens."""
        length = turn.num_tokens
        if not self._endings or not length:
            return
        for begun, last in self._endings.get(turn.token_ids(length - 1)[0], ()):
            if len(begun) <= length and turn.token_ids(length - len(begun)) == begun:
                yield last
