"""An object or array as an item of unequal ones: which of its members would leave nothing but a repetition.

The earlier items that agree with what is written so far are counted. There is a way on as long as fewer of them agree
than there are ways to complete the item. So a closed object is decided where its last free member ends.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from constrained_k2.grammar.lark.unique_items import ItemObject, Member

Value = Mapping[str | int, bytes]
"""An item's members, or an array's items, each as a text that is equal for equal values."""


class ItemState(NamedTuple):
    """An item that is being written."""

    members: Mapping[str, Member] | None  # of a closed object; None if there is always another member to write
    agreeing: tuple[Value, ...]  # the earlier items that agree with it
    earlier: tuple[Value, ...]  # all of these
    written: Mapping[str | int, bytes] = {}
    key: str | int = 0  # of the member that is being written
    depth: int = 0  # objects and arrays that are open within the item, with it

    @classmethod
    def begin(cls, spec: ItemObject | None, earlier: Iterable[Value], depth: int) -> "ItemState":
        """Begin an item; ``spec`` is that of a closed object."""
        values = tuple(earlier)
        return cls(None if spec is None else dict(spec.members), values, values, depth=depth)

    def with_key(self, key: str | int) -> "ItemState | None":
        """Begin a member; None if every value of it would lead to a repetition."""
        if key in self.written:  # an open object's key again: the last value counts
            written = {name: value for name, value in self.written.items() if name != key}
            agreeing = tuple(one for one in self.earlier if key in one and written.items() <= one.items())
            return self._replace(written=written, agreeing=agreeing, key=key)
        agreeing = tuple(one for one in self.agreeing if key in one)
        if self.members is not None and agreeing and self._ways(key) <= len(agreeing):
            return None
        return self._replace(agreeing=agreeing, key=key)

    def with_value(self, text: bytes) -> "ItemState | None":
        """End a member; None if only a repetition is left then."""
        agreeing = tuple(one for one in self.agreeing if one[self.key] == text)
        if self.members is not None and agreeing and self._rest(self.key) <= len(agreeing):
            return None
        return self._replace(agreeing=agreeing, written={**self.written, self.key: text})

    def spent_values(self) -> list[bytes]:
        """Return the texts of strings, numbers and so on with which the member cannot end."""
        if self.members is None or not self.agreeing or (rest := self._rest(self.key)) > len(self.agreeing):
            return []
        counts = Counter(one[self.key] for one in self.agreeing)
        return [text for text, count in counts.items() if rest <= count and text[:1] not in b"{["]

    def may_agree(self, beginning: bytes) -> bool:
        """Return True if a member that begins so may have the value that it has in an earlier item."""
        return any(one[self.key].startswith(beginning) for one in self.agreeing)

    def may_go_on(self) -> bool:
        """Return True if another member leads to an item that is not there yet."""
        if self.members is None or not self.agreeing:
            return True
        left = [key for key in self.members if key not in self.written]
        return any(self._ways(key) > sum(key in one for one in self.agreeing) for key in left)

    def has_as_many(self, more: int) -> bool:
        """Return True if an earlier item has as many members as this one, or up to so many more."""
        return any(0 <= len(one) - len(self.written) <= more for one in self.agreeing)

    def is_repeated(self) -> bool:
        """Return True if the item is there already, as it is written so far."""
        return any(len(one) == len(self.written) for one in self.agreeing)

    def _ways(self, key: str | int) -> int:
        """The number of ways to complete the item with a member."""
        assert self.members is not None
        return self.members[str(key)].count * self._rest(key)

    def _rest(self, key: str | int) -> int:
        """The number of ways to complete the item after a member."""
        assert self.members is not None
        others = (one for name, one in self.members.items() if name not in self.written and name != key)
        return prod(one.count + (not one.is_required) for one in others)


def canonical(text: bytes) -> bytes:
    """Return a text that is equal for equal values: of two numbers that are one double, too."""
    return json.dumps(_number_free(json.loads(text)), sort_keys=True).encode()


def _number_free(value: Any) -> Any:
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return {"": [str(value)]}
    if isinstance(value, float):
        return value or 0.0
    if isinstance(value, list):
        return [_number_free(item) for item in value]
    if isinstance(value, dict):
        return {key: _number_free(item) for key, item in value.items()}
    return value
