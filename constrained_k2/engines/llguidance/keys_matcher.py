"""A matcher of arguments that forbids the tokens that would write a key of an object a second time."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.distinct_keys.scanner import RepeatedKey, Scanner, Snapshot, Within
from constrained_k2.engines.llguidance.distinct_keys.spelled import ends_in_escape, unescaped
from constrained_k2.engines.llguidance.distinct_keys.tokens import KeyTokens
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.protocol import Failures
from constrained_k2.vocabulary.bitmask import BitmaskRows

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.engine import LLGuidanceGrammar

Row = npt.NDArray[np.int32]


class DistinctKeysMatcher(LLGuidanceMatcher):
    """An LLGuidance matcher whose masks, and what it accepts, leave out keys that an object has already.

    Only tokens with a quote are looked at. No mask becomes empty: where every key that begins so has been written,
    which takes a pattern or names with few keys, one comes again, and its last value counts.
    """

    __slots__ = ("_key_tokens", "_may_repeat", "_scanner", "_snapshots")
    keeps_keys = True

    def __init__(self, grammar: "LLGuidanceGrammar", location: str, tokens: KeyTokens, *, may_relax: bool) -> None:
        super().__init__(grammar, location, may_relax=may_relax)
        self._key_tokens = tokens
        self._scanner = Scanner(tokens, is_xml=grammar.allows_any_split)
        self._snapshots = [self._scanner.start]  # after each token with a quote, and each special one
        self._may_repeat = len(tokens.two_keys) > 0  # False if no token repeats a key here, nor before the next quote

    def fill(self, row: Row, address: int = 0) -> None:
        super().fill(row, address)
        self.restrict(row)

    @staticmethod
    def fill_batch(batch: Sequence[tuple[LLGuidanceMatcher, int]], rows: BitmaskRows) -> Failures:
        failed = LLGuidanceMatcher.fill_batch(batch, rows)
        numbers = {row for row, _ in failed}
        for matcher, row in batch:
            if row not in numbers:
                assert isinstance(matcher, DistinctKeysMatcher)
                matcher.restrict(rows[row])
        return failed

    def cached_mask(self) -> Row | None:
        cached = super().cached_mask()
        if cached is None:
            return None
        if not self._may_repeat:
            return cached
        repeating = self._repeated_keys(cached)
        return _without(repeating, cached) if repeating else cached

    def accept(self, token_id: int) -> bool:
        if not super().accept(token_id):
            return False
        if not self._key_tokens.matters[token_id] or self._advance():
            return True
        LLGuidanceMatcher.rollback(self, 1)
        row = np.zeros(self._key_tokens.words, dtype=np.int32)
        LLGuidanceMatcher.fill(self, row)
        if (_without(self._repeated_keys(row), row) != row).any():  # there is another token
            return False
        return super().accept(token_id) and self._advance(may_repeat=True)

    def rollback(self, count: int) -> None:
        super().rollback(count)
        while self._snapshots[-1].length > len(self._ids):
            self._snapshots.pop()
        at = self._snapshots[-1]
        self._scanner.restore(at)
        self._note(at)

    def fork(self) -> "DistinctKeysMatcher":
        copy = DistinctKeysMatcher(self.grammar, self._location, self._key_tokens, may_relax=self._may_relax)
        for token_id in self._ids:
            copy._accept_again(token_id)
        return copy

    def _accept_again(self, token_id: int) -> None:
        """Accept a token that another matcher has accepted: also where that had to repeat a key."""
        LLGuidanceMatcher.accept(self, token_id)
        if self._key_tokens.matters[token_id]:
            self._advance(may_repeat=True)

    def _advance(self, *, may_repeat: bool = False) -> bool:
        """Follow the latest tokens; False if they repeat a key."""
        at = self._snapshots[-1]
        try:
            after = self._scanner.follow(at, self._since(at), may_repeat=may_repeat)
        except RepeatedKey:
            self._scanner.restore(at)
            return False
        self._snapshots.append(after)
        self._note(after)
        return True

    def _note(self, at: Snapshot) -> None:
        keys = at.keys
        is_repetition_near = keys is not None and bool(keys.texts)
        self._may_repeat = is_repetition_near or bool(self._scanner.holding) or len(self._key_tokens.two_keys) > 0

    def _since(self, at: Snapshot) -> list[bytes]:
        return [self.grammar.token(token_id) for token_id in self._ids[at.length :]]

    def restrict(self, row: Row) -> None:
        """Remove the tokens that repeat a key from a mask, int32 ``[words]``, in place."""
        if self._may_repeat and (repeating := self._repeated_keys(row)):
            row[:] = _without(repeating, row)

    def _repeated_keys(self, row: Row) -> list[npt.NDArray[np.int64]]:
        """Return tokens that would repeat a key; most are found without looking at the mask that allows others."""
        at, scanner, tokens = self._snapshots[-1], self._scanner, self._key_tokens
        found: list[npt.NDArray[np.int64]] = []
        if (keys := at.keys) is not None and keys.texts:
            beginning = scanner.beginning(at, b"".join(self._since(at)))
            if beginning is not None and at.within is Within.KEY and ends_in_escape(beginning):
                found.append(self._tried(tokens.quoted.tolist(), row))
            elif beginning is not None:
                found += keys.repeating(unescaped(beginning) if at.within is Within.KEY else beginning)
        if scanner.holding or len(tokens.two_keys):
            found.append(self._tried([*scanner.holding, *tokens.two_keys.tolist()], row))
        return [ids for ids in found if len(ids)]

    def _tried(self, ids: Iterable[int], row: Row) -> npt.NDArray[np.int64]:
        """Return those of these tokens that a mask allows and that repeat a key."""
        at, scanner = self._snapshots[-1], self._scanner
        before = self._since(at)
        found = []
        for token_id in ids:
            if row[token_id >> 5] >> (token_id & 31) & 1:
                try:
                    scanner.follow(at, [*before, self.grammar.token(token_id)])
                except RepeatedKey:
                    found.append(token_id)
                scanner.restore(at)
        return np.array(found, dtype=np.int64)


def _without(found: Sequence[npt.NDArray[np.int64]], row: Row) -> Row:
    """Return a mask without tokens, or as it is if no other token is left."""
    left = row.copy()
    words = left.view(np.uint32)
    for ids in found:
        np.bitwise_and.at(words, ids >> 5, ~(np.uint32(1) << (ids & 31).astype(np.uint32)))
    return left if left.any() else row
