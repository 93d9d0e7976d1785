"""Ending a turn within a budget of tokens: from some token on, masks are narrowed to what brings the turn to its end.

A narrowed mask is part of the mask and never empty, so whatever the grammar keeps it keeps here too: keys that are
required are still written, a value still satisfies its schema. Nothing is promised beyond that: a turn ends in time if
what is reserved is enough for what the schemas demand. Where nothing is known of how to end sooner, the mask stays.

What is narrowed depends on the tokens so far alone, never on the clock or on chance: all ranks narrow alike.
"""

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from constrained_k2.bitmask import TokenSet, words_per_row
from constrained_k2.drafting.cursor import Place
from constrained_k2.drafting.endings import endings
from constrained_k2.drafting.followed_turn import FollowedTurn
from constrained_k2.errors import InvalidRequest
from constrained_k2.format import ABSENT
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.phases import Phase
from constrained_k2.vocabulary import Vocabulary

MOST_RESERVED = 4096
"""The tokens that a request may reserve: the mask of each costs about a tenth of a millisecond more than others."""

_AT_ONCE = 256  # tokens followed in one go before closing begins: no one mask waits for a long text to be read
_REMEMBERED = 32  # places that a rollback may go back to; from further back the turn is followed anew
_BLANKS = b" \t\r\n"


def read_reserve(value: object, place: str) -> int:
    """How many tokens a request or an operator reserves for the end of a turn.

    Raises:
        InvalidRequest: It is no number of tokens, or too many.
    """
    if type(value) is not int or not 0 <= value <= MOST_RESERVED:
        raise InvalidRequest(
            f"must be a whole number from 0 to {MOST_RESERVED}, not {str(value)[:40]!r}",
            place,
            "Send the number of tokens that are kept for ending a call, 0 for none",
        )
    return value


class Closing:
    """What closing needs of a vocabulary; made once for each.

    Args:
        vocabulary: The vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        markers, size = vocabulary.format, vocabulary.size
        texts = [vocabulary.ordinary_bytes(token_id) for token_id in range(size)]
        blanks = frozenset(_BLANKS)
        self.blank = _row((at for at, raw in enumerate(texts) if not blanks.isdisjoint(raw)), size)
        self.opening = _row((at for at, raw in enumerate(texts) if raw.startswith((b"{", b"["))), size)
        section = TokenSet((markers.section_begin,), size)
        out_of_reasoning = (markers.think_end, markers.section_begin)
        self.required = {
            Phase.OPEN: section,
            Phase.REASONING: TokenSet((token for token in out_of_reasoning if token != ABSENT), size),
        }
        self.between = TokenSet((markers.section_end,), size)

    def close(self, matcher: ToolCallMatcher, budget: int, reserve: int) -> None:
        """Have a turn end within its budget, as far as that can be steered.

        Args:
            matcher: The turn, at its start.
            budget: How many tokens it may have.
            reserve: For how many of them, the last ones, masks are narrowed; 0 for none.
        """
        matcher.narrow_by(_Narrowing(self, max(0, budget - reserve)) if reserve else None)

    def longest(self, text: bytes, row: npt.NDArray[np.int32]) -> int | None:
        """The longest token that ``text`` begins with and a row allows; None if there is none."""
        known, ids = self.vocabulary.sorted_tokens
        for end in range(len(text), 0, -1):
            place = bisect_left(known, text[:end])
            if place < len(known) and known[place] == text[:end]:
                token_id = ids[place]
                if int(row[token_id >> 5]) >> (token_id & 31) & 1:
                    return token_id
        return None


class _Narrowing:
    """Of one turn; what :class:`constrained_k2.protocols.Narrowing` asks for."""

    def __init__(self, closing: Closing, start: int) -> None:
        self._closing = closing
        self._start = start
        self._followed: list[FollowedTurn] = [FollowedTurn()]  # the same turn at several places, the latest one last

    def token_set(self, matcher: ToolCallMatcher, tokens: TokenSet) -> TokenSet:
        """See :class:`constrained_k2.protocols.Narrowing`."""
        if matcher.num_tokens < self._start:
            return tokens
        phase = matcher.phase
        if phase is Phase.BETWEEN:
            return self._closing.between
        return self._closing.required.get(phase, tokens) if matcher.spec.choice == "required" else tokens

    def narrow(self, matcher: ToolCallMatcher, row: npt.NDArray[np.int32]) -> None:
        """See :class:`constrained_k2.protocols.Narrowing`."""
        if matcher.num_tokens < self._start:
            if matcher.num_tokens - self._followed[-1].seen >= _AT_ONCE:
                self._follow(matcher)
            return
        markers = matcher.vocabulary.format
        if matcher.arguments is not None and matcher.arguments.is_complete():
            _allow_only(markers.call_end, row)
            return
        cursor = self._follow(matcher).cursor
        if cursor is None:
            return
        for text in endings(cursor):
            token_id = self._closing.longest(text.encode(errors="ignore"), row)
            if token_id is not None:
                _allow_only(token_id, row)
                return
        if cursor.place not in {Place.IN_STRING, Place.IN_KEY}:
            _forbid(self._closing.blank, row)
            _forbid(self._closing.opening, row)

    def roll_back(self, num_tokens: int) -> None:
        """See :class:`constrained_k2.protocols.Narrowing`."""
        while self._followed and self._followed[-1].seen > num_tokens:
            self._followed.pop()
        if not self._followed:
            self._followed.append(FollowedTurn())

    def fork(self) -> "_Narrowing":
        """See :class:`constrained_k2.protocols.Narrowing`."""
        other = _Narrowing(self._closing, self._start)
        other._followed = [turn.copy() for turn in self._followed]
        return other

    def _follow(self, matcher: ToolCallMatcher) -> FollowedTurn:
        turn = self._followed[-1]
        if turn.seen < matcher.num_tokens:
            turn = turn.copy()
            turn.follow(matcher.token_ids(turn.seen), matcher)
            self._followed.append(turn)
            del self._followed[:-_REMEMBERED]
        return turn


def _row(ids: Iterable[int], size: int) -> npt.NDArray[np.int32]:
    row = np.zeros(words_per_row(size), dtype=np.int32)
    TokenSet(ids, size).fill(row)
    return row


def _allow_only(token_id: int, row: npt.NDArray[np.int32]) -> None:
    row.fill(0)
    row.view(np.uint32)[token_id >> 5] = 1 << (token_id & 31)


def _forbid(tokens: npt.NDArray[np.int32], row: npt.NDArray[np.int32]) -> None:
    """Take tokens out of a row, unless they are all that it allows."""
    left = row & ~tokens
    if left.any():
        row[:] = left
