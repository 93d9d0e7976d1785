"""Removes tokens that repeat a key or a ``uniqueItems`` item from a mask, if other tokens remain.

After {"a":1," in an object with any keys, the mask loses the tokens ``a"`` and ``a":``, not ``ab"``. A mask
that has no other tokens stays as it is.
"""

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.uniqueness.items import NO_PATHS, ItemPaths
from constrained_k2.engines.llguidance.uniqueness.scanner import Repetition, Scanner, Snapshot, Within
from constrained_k2.engines.llguidance.uniqueness.tokens import TokenEffects

Row = npt.NDArray[np.int32]


class UniquenessFilter:
    """The uniqueness filter of one call, stage 4 of its masks: stores the seen keys and items, and removes repeats.

    No mask becomes empty: if every key or item with the current prefix has been written (possible with a pattern, a
    length, a range or few names), one may repeat. A repeated key's last value counts; coverage reports such items as
    relaxed.

    Args:
        tokens: The vocabulary's tokens, by their effect on keys and items.
        paths: The grammar's ``uniqueItems`` arrays.
        is_xml: True if the arguments are XTML blocks.
        token: Returns the bytes of a token id.

    Attributes:
        matters: By token id, the bits of :class:`~constrained_k2.engines.llguidance.uniqueness.tokens.TokenEffect`.
        watched: The bits of the tokens that :meth:`follow` must be called with. Other tokens do not change the filter.
        may_repeat: False if no token can repeat a key or item, now or after tokens that :meth:`follow` need not see.
    """

    __slots__ = ("_given", "_scanner", "_snapshots", "_token", "_tokens", "_two", "matters", "may_repeat", "watched")

    def __init__(self, tokens: TokenEffects, paths: ItemPaths, *, is_xml: bool, token: Callable[[int], bytes]) -> None:
        self._given = tokens, paths, is_xml, token
        self._token = token
        self._tokens = tokens
        self.matters = tokens.matters
        self.watched = 0
        self._two = tokens.two_keys.tolist()  # tokens that may contain two keys or items
        if paths is not NO_PATHS:
            self._two += tokens.two_items.tolist()
        self._scanner = Scanner(tokens, paths, is_xml=is_xml)
        self._snapshots = [self._scanner.start]  # after each token that mattered
        self.may_repeat = False
        self._note(self._scanner.start)

    def follow(self, token_id: int, length: int, *, may_repeat: bool = False) -> bool:
        """Follow the last of ``length`` tokens, which the grammar allows; False if it repeats a key or an item."""
        at = self._snapshots[-1]
        try:
            after = self._scanner.follow(at, self._token(token_id), length, may_repeat=may_repeat)
        except Repetition:
            self._scanner.restore(at)
            return False
        self._scanner.hold()
        self._snapshots.append(after)
        self._note(after)
        return True

    def truncate(self, length: int) -> None:
        """Undo all tokens after the first ``length``."""
        while self._snapshots[-1].length > length:
            self._snapshots.pop()
        at = self._snapshots[-1]
        self._scanner.restore(at)
        self._note(at)

    def after(self, ids: Iterable[int]) -> "UniquenessFilter":
        """Return another filter that has followed these tokens; repeats among them are accepted."""
        tokens, paths, is_xml, token = self._given
        other = UniquenessFilter(tokens, paths, is_xml=is_xml, token=token)
        for number, token_id in enumerate(ids, 1):
            if other.matters[token_id] & other.watched:
                other.follow(token_id, number, may_repeat=True)
        return other

    def narrow(self, row: Row) -> None:
        """Remove the tokens that repeat a key or an item from a mask, int32 ``[words]``, in place."""
        if self.may_repeat and (left := self.without_repetitions(row)) is not row:
            row[:] = left

    def _note(self, at: Snapshot) -> None:
        self.watched = at.watched
        self.may_repeat = bool(self._scanner.holding or self._two or at.texts or at.alone)

    def without_repetitions(self, row: Row) -> Row:
        """Return a mask without tokens that repeat a key or item; the same row if it has no such token or no other."""
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
        """Return the tokens among ``ids`` that a mask allows and that repeat a key or item."""
        at, scanner = self._snapshots[-1], self._scanner
        found = []
        for token_id in ids[(row[ids >> 5] >> (ids & 31)) & 1 != 0].tolist():
            try:
                scanner.follow(at, self._token(token_id), 0)
            except Repetition:
                found.append(token_id)
            scanner.restore(at)
        return np.array(found, dtype=np.int64)


def _without(found: Iterable[npt.NDArray[np.int64]], row: Row) -> Row:
    """Return a mask without the tokens ``found``; the same row if it has none of them, or nothing else."""
    left = row.copy()
    words = left.view(np.uint32)
    for ids in found:
        np.bitwise_and.at(words, ids >> 5, ~(np.uint32(1) << (ids & 31).astype(np.uint32)))
    return left if left.any() and (left != row).any() else row
