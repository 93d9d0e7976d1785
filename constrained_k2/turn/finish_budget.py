"""Finish reserve: near ``max_tokens``, masks steer calls and formatted answers to a quick end.

A filtered mask is a non-empty subset of the mask, so required keys are still written and values still satisfy their
schemas. Filtering depends on the accepted tokens alone, never on time or chance, so all ranks filter alike.

{"path": "/usr/lo     inside the reserve: the string ends, then the required key "mode" follows, with its shortest value
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from constrained_k2.errors import InvalidRequest
from constrained_k2.grammar.plan.nodes import Plan
from constrained_k2.turn.completions.json_completions import json_completions
from constrained_k2.turn.completions.text_completions import text_completions
from constrained_k2.turn.completions.xtml_completions import xtml_completions
from constrained_k2.turn.cursors.arguments_cursor import ArgumentsCursor
from constrained_k2.turn.cursors.json_cursor import JsonCursor
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase, first_markers
from constrained_k2.vocabulary.bitmask import TokenSet, narrow_to, row_of
from constrained_k2.vocabulary.vocabulary import Vocabulary

MAX_FINISH_RESERVE = 4096
"""The most tokens that a request may reserve: each of their masks costs about 0.2 ms more."""

_CATCH_UP = 16  # before the reserve begins, the depth is updated every 16 tokens
_MAX_CURSORS = 32  # snapshots for rollbacks; a longer rollback follows the turn anew
_BLANKS = b" \t\r\n"
_TO_THE_END = (
    Phase.REASONING,
    Phase.TEXT,
    Phase.RESPONDED,
    Phase.SECTION,
    Phase.ARGUMENTS,
    Phase.BETWEEN,
    Phase.CLOSED,
)


def read_finish_reserve(value: object, location: str) -> int:
    """Read a finish reserve, in tokens, from a request or a setting."""
    if type(value) is not int or not 0 <= value <= MAX_FINISH_RESERVE:
        problem = f"must be a whole number from 0 to {MAX_FINISH_RESERVE}, not {str(value)[:40]!r}"
        raise InvalidRequest(problem, location, "Send the number of tokens to reserve for ending a call, 0 for none")
    return value


class FinishBudget:
    """The part of a finish reserve that depends only on the vocabulary; make one for each vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        size = vocabulary.size
        texts = [vocabulary.ordinary_bytes(token_id) for token_id in range(size)]
        blanks = frozenset(_BLANKS)
        self.blank = row_of((at for at, raw in enumerate(texts) if not blanks.isdisjoint(raw)), size)
        self.opening = row_of((at for at, raw in enumerate(texts) if raw.startswith((b"{", b"["))), size)
        onwards = (Phase.TEXT, Phase.RESPONDED, Phase.SECTION)  # phases on the way to a required call
        self.required = {
            phase: TokenSet(first_markers(vocabulary, phase, *onwards), size)
            for phase in (Phase.START, Phase.REASONING)
        }
        self.think_end = TokenSet(first_markers(vocabulary, Phase.REASONING, Phase.TEXT), size)
        self.between = TokenSet(first_markers(vocabulary, Phase.BETWEEN, Phase.CLOSED), size)
        found = vocabulary.format.transitions
        sizes = [[_length(each.pieces, vocabulary) for each in found.get(phase, ())] for phase in _TO_THE_END]
        self.transition_tokens = sum(max(lengths) - 1 for lengths in sizes if lengths)
        self.answer_end = first_markers(vocabulary, Phase.ANSWER, Phase.DONE)[0]

    def apply(self, matcher: ToolCallMatcher, max_tokens: int, reserved_tokens: int) -> None:
        """Filter a turn's masks so that it can end within ``max_tokens``. Call this at the turn's start.

        Masks are filtered from ``reserved_tokens`` before the limit. Filtering starts earlier by one token per open
        object, array or rule, and by the extra tokens of multi-token markers and tags.
        """
        start = max(0, max_tokens - reserved_tokens - self.transition_tokens)
        if reserved_tokens:
            matcher.budgets += (_FinishFilter(self, start),)

    def narrow(self, arguments: ArgumentsCursor, plan: Plan | None, row: npt.NDArray[np.int32]) -> None:
        """Remove tokens that do not lead to the end from a mask, int32 ``[words]``, in place; never empties it."""
        cursor, text = arguments.cursor, arguments.text
        pieces: Iterable[str | int] = ()
        if text is not None and text.is_inside:
            pieces = text_completions(text, self.vocabulary.format)
        elif isinstance(cursor, XtmlCursor) and plan is not None:
            pieces = xtml_completions(cursor, plan)
        elif isinstance(cursor, JsonCursor) and plan is not None:
            pieces = json_completions(cursor, plan)
        for piece in pieces:
            token_id = self.first_token(piece, row, arguments.begun_character)
            if token_id is not None:
                _allow_only(token_id, row)
                return
        if cursor is not None and not cursor.in_string:
            narrow_to(row, row & ~self.blank)
            narrow_to(row, row & ~self.opening)

    def first_token(self, piece: str | int, row: npt.NDArray[np.int32], begun: bytes = b"") -> int | None:
        """The longest allowed token with which a text starts, or an allowed marker; None if the row allows none.

        ``begun``: the bytes of the text's first character that the model has already written.
        """
        if isinstance(piece, int):
            return piece if _allows(piece, row) else None
        text = piece.encode(errors="ignore")
        if not text.startswith(begun):
            return None
        text = text[len(begun) :]
        prefixes = (self.vocabulary.find(text[:end]) for end in range(len(text), 0, -1))
        return next((at for at in prefixes if at is not None and _allows(at, row)), None)


