"""The shapes that a position leaves to a value, the one with about the shortest instance first.

{"anyOf": [{"$ref": "#"}, {"type": "null"}]}     Null, 4 characters; then Object, whose own ``anyOf`` is in it again

They are those of the grammar (:mod:`constrained_k2.schema.normalize`), expanded only where an ending needs them.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from math import inf
from threading import RLock
from typing import Any

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.instances import is_key_of
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    Array,
    Kind,
    Node,
    Object,
    Shape,
    Shapes,
    String,
    Value,
    Wanted,
    value_of,
)
from constrained_k2.turn.cursors.json_cursor import spelled
from constrained_k2.turn.endings.text_rests import has_match

_ROOT: Node = frozenset({("#", True)})
_MAX_SHAPES = 32  # of one node, besides its constants
_MAX_CONSTANTS = 256
_MAX_MEETINGS = 3000  # of shapes, for one document in all: some 50 ms; what is not known then may be anything
_MAX_STEPS = 200  # of the search for one shortest value; what is not known then counts as endless
_MAX_DEPTH = 48  # of values
_PATTERN_LENGTH = 12  # of a string with a pattern or a format, in characters
_DOCUMENTS = 16
_lock = RLock()  # an expansion that another thread meets half done would look like a schema without an end
_LEAST: dict[Kind, int] = {"number": 1, "null": 4, "boolean": 4}


class ShortestValues:
    """The shapes of one document's values, each found once."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._nodes = Normalizer(SchemaDocument(root), has_match)
        self._nodes.notes.max_meetings = _MAX_MEETINGS
        self._shapes: dict[Node, list[Shape]] = {}
        self._lengths: dict[Node, float] = {}
        self._keys: dict[int, tuple[Object, list[str]]] = {}  # by identity: maps of thousands take long to hash
        self._left = 0  # steps of the search
        self._is_cut = False  # whether a node was met within itself, or a bound was reached
        self._is_instance = lru_cache(maxsize=1024)(self._may_be)

    def shapes(self, node: Node = _ROOT) -> list[Shape]:
        """The shapes of a node's instances; by default of the document's."""
        found = self._shapes.get(node)
        if found is None:
            in_order = sorted(self._expanded(node), key=self.length)
            constants = [shape for shape in in_order if isinstance(shape, Value)][:_MAX_CONSTANTS]
            others = [shape for shape in in_order if not isinstance(shape, Value)][:_MAX_SHAPES]
            kept = set(map(id, (*constants, *others)))
            found = self._shapes[node] = [shape for shape in in_order if id(shape) in kept]
        return found

    def items(self, shape: Shape, number: int) -> list[Shape]:
        """The shapes of item ``number`` (from 0) of an array. Shapes demanded by ``contains`` come first."""
        if isinstance(shape, Value):
            values = shape.value
            return [value_of(value) for value in values[number : number + 1]] if isinstance(values, list) else []
        if not isinstance(shape, Array):
            return []
        return [*self.contained(shape, number), *self.shapes(_item(shape, number))]

    def contained(self, shape: Shape, number: int) -> list[Shape]:
        """The shapes of an item that an array must contain, if item ``number`` is to be one."""
        if not isinstance(shape, Array):
            return []
        wishes = [wish for wish, fewest, _ in shape.wishes if fewest]
        first = number % len(wishes) if wishes else 0  # one may be satisfied already
        several = [self.shapes(wish | _item(shape, number)) for wish in (*wishes[first:], *wishes[:first])]
        return [one for found in several for one in found if self.length(one) < inf]

    def members(self, shape: Shape, key: str) -> list[Shape]:
        """The shapes of the value of an object's key."""
        if isinstance(shape, Value):
            members = shape.value
            return [value_of(members[key])] if isinstance(members, dict) and key in members else []
        if not isinstance(shape, Object):
            return []
        node = self._nodes.value_node(shape, key)
        wanted = [one.value for one in shape.wanted if one.value != ANY and self._is_key_of(one, key)]
        return [one for each in (*(node | value for value in wanted), node) for one in self.shapes(each)]

    def may_have(self, shape: Shape, key: str, text: str) -> bool:
        """True if an object may have a key with this value, as JSON; empty for one that is not known."""
        if not isinstance(shape, Object):
            return isinstance(shape, Value) and key in shape.value
        node = self._nodes.value_node(shape, key)
        return not self._nodes.is_never(node) and (not text or self._is_instance(node, text))

    def missing(self, shape: Shape, written: set[str]) -> list[str]:
        """The keys that an object lacks, in the order of the schema; ``written``: its own, as JSON without quotes."""
        keys = [key for key in self.declared(shape) if spelled(key) not in written]
        if not isinstance(shape, Object):
            return keys
        keys = [key for key in keys if key in shape.required]
        several = (self._texts(one.names) for one in sorted(shape.wanted, key=lambda one: one.order))
        return keys + [names[0] for names in several if names and written.isdisjoint(map(spelled, names))]

    def declared(self, shape: Shape) -> list[str]:
        """The keys that an object may have by name, in the order of the schema; those that are required alone last."""
        if not isinstance(shape, Object):
            return list(shape.value) if isinstance(shape, Value) and shape.value_kind == "object" else []
        found = self._keys.get(id(shape))
        if found is None:
            keys = dict.fromkeys([*shape.in_order(), *sorted(shape.required), *self._texts(shape.names)])
            found = self._keys[id(shape)] = shape, [key for key in keys if self.may_have(shape, key, "")]
        return found[1]

    def _texts(self, node: Node) -> list[str]:
        """The keys that a node lists."""
        found = () if node == ANY else self.shapes(node)
        return [name.value for name in found if isinstance(name, Value) and name.value_kind == "string"]

    def key_patterns(self, shapes: Iterable[Shape]) -> Iterable[tuple[str, ...]]:
        """The patterns of the keys that objects do not declare, those of one key together; demanded ones first."""
        wanted, others = list[tuple[str, ...]](), list[tuple[str, ...]]()
        for shape in shapes:
            if isinstance(shape, Object):
                wanted += [tuple(sorted(one.found)) for one in shape.wanted if one.found]
                others += [(pattern,) for rules in shape.maps for pattern, _ in rules.patterns]
                names = () if shape.names == ANY else self.shapes(shape.names)
                others += [tuple(sorted(name.patterns)) for name in names if isinstance(name, String) and name.patterns]
        return dict.fromkeys((*wanted, *others))

    def length(self, shape: Shape) -> float:
        """The characters of about the shortest instance; infinite if there is none, or if it is not known."""
        with _lock:
            self._left, self._is_cut = _MAX_STEPS, False
            return self._length(shape, set())

    def length_of_member(self, shape: Shape, key: str) -> float:
        """As :meth:`length`, of the value of a key."""
        if not isinstance(shape, Object):
            return min(map(self.length, self.members(shape, key)), default=inf)
        with _lock:
            self._left, self._is_cut = _MAX_STEPS, False
            return self._shortest(self._nodes.value_node(shape, key), set())

    def _expanded(self, node: Node) -> Shapes:
        with _lock, suppress(SchemaTooCostly, UnsupportedSchema, RecursionError):
            return self._nodes.shapes(node)
        return EVERYTHING

    def _may_be(self, node: Node, text: str) -> bool:
        """True if a value, as JSON, may satisfy a node."""
        with _lock, suppress(ValueError, SchemaTooCostly, UnsupportedSchema, RecursionError):
            return self._nodes.is_instance(node, json.loads(text))
        return True

    def _is_key_of(self, wanted: Wanted, key: str) -> bool:
        """True if a member with this key may be the one that is wanted."""
        with suppress(UnsupportedSchema, SchemaTooCostly):
            return is_key_of(self._nodes, wanted, key)
        return False

    def _shortest(self, node: Node, within: set[Node]) -> float:
        known = self._lengths.get(node)
        if known is not None:
            return known
        if node in within or len(within) > _MAX_DEPTH or self._left <= 0:
            self._is_cut = True
            return inf  # a value that holds one of the same node is not the shortest
        self._left -= 1
        length = min((self._length(shape, within | {node}) for shape in self._expanded(node)), default=inf)
        if not (self._is_cut and within):  # inside a cycle, what was cut off may count elsewhere
            self._lengths[node] = length
        return length

    def _length(self, shape: Shape, within: set[Node]) -> float:
        match shape:
            case Value():
                return len(shape.text)
            case String():
                return 2 + max(shape.shortest, _PATTERN_LENGTH * bool(shape.patterns or shape.formats))
            case Array():
                given = shape.prefix[: shape.shortest]
                more = shape.shortest - len(given)
                length = 2 + sum(1 + self._shortest(node, within) for node in given)
                if not shape.shortest:
                    wishes = [wish for wish, fewest, _ in shape.wishes if fewest]
                    return length + sum(self._shortest(wish | _item(shape, 0), within) for wish in wishes)
                return length + more * (1 + self._shortest(shape.rest, within)) if more else length
            case Object():
                self._left -= len(shape.required)
                values = ((key, self._nodes.value_node(shape, key)) for key in shape.required)
                return 2 + sum(len(key) + 4 + self._shortest(node, within) for key, node in values)
        return _LEAST[shape.kind]


def _item(shape: Array, number: int) -> Node:
    return shape.prefix[number] if number < len(shape.prefix) else shape.rest


_documents: OrderedDict[int, ShortestValues] = OrderedDict()


def values_of(root: Any) -> ShortestValues:
    """The shapes of a decoded document's values; those of the latest documents are kept."""
    with _lock:
        found = _documents.get(id(root))
        if found is None or found.root is not root:
            found = _documents[id(root)] = ShortestValues(root)
            while len(_documents) > _DOCUMENTS:
                _documents.popitem(last=False)
        return found
