"""The items that an array has so far, and the beginnings from which nothing but those could be written."""

from bisect import bisect_left, insort

from constrained_k2.engines.llguidance.unique_items.language import ItemLanguage
from constrained_k2.engines.llguidance.unique_items.objects import Value
from constrained_k2.engines.llguidance.unique_items.tokens import TokenIndex
from constrained_k2.grammar.lark.unique_items import UniqueItems


class WrittenItems:
    """The texts of one array's items. A beginning is *spent* if every item that begins so has been written.

    Items are taken back in the reverse order: the counts of ways that are closed make that exact.
    """

    def __init__(self, language: ItemLanguage, tokens: TokenIndex, spec: UniqueItems | None = None) -> None:
        self.language = language
        self.spec = spec
        self.objects: list[Value] = []
        self.arrays: list[Value] = []
        self.outside: list[int] = []  # tokens that hold an item, or begin one that is spent, from outside of it
        self.after_string: list[int] = []  # the same in a token that ends a string before
        self._tokens = tokens
        self._order: list[bytes | list[Value]] = []  # of an object or array, the list that it is in
        self._before: list[tuple[int, int]] = []  # the length of these lists before each item
        self._texts: set[bytes] = set()
        self._sorted: list[bytes] = []
        self._spent: set[bytes] = set()
        self._spent_sorted: list[bytes] = []
        self._closed: dict[bytes, int] = {}  # beginning -> the ways from it that are closed

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, text: bytes) -> bool:
        return text in self._texts

    @property
    def is_exhausted(self) -> bool:
        """True if no other item is left."""
        return b"" in self._spent and not (self.spec is not None and self.spec.has_containers)

    def is_spent(self, beginning: bytes) -> bool:
        return beginning in self._spent

    def has_one_way(self, beginning: bytes) -> bool:
        """Return True if at most one way that leads on from a beginning is not closed."""
        if self.language.is_endless:
            return False
        following, is_item = self.language.ways(beginning)
        return len(following) + is_item - self._closed.get(beginning, 0) <= 1

    def beginning_with(self, beginning: bytes) -> list[bytes]:
        """Return the items that begin so, without the beginning; of many strings, those that a token can end."""
        if beginning.startswith(b'"') and len(self._texts) > len(self._tokens.closings):
            return [rest for rest in self._tokens.closings if beginning + rest in self._texts]
        return _rests(self._sorted, beginning)

    def spent_after(self, beginning: bytes) -> list[bytes]:
        """Return how the beginning goes on to spent ones."""
        return _rests(self._spent_sorted, beginning)

    def add(self, text: bytes) -> None:
        """Add an item that is not there yet."""
        self._order.append(text)
        self._before.append((len(self.outside), len(self.after_string)))
        self._texts.add(text)
        insort(self._sorted, text)
        self.outside += self._tokens.holding(text)
        self.after_string += self._tokens.second(text)
        if self.language.is_endless:
            return
        beginning = text
        while True:
            closed = self._closed[beginning] = self._closed.get(beginning, 0) + 1
            following, is_item = self.language.ways(beginning)
            if closed < len(following) + is_item:
                return
            self._spent.add(beginning)
            insort(self._spent_sorted, beginning)
            self.outside += self._tokens.beginning(beginning)
            self.after_string += self._tokens.second_beginning(beginning)
            if not beginning:
                return
            beginning = beginning[:-1]

    def add_value(self, value: Value, *, is_object: bool) -> None:
        """Add an object or array that is not there yet."""
        values = self.objects if is_object else self.arrays
        self._order.append(values)
        values.append(value)

    def truncate(self, count: int) -> None:
        """Take back all items after the first ``count``."""
        while len(self._order) > count:
            self._remove_last()

    def _remove_last(self) -> None:
        text = self._order.pop()
        if isinstance(text, list):
            text.pop()
            return
        outside, after_string = self._before.pop()
        del self.outside[outside:], self.after_string[after_string:]
        self._texts.discard(text)
        del self._sorted[bisect_left(self._sorted, text)]
        if self.language.is_endless:
            return
        beginning = text
        while True:
            self._closed[beginning] -= 1
            if not self._closed[beginning]:
                del self._closed[beginning]
            if beginning not in self._spent:
                return
            self._spent.discard(beginning)
            del self._spent_sorted[bisect_left(self._spent_sorted, beginning)]
            if not beginning:
                return
            beginning = beginning[:-1]


def _rests(texts: list[bytes], beginning: bytes) -> list[bytes]:
    found, length = [], len(beginning)
    for at in range(bisect_left(texts, beginning), len(texts)):
        text = texts[at]
        if not text.startswith(beginning):
            break
        found.append(text[length:])
    return found