class _FinishFilter:
    """The :class:`constrained_k2.turn.pipeline.Budget` of one turn, active from token ``start`` on at the latest."""

    def __init__(self, budget: FinishBudget, start: int) -> None:
        self._budget = budget
        self._start = start
        self._cursors = [ArgumentsCursor(follows_text=True)]  # snapshots of this turn, newest last
        self._depth = (0, 0)  # a number of tokens, and the cursor's depth after them

    def narrow_set(self, turn: ToolCallMatcher, tokens: TokenSet) -> TokenSet:
        if turn.num_tokens < self._start:
            return tokens
        phase = turn.phase
        if phase is Phase.BETWEEN:
            return self._budget.between
        if phase is Phase.REASONING and turn.spec.answer is not None:
            return self._budget.think_end
        return self._budget.required.get(phase, tokens) if turn.spec.choice == "required" else tokens

    def narrows_rows(self, turn: ToolCallMatcher) -> bool:
        """True inside the reserve. It depends only on the accepted tokens, not on earlier masks or rollbacks."""
        if turn.num_tokens >= self._start:
            return True
        at = turn.num_tokens - turn.num_tokens % _CATCH_UP
        if at != self._depth[0]:
            self._depth = (at, self._follow(turn, at).depth)
        return turn.num_tokens >= self._start - self._depth[1]

    def narrow_row(self, turn: ToolCallMatcher, row: npt.NDArray[np.int32]) -> None:
        if not self.narrows_rows(turn):
            return
        if turn.arguments is not None and turn.arguments.is_complete():
            end = turn.vocabulary.format.call_end if turn.phase is Phase.ARGUMENTS else self._budget.answer_end
            _allow_only(end, row)  # even if the client forbids this token
            return
        plan = None if turn.arguments is None else turn.arguments.plan
        self._budget.narrow(self._follow(turn, turn.num_tokens), plan, row)

    def truncate(self, num_tokens: int) -> None:
        while self._cursors and self._cursors[-1].num_tokens > num_tokens:
            self._cursors.pop()
        if not self._cursors:
            self._cursors.append(ArgumentsCursor(follows_text=True))
        if self._depth[0] > num_tokens:
            self._depth = (0, 0)

    def fork(self) -> "_FinishFilter":
        other = _FinishFilter(self._budget, self._start)
        other._cursors = [cursor.copy() for cursor in self._cursors]
        return other

    def _follow(self, turn: ToolCallMatcher, num_tokens: int) -> ArgumentsCursor:
        """The cursor after the first ``num_tokens`` tokens."""
        cursor = next((each for each in reversed(self._cursors) if each.num_tokens <= num_tokens), None)
        cursor = cursor or ArgumentsCursor(follows_text=True)
        if cursor.num_tokens < num_tokens:
            is_newest = cursor is self._cursors[-1]
            cursor = cursor.copy()
            cursor.follow(turn, num_tokens)
            if is_newest:
                self._cursors.append(cursor)
                del self._cursors[:-_MAX_CURSORS]
        return cursor


def _length(pieces: Iterable[str | bytes], vocabulary: Vocabulary) -> int:
    """The number of tokens of a transition."""
    return sum(1 if isinstance(piece, str) else len(vocabulary.encode(piece.decode())) for piece in pieces)


def _allows(token_id: int, row: npt.NDArray[np.int32]) -> bool:
    return bool(int(row[token_id >> 5]) >> (token_id & 31) & 1)


def _allow_only(token_id: int, row: npt.NDArray[np.int32]) -> None:
    row.fill(0)
    row.view(np.uint32)[token_id >> 5] = 1 << (token_id & 31)
