"""Members that an object must have (:class:`~constrained_k2.schema.shapes.Wanted`), resolved where its keys are known.

In an object without undeclared keys, only a named one can be the wanted member.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from constrained_k2.schema.instances import is_key_of
from constrained_k2.schema.keywords.keyword import Expander
from constrained_k2.schema.shapes import ANY, Object, Shape, Wanted, with_value

_MAX_WAYS = 64  # of one object, by the members that are the wanted ones

Meet = Callable[[Shape, Shape], Shape | None]


def settled(nodes: Expander, shape: Object) -> Object | None:
    """The same objects without what is certain to be there; None if a wanted member cannot be."""
    left = []
    for wanted in shape.wanted:
        if wanted.value == ANY and any(is_key_of(nodes, wanted, key) for key in shape.required):
            continue
        if is_closed(nodes, shape) and not _candidates(nodes, shape, wanted):
            return None
        left.append(wanted)
    return replace(shape, wanted=frozenset(left))


def chosen(nodes: Expander, shape: Object, meet: Meet, *, every: bool = False) -> list[Shape]:
    """The same objects as alternatives: in each, other named members are the wanted ones, and are required.

    Members that are wanted for their keys alone stay as they are, unless ``every`` one is to be chosen, only one key
    can be meant, or the object's size is limited: to write them, a grammar can do without alternatives.
    """
    if not is_closed(nodes, shape):
        return [shape]
    ways: list[list[Object]] = []
    left = []
    for wanted in sorted(shape.wanted, key=lambda wanted: wanted.order):
        keys = _candidates(nodes, shape, wanted)
        if not every and wanted.value == ANY and len(keys) > 1 and shape.most is None:
            left.append(wanted)
        else:
            ways.append([with_value(key, wanted.value) for key in keys])
    count = 1
    for way in ways:
        count *= len(way)
    if not ways or count > _MAX_WAYS:
        return [shape]
    bare = replace(shape, wanted=frozenset(left))
    return list(dict.fromkeys(met for way in product(*ways) if (met := _meet_all(bare, way, meet)) is not None))


def _meet_all(shape: Shape, others: tuple[Object, ...], meet: Meet) -> Shape | None:
    met: Shape | None = shape
    for other in others:
        met = None if met is None else meet(met, other)
    return met


def is_closed(nodes: Expander, shape: Object) -> bool:
    """True if it is plain that an object has no other keys than those that its maps name."""
    return any(not rules.patterns and nodes.is_never(rules.extra) for rules in shape.maps)


def _candidates(nodes: Expander, shape: Object, wanted: Wanted) -> list[str]:
    return [key for key in _named(nodes, shape) if is_key_of(nodes, wanted, key)]


def _named(nodes: Expander, shape: Object) -> Iterator[str]:
    """The named keys that may occur."""
    names = shape.required.union(*([name for name, _ in rules.named] for rules in shape.maps))
    for name in sorted(names):
        if not nodes.is_never(nodes.value_node(shape, name)) and nodes.is_instance(shape.names, name):
            yield name
