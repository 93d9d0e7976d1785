"""The state model of a grammar: what a parse state depends on besides the text since the last structural character.

In most schemas the type of a value decides which alternative it belongs to. Then the state needs only the keys that an
object has so far, the number of items of an array, and nothing of a finished string. If that is not enough (``anyOf``
over objects, ``uniqueItems`` of few values, ``contains``) the node is ambiguous, and states inside it are not shared.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from constrained_k2.formats.kimi_k3 import escape
from constrained_k2.grammar.lark.model import Compared, GrammarModel, Members, WrittenNode
from constrained_k2.grammar.patterns.states import of_format
from constrained_k2.schema.shapes import ANY, NEVER, Array, Kind, Node, Object, Shape, String, Value, kind_of_shape
from constrained_k2.schema.string_formats import patterns_of

_quoted = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps makes an encoder for each call with options
AMBIGUOUS = -1  # a node's number where the continuation depends on more than the model records


@dataclass(frozen=True, slots=True)
class ObjectModel:
    """The members of a node's objects."""

    values: Mapping[str, tuple[int, int]]  # declared key -> its own number (from 0) and the node of its value
    extra: int  # the node of the values under all other keys
    counts_extra: bool  # True if the continuation depends on the number of other keys
    keys: tuple[String, ...] = ()  # what the other keys are told apart by; empty if that is more than patterns


@dataclass(frozen=True, slots=True)
class ArrayModel:
    """The items of a node's arrays."""

    prefix: tuple[int, ...]  # the nodes of the first items
    rest: int  # the node of the others
    counted: int  # from this number of items on, further items make no difference

    def item(self, index: int) -> int:
        """Return the node of one item."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class NodeModel:
    """One node: its objects and arrays (None if it has none, or they are ambiguous) and its strings."""

    object: ObjectModel | None = None
    array: ArrayModel | None = None
    free_strings: bool = False  # any string is allowed
    listed_strings: bool = False  # only listed strings are
    strings: tuple[Shape, ...] = ()  # those that are allowed, unless all are, or listed ones only


_ANY_STRING = [String()]
_FREE, _LISTED = NodeModel(free_strings=True), NodeModel(listed_strings=True)  # of nodes without objects and arrays
Kinds = Mapping[str, int]  # JSON type -> the node of the values of that type


@dataclass(frozen=True, slots=True)
class ArgumentsModel:
    """The members of XTML arguments."""

    values: Mapping[str, tuple[int, Kinds]]  # declared key -> its own number (from 0) and the nodes of its values
    extra: Kinds  # the nodes of the values under all other keys
    counts_extra: bool  # as in :class:`ObjectModel`


@dataclass(frozen=True)
class StateModel:
    """All nodes of a grammar, by number, and the number of the root."""

    root: int
    nodes: tuple[NodeModel, ...]
    arguments: ArgumentsModel | None = None  # of the root, if it is written as XTML

    @cached_property
    def longest_name(self) -> int:
        """Bytes of the longest declared key as it is written."""
        names = {name for node in self.nodes if node.object is not None for name in node.object.values}
        sizes = [len(_quoted(name).encode(errors="replace")) for name in names]
        if self.arguments is not None:
            sizes += (len(escape(name).encode(errors="replace")) for name in self.arguments.values)
        return max(sizes, default=0)

    @property
    def key_count(self) -> int:
        """Declared keys of all nodes."""
        of_objects = sum(len(node.object.values) for node in self.nodes if node.object is not None)
        return of_objects + (0 if self.arguments is None else len(self.arguments.values))


def state_model(model: GrammarModel) -> StateModel | None:
    """Return the states of a grammar; None for XTML arguments of several shapes: a prefix may belong to each."""
    numbers = model.numbers
    nodes = tuple(_node(written, numbers) for written in model.nodes.values())
    states = StateModel(numbers[model.root], nodes)
    if model.arguments == NEVER:
        return states
    written = model.nodes[model.arguments]
    if len(written.shapes) != 1 or len(written.objects) != 1:
        return None

    def kinds(node: Node) -> Kinds:
        return {kind: numbers.get(part, AMBIGUOUS) for kind, part in model.parts.get(node, {}).items()}

    ((declared, others, counts_extra),) = written.objects
    values = {name: (key, kinds(node)) for key, (name, node) in enumerate(declared.items())}
    extra = kinds(next(iter(others))) if len(others) == 1 else {}
    return replace(states, arguments=ArgumentsModel(values, extra, counts_extra))


def _node(written: WrittenNode, numbers: Mapping[Node, int]) -> NodeModel:
    by_kind: dict[Kind, list[Shape]] = {}
    for shape in written.shapes:
        by_kind.setdefault(kind_of_shape(shape), []).append(shape)
    strings = by_kind.get("string", [])
    if "object" not in by_kind and "array" not in by_kind and (not strings or strings == _ANY_STRING):
        return _FREE if strings else _LISTED
    for shape in strings:
        for pattern in patterns_of(shape.formats) if isinstance(shape, String) and shape.formats else ():
            of_format(pattern)  # while compiling: the first time takes 20 ms
    is_free, is_listed = _ANY_STRING[0] in strings, all(isinstance(shape, Value) for shape in strings)
    return NodeModel(
        _object(by_kind.get("object", []), written.objects, numbers),
        _array(by_kind.get("array", []), numbers, written.compared),
        free_strings=is_free,
        listed_strings=is_listed,
        strings=() if is_free or is_listed else tuple(strings),
    )


def _object(shapes: list[Shape], members: list[Members], numbers: Mapping[Node, int]) -> ObjectModel | None:
    if len(shapes) != 1 or len(members) != 1:
        return None
    ((declared, others, counts_extra),) = members
    values = {name: (key, numbers.get(node, AMBIGUOUS)) for key, (name, node) in enumerate(declared.items())}
    extra = [numbers.get(node, AMBIGUOUS) for node in others]
    return ObjectModel(values, extra[0] if len(extra) == 1 else AMBIGUOUS, counts_extra, _keys(shapes[0]))


def _keys(shape: Shape) -> tuple[String, ...]:
    if not isinstance(shape, Object) or shape.names != ANY:
        return ()
    names = shape.required.union(*([name for name, _ in rules.named] for rules in shape.maps))
    patterns = sorted({pattern for rules in shape.maps for pattern, _ in rules.patterns})
    return String(excluded=names), *(String(patterns=frozenset({pattern})) for pattern in patterns)


def _array(shapes: list[Shape], numbers: Mapping[Node, int], compared: Compared | None) -> ArrayModel | None:
    if len(shapes) != 1 or not isinstance(shape := shapes[0], Array) or shape.contains:
        return None
    if shape.unique and compared is None:
        return None
    counted = max(len(shape.prefix), shape.shortest) + 1 if shape.longest is None else shape.longest
    prefix = tuple(numbers.get(node, AMBIGUOUS) for node in shape.prefix)
    item = shape.rest if compared is None else compared[0]
    return ArrayModel(prefix, numbers.get(item, AMBIGUOUS), counted)
