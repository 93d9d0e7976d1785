"""Interns grammar nodes: equal nodes of different tools become one object, compared by identity.

For example, the node of any integer is one object for all tools.
"""

from collections.abc import Hashable
from typing import NamedTuple
from weakref import WeakValueDictionary

from constrained_k2.engines.llguidance.direct.rules import DirectModel, NumberKind, ObjectRule, ValueRule
from constrained_k2.engines.llguidance.direct.tokens import TokenTrie

ENDLESS = -1
"""The number of items that may follow in an array without ``maxItems``."""


class Terminal(NamedTuple):
    """A terminal that a whole string or number matches."""

    is_string: bool
    expression: str

    @property
    def opening(self) -> bytes:
        """The bytes that every lexeme begins with."""
        return b'"' if self.is_string else b""


class Level(NamedTuple):
    """An open object or array, after one of its values."""

    is_object: bool
    may_end: bool
    may_go_on: bool
    value: "InternedNode | None"  # an array's item, or the value of undeclared keys; None for a closed object
    any_spelling: bool = False  # True if undeclared keys may be escaped in any way
    fewest: int = 0  # items that an array still needs, as far as one token can reach
    most: int = ENDLESS  # items that may follow in an array, as far as one token can reach

    def after_item(self) -> "Level":
        """Return the array after one more item: a token such as ``","","`` contains whole items."""
        if not self.fewest and self.most == ENDLESS:
            return self
        fewest, most = max(self.fewest - 1, 0), self.most if self.most == ENDLESS else max(self.most - 1, 0)
        return self._replace(may_end=not fewest, may_go_on=bool(most), fewest=fewest, most=most)


Levels = tuple[Level, Level, Level, Level]
"""The levels of an object, by ``2 * may_end + may_go_on``."""


def _levels(*, value: "InternedNode | None", any_spelling: bool = False) -> Levels:
    neither, more, end, both = (
        Level(is_object=True, may_end=may_end, may_go_on=may_go_on, value=value, any_spelling=any_spelling)
        for may_end in (False, True)
        for may_go_on in (False, True)
    )
    return neither, more, end, both


_OF_CLOSED_OBJECTS = _levels(value=None)


class Members:
    """The members of objects.

    Args:
        keys: The declared keys as JSON, quotes included, and their values.
        required: The required keys, as bits.
        extra: The value of undeclared keys; None for a closed object.
        any_spelling: True if undeclared keys may be escaped in any way.
        is_known: False if one token can end a value and continue so far into the next key that its legality depends on
            the key.
    """

    __slots__ = ("_all", "_levels", "any_spelling", "extra", "is_known", "keys", "required")

    def __init__(
        self,
        keys: "tuple[tuple[bytes, InternedNode], ...]",
        required: int,
        extra: "InternedNode | None",
        *,
        any_spelling: bool,
        is_known: bool,
    ) -> None:
        self.keys, self.required, self.extra = keys, required, extra
        self.any_spelling, self.is_known = any_spelling, is_known
        self._all = (1 << len(keys)) - 1 if extra is None else -1
        is_closed = extra is None and not any_spelling
        self._levels = _OF_CLOSED_OBJECTS if is_closed else _levels(value=extra, any_spelling=any_spelling)

    def level(self, keys: int) -> Level:
        """Return an object after a member; ``keys`` has the bits of the declared keys written so far."""
        required = self.required
        return self._levels[2 * (keys & required == required) + (keys != self._all)]


