"""The numbers, words and listed strings that an array has so far, and the beginnings that lead to nothing else.

``[0,1`` of unequal integers has written ``0``; as nothing follows ``0`` in an integer, no other item may begin so.
"""

from collections.abc import Iterator

import numpy as np

from constrained_k2.engines.llguidance.written.language import ItemLanguage
from constrained_k2.engines.llguidance.written.texts import TokensAfter
from constrained_k2.engines.llguidance.written.tokens import Ids, WrittenTokens

_NONE: Ids = np.array([], dtype=np.int64)


class WrittenWords:
    """The texts of such items. A beginning is *spent* if every item that begins so has been written.

    Items are taken back in the reverse order: the counts of ways that are closed make that exact.
    """

    __slots__ = ("_before", "_closed", "_closers", "_language", "_spent", "_texts", "_tokens", "spent_tokens")

    def __init__(self, language: ItemLanguage, tokens: WrittenTokens) -> None:
        self.spent_tokens: list[int] = []  # that begin an item as a spent one begins, from outside of it
        self._language = language
        self._tokens = tokens
        self._before: list[int] = []  # the length of that list before each item
        self._texts: set[bytes] = set()
        self._spent: set[bytes] = set()
        self._closed: dict[bytes, int] = {}  # beginning -> the ways from it that are closed
        self._closers = TokensAfter()  # that end a text which is there, or go on to a spent beginning

    def __contains__(self, text: bytes) -> bool:
        return text in self._texts

    @property
    def has_spent(self) -> bool:
        """True if some beginning is spent."""
        return bool(self._spent)

    def is_spent(self, beginning: bytes) -> bool:
        """Return True if every item that begins so has been written."""
        return beginning in self._spent

    def repeating(self, beginning: bytes) -> list[Ids]:
        """Return the tokens that go on from a beginning to a text that is there, or to a spent beginning."""
        return self._closers.get(beginning, [])

    def add(self, text: bytes) -> None:
        """Add an item that is not there yet."""
        self._texts.add(text)
        self._closers.add(self._ways_to_end(text))
        self._before.append(len(self.spent_tokens))
        if not self._language.holds(text):  # the next best grammar writes numbers in other ways, too
            return
        for end in range(len(text), -1, -1):
            beginning = text[:end]
            closed = self._closed[beginning] = self._closed.get(beginning, 0) + 1
            following, is_item = self._language.ways(beginning)
            if closed < len(following) + is_item:
                return
            self._spent.add(beginning)
            self._closers.add(self._ways_to(beginning))
            self.spent_tokens += self._tokens.beginning(beginning)

    def remove(self, text: bytes) -> None:
        """Remove the item that was added last."""
        del self.spent_tokens[self._before.pop() :]
        for end in range(len(text), -1, -1):
            beginning = text[:end]
            if beginning not in self._closed:
                break
            self._closed[beginning] -= 1
            if not self._closed[beginning]:
                del self._closed[beginning]
            if beginning not in self._spent:
                break
            self._spent.discard(beginning)
            self._closers.remove(self._ways_to(beginning))
        self._closers.remove(self._ways_to_end(text))
        self._texts.discard(text)

    def _ways_to_end(self, text: bytes) -> Iterator[tuple[bytes, Ids]]:
        is_string = text.startswith(b'"')
        closing, text = (self._tokens.in_json, text[:-1]) if is_string else (self._tokens.in_words, text)
        yield text, closing.ids.get(b"", _NONE)
        for rest, ids in closing.rests_of(text[1:]):
            yield text[: -len(rest)], ids

    def _ways_to(self, beginning: bytes) -> Iterator[tuple[bytes, Ids]]:
        for start in range(max(1, len(beginning) - self._tokens.longest), len(beginning)):
            if ids := self._tokens.going_on(beginning[start:]):
                yield beginning[:start], np.array(ids, dtype=np.int64)
