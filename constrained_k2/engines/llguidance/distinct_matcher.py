"""A matcher of arguments that forbids the tokens that would repeat a key of an object, or an item of unequal ones."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.written.items import NO_PLACES, ItemPlaces
from constrained_k2.engines.llguidance.written.scanner import Repetition, Scanner, Snapshot, Within
from constrained_k2.engines.llguidance.written.tokens import WrittenTokens
from constrained_k2.engines.protocol import Failures
from constrained_k2.vocabulary.bitmask import BitmaskRows

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.engine import LLGuidanceGrammar

Row = npt.NDArray[np.int32]


class DistinctMatcher(LLGuidanceMatcher):
    """An LLGuidance matcher whose masks, and what it accepts, leave out keys and items that are there already.

    No mask becomes empty: where every key or item that begins so has been written, which takes a pattern, a length, a
    range or few names, one comes again. Of a key the last value counts; coverage names such items as relaxed.
    """

    __slots__ = ("_matters", "_may_repeat", "_places", "_scanner", "_snapshots", "_tokens", "_two", "_watched")
    keeps_keys = True

    def __init__(
        self,
        grammar: "LLGuidanceGrammar",
        location: str,
        tokens: WrittenTokens,
        places: ItemPlaces,
        *,
        may_relax: bool,
    ) -> None:
        super().__init__(grammar, location, may_relax=may_relax)
        self._tokens = tokens
        self._matters = tokens.matters
        self._watched = 0  # the bits of the tokens that may change the position
        self._places = places
        self._two = tokens.two_keys.tolist()  # those that may hold two keys or items
        if places is not NO_PLACES:
            self._two += tokens.two_items.tolist()
        self._scanner = Scanner(tokens, places, is_xml=grammar.allows_any_split)
        self._snapshots = [self._scanner.start]  # after each token that mattered
        self._may_repeat = False  # False if no token repeats anything here, nor before the next token that matters
        self._note(self._scanner.start)

    def fill(self, row: Row, address: int = 0) -> None:
        super().fill(row, address)
        self.restrict(row)

    @staticmethod
    def fill_batch(batch: Sequence[tuple[LLGuidanceMatcher, int]], rows: BitmaskRows) -> Failures:
        failed = LLGuidanceMatcher.fill_batch(batch, rows)
        numbers = {row for row, _ in failed}
        for matcher, row in batch:
            if row not in numbers:
                assert isinstance(matcher, DistinctMatcher)
                matcher.restrict(rows[row])
        return failed

    def cached_mask(self) -> Row | None:
        cached = super().cached_mask()
        if cached is None or not self._may_repeat:
            return cached
        return self._without_repetitions(cached)

    def accept(self, token_id: int) -> bool:
        if not super().accept(token_id):
            return False
        if not self._matters[token_id] & self._watched or self._advance():
            return True
        LLGuidanceMatcher.rollback(self, 1)
        row = np.zeros(self._tokens.words, dtype=np.int32)
        LLGuidanceMatcher.fill(self, row)
        if self._without_repetitions(row) is not row:  # there is another token
            return False
        return super().accept(token_id) and self._advance(may_repeat=True)

    def rollback(self, count: int) -> None:
        super().rollback(count)
        while self._snapshots[-1].length > len(self._ids):
            self._snapshots.pop()
        at = self._snapshots[-1]
        self._scanner.restore(at)
        self._note(at)

    def fork(self) -> "DistinctMatcher":
        copy = DistinctMatcher(self.grammar, self._location, self._tokens, self._places, may_relax=self._may_relax)
        for token_id in self._ids:  # also where it had to repeat something
            LLGuidanceMatcher.accept(copy, token_id)
            if copy._matters[token_id] & copy._watched:
                copy._advance(may_repeat=True)
        return copy

    def _advance(self, *, may_repeat: bool = False) -> bool:
        """Follow the latest token; False if it repeats a key or an item."""
        at = self._snapshots[-1]
        token, length = self.grammar.token(self._ids[-1]), len(self._ids)
        try:
            after = self._scanner.follow(at, token, length, may_repeat=may_repeat)
        except Repetition:
            self._scanner.restore(at)
            return False
        self._scanner.hold()
        self._snapshots.append(after)
        self._note(after)
        return True

    def _note(self, at: Snapshot) -> None:
        self._watched = at.watched
        self._may_repeat = bool(self._scanner.holding or self._two or at.texts or at.alone)

    def restrict(self, row: Row) -> None:
        """Remove the tokens that repeat a key or an item from a mask, int32 ``[words]``, in place."""
        if self._may_repeat and (left := self._without_repetitions(row)) is not row:
            row[:] = left

    def _without_repetitions(self, row: Row) -> Row:
        """Return a mask without the tokens that repeat something; the same row if there are none, or no others."""
        at, scanner, tokens = self._snapshots[-1], self._scanner, self._tokens
        found: list[npt.NDArray[np.int64]] = []
        if texts := at.texts:
            found += [self._tried(tokens.quoted, row)] if at.text.escape else texts.repeating(at.text)
        for word in at.alone:
            found += tokens.alone[word][: 2 if at.within is Within.VALUE else 1]
        if tried := [*scanner.holding, *self._two]:
            found.append(self._tried(np.array(tried, dtype=np.int64), row))
        return _without(found, row) if any(map(len, found)) else row

    def _tried(self, ids: npt.NDArray[np.int64], row: Row) -> npt.NDArray[np.int64]:
        """Return those of these tokens that a mask allows and that repeat something."""
        at, scanner = self._snapshots[-1], self._scanner
        found = []
        for token_id in ids[(row[ids >> 5] >> (ids & 31)) & 1 != 0].tolist():
            try:
                scanner.follow(at, self.grammar.token(token_id), 0)
            except Repetition:
                found.append(token_id)
            scanner.restore(at)
        return np.array(found, dtype=np.int64)


def _without(found: Iterable[npt.NDArray[np.int64]], row: Row) -> Row:
    """Return a mask without tokens; the same one if it has none of them, or no others."""
    left = row.copy()
    words = left.view(np.uint32)
    for ids in found:
        np.bitwise_and.at(words, ids >> 5, ~(np.uint32(1) << (ids & 31).astype(np.uint32)))
    return left if left.any() and (left != row).any() else row