class InternedNode:
    """The values of a grammar node, interned: equal nodes are one object.

    Args:
        rule: The node's rule; None if it is opaque.
        reach: The most items that one token can contain.
    """

    __slots__ = ("__weakref__", "_levels", "_reach", "has_strings", "is_opaque", "item", "listed", "longest",
                 "members", "number", "range", "shortest", "string", "words")  # fmt: skip

    def __init__(self, rule: ValueRule | None, reach: int = 0) -> None:
        self._reach = reach
        self.is_opaque = rule is None
        rule = rule or ValueRule()
        self.has_strings, self.listed = rule.has_strings, rule.listed
        self.number: NumberKind = rule.number
        self.string = Terminal(True, rule.string) if rule.string else None  # noqa: FBT003 - a field
        self.range = Terminal(False, rule.range) if rule.range else None  # noqa: FBT003 - a field
        self.words = rule.words
        self.members: Members | None = None
        self.item: InternedNode | None = None
        self.shortest = 0 if rule.array is None else rule.array.shortest
        self.longest = None if rule.array is None else rule.array.longest
        self._levels: dict[tuple[int, int], Level] = {}

    def level(self, index: int) -> Level:
        """Return an array after the item with this index."""
        count = index + 1
        fewest = min(max(self.shortest - count, 0), self._reach)
        most = ENDLESS if self.longest is None else min(max(self.longest - count, 0), self._reach)
        level = self._levels.get((fewest, most))
        if level is None:
            level = Level(
                is_object=False, may_end=not fewest, may_go_on=bool(most), value=self.item, fewest=fewest, most=most
            )
            self._levels[fewest, most] = level
        return level


class Values:
    """Interns the nodes of all grammars over one vocabulary."""

    def __init__(self, trie: TokenTrie) -> None:
        self._trie = trie
        self._known: WeakValueDictionary[Hashable, InternedNode] = WeakValueDictionary()
        self._opaque = InternedNode(None)
        self._any: InternedNode | None = None  # any JSON value; its members and items are any value again

    def of(self, model: DirectModel) -> tuple[InternedNode, ...]:
        """Return the values of a grammar's nodes, by number. Recursive nodes are not shared with other grammars."""
        made = _Made(model, self._known, self._opaque, self._trie)
        for number, rule in enumerate(model):
            if rule is not None and rule.object is not None and rule.object.any_spelling:
                if self._any is None:
                    self._any = made.value(number)
                made.values[number] = self._any
        return tuple(made.value(number) for number in range(len(model)))


class _Made:
    def __init__(
        self,
        model: DirectModel,
        known: WeakValueDictionary[Hashable, InternedNode],
        opaque: InternedNode,
        trie: TokenTrie,
    ) -> None:
        self._model = model
        self._known = known
        self._opaque = opaque
        self._trie = trie
        self.values: dict[int, InternedNode] = {}
        self._begun: dict[int, InternedNode | None] = {}  # enclosing node -> its value, None if not created yet

    def value(self, number: int) -> InternedNode:
        if (found := self.values.get(number)) is not None:
            return found
        rule = self._model[number]
        if rule is None:
            return self._opaque
        if number in self._begun:  # the node contains itself
            found = self._begun[number] = self._begun[number] or InternedNode(rule, self._trie.reach)
            return found
        self._begun[number] = None
        members = None if rule.object is None else self._members(rule.object)
        item = None if rule.array is None else self.value(rule.array.item)
        value = self._begun.pop(number)
        if value is None and not self._begun_values():
            key = (rule.has_strings, rule.listed, rule.string, rule.number, rule.range, rule.words, _key_of(members),
                   item, rule.array and (rule.array.shortest, rule.array.longest))  # fmt: skip
            value = self._known.get(key)
            if value is None:
                value = _filled(InternedNode(rule, self._trie.reach), members, item)
                value = self._known.setdefault(key, value)
        else:
            value = _filled(value or InternedNode(rule, self._trie.reach), members, item)
        self.values[number] = value
        return value

    def _begun_values(self) -> bool:
        """Return True if the current node may contain an enclosing node. Then other grammars cannot share it."""
        return any(value is not None for value in self._begun.values())

    def _members(self, rule: ObjectRule) -> Members:
        keys = tuple((written, self.value(node)) for written, node in rule.keys)
        extra = None if rule.extra is None else self.value(rule.extra)
        if extra is not None:
            is_known = self._trie.endings.isdisjoint(written[1:-1] for written, _ in rule.keys)
        else:
            is_known = self._trie.key_starts.isdisjoint(written[1] for written, _ in rule.keys)
        return Members(keys, rule.required, extra, any_spelling=rule.any_spelling, is_known=is_known)


def _key_of(members: Members | None) -> Hashable:
    return members and (members.keys, members.required, members.extra, members.any_spelling)


def _filled(value: InternedNode, members: Members | None, item: InternedNode | None) -> InternedNode:
    value.members, value.item = members, item
    return value
