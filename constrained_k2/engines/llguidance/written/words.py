"""The items that an array has so far and that are compared as texts, and the beginnings that lead to nothing else.

``[0,1`` of unequal integers has written ``0``; as nothing follows ``0`` in an integer, no other item may begin so.
"""

from collections.abc import Iterator
from itertools import filterfalse

import numpy as np

from constrained_k2.engines.llguidance.written.language import ItemLanguage
from constrained_k2.engines.llguidance.written.texts import TokensAfter
from constrained_k2.engines.llguidance.written.tokens import Ids, WrittenTokens

_NONE: Ids = np.array([], dtype=np.int64)


class WrittenWords:
    """The texts of such items. A beginning is *spent* if every item that begins so has been written.

    Items are taken back in the reverse order: the counts of ways that are closed make that exact. The item that was
    added last is counted with the next one or for a mask: most items belong to tokens that are only tried.
    """

    __slots__ = (
        "_before", "_closed", "_closers", "_language", "_last", "_least", "_spent", "_spent_tokens", "_texts",
        "_tokens",
    )  # fmt: skip

    def __init__(self, language: ItemLanguage, tokens: WrittenTokens) -> None:
        self._language = language
        self._tokens = tokens
        self._texts: set[bytes] = set()
        self._last: bytes | None = None  # the item that is not counted yet
        self._spent: set[bytes] = set()
        self._least = tokens.longest  # bytes of the shortest of these
        self._spent_tokens: list[int] = []
        self._before: list[tuple[int, int]] = []  # for each item, the length of that list and the least before it
        self._closed: dict[bytes, int] = {}  # beginning -> the ways from it that are closed
        self._closers = TokensAfter()  # that end a text which is there, or go on to a spent beginning

    def __contains__(self, text: bytes) -> bool:
        return text in self._texts

    @property
    def spent_tokens(self) -> list[int]:
        """The tokens that begin an item as a spent one begins, from outside of it."""
        self._count()
        return self._spent_tokens

    def is_spent(self, beginning: bytes) -> bool:
        """Return True if every item that begins so has been written."""
        last = self._last
        if beginning in self._spent or last is None or not last.startswith(beginning):
            return beginning in self._spent
        return all(self._ways_left(last[:end]) == 1 for end in range(len(beginning), len(last) + 1))

    def repeating(self, beginning: bytes) -> list[Ids]:
        """Return the tokens that go on from a beginning to a text that is there, or to a spent beginning."""
        self._count()
        return self._closers.get(beginning, [])

    def crossing(self, beginning: bytes) -> Ids:
        """Return the tokens to try: those that may end this item and begin one that has no way left then."""
        self._count()
        if self._has_one_left(beginning):
            return self._tokens.with_comma
        groups, parting = self._tokens.begin_item, 0
        for end in range(len(beginning) + 1):  # behind other ways that are left, nothing becomes spent
            if self._ways_left(beginning[:end]) > 1:
                parting = end
            if parting >= len(groups) - 1:
                break
        return groups[max(min(parting, self._least - 1, len(groups) - 1), 0)]

    def _has_one_left(self, beginning: bytes) -> bool:
        """Return True if one item alone is left, and it begins so."""
        if any(self._ways_left(beginning[:end]) > 1 for end in range(len(beginning))):
            return False
        while self._ways_left(beginning) == 1:
            following, is_item = self._language.ways(beginning)
            if is_item and beginning not in self._texts:
                return True
            beginning = next(filterfalse(self.is_spent, (beginning + bytes((byte,)) for byte in following)))
        return False

    def _ways_left(self, beginning: bytes) -> int:
        """Return the number of ways from a beginning that are not closed."""
        following, is_item = self._language.ways(beginning)
        return len(following) + is_item - self._closed.get(beginning, 0)

    def add(self, text: bytes) -> None:
        """Add an item that is not there yet."""
        self._count()
        self._texts.add(text)
        self._last = text

    def remove(self, text: bytes) -> None:
        """Remove the item that was added last."""
        self._texts.discard(text)
        if self._last is None:
            self._count_back(text)
        self._last = None

    def _count(self) -> None:
        """Count the latest item."""
        if self._last is None:
            return
        text, self._last = self._last, None
        self._closers.add(self._ways_to_end(text))
        self._before.append((len(self._spent_tokens), self._least))
        for end in range(len(text), -1, -1):
            beginning = text[:end]
            self._closed[beginning] = self._closed.get(beginning, 0) + 1
            if self._ways_left(beginning):
                return
            self._spent.add(beginning)
            self._least = min(self._least, end)
            self._closers.add(self._ways_to(beginning))
            self._spent_tokens += self._tokens.beginning(beginning)

    def _count_back(self, text: bytes) -> None:
        """Take back the count of the latest item."""
        length, self._least = self._before.pop()
        del self._spent_tokens[length:]
        for end in range(len(text), -1, -1):
            beginning = text[:end]
            self._closed[beginning] -= 1
            if not self._closed[beginning]:
                del self._closed[beginning]
            if beginning not in self._spent:
                break
            self._spent.discard(beginning)
            self._closers.remove(self._ways_to(beginning))
        self._closers.remove(self._ways_to_end(text))

    def _ways_to_end(self, text: bytes) -> Iterator[tuple[bytes, Ids]]:
        if text.startswith(b'"'):
            yield from self._ways_to(text)
            return
        yield text, self._tokens.in_words.ids.get(b"", _NONE)
        for rest, ids in self._tokens.in_words.rests_of(text[1:]):
            yield text[: -len(rest)], ids

    def _ways_to(self, beginning: bytes) -> Iterator[tuple[bytes, Ids]]:
        for start in range(max(1, len(beginning) - self._tokens.longest), len(beginning)):
            if len(ids := self._tokens.ids_going_on(beginning[start:])):
                yield beginning[:start], ids
