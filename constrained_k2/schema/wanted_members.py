"""Splits a closed object: one alternative per key whose member could be what a ``not`` demands.

Such a member is a witness (:class:`~constrained_k2.schema.shapes.Witness`). ``{"not": {"additionalProperties": A}}``
demands a member whose value fails A.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from constrained_k2.schema.instances import is_key_of
from constrained_k2.schema.keywords.keyword import Expander
from constrained_k2.schema.shapes import ANY, Object, Shape, Witness, with_value

_MAX_ALTERNATIVES = 64  # max alternatives of one object, by the keys of its witnesses

Meet = Callable[[Shape, Shape], Shape | None]


def settled(nodes: Expander, shape: Object) -> Object | None:
    """The same objects without the witnesses that a required key guarantees; None if a witness is impossible."""
    left = []
    for wanted in shape.wanted:
        if wanted.value == ANY and any(is_key_of(nodes, wanted, key) for key in shape.required):
            continue
        if is_closed(nodes, shape) and not _candidates(nodes, shape, wanted):
            return None
        left.append(wanted)
    return replace(shape, wanted=frozenset(left))


def chosen(nodes: Expander, shape: Object, meet: Meet, *, every: bool = False) -> list[Shape]:
    """The same objects as alternatives: in each, keys are chosen for the witnesses, and are required.

    No key is chosen for a witness that any value satisfies, since a grammar can write it without alternatives; except
    with ``every``, if at most one key is possible, or if the object's size is limited.
    """
    if not is_closed(nodes, shape):
        return [shape]
    alternatives: list[list[Object]] = []
    left = []
    for wanted in sorted(shape.wanted, key=lambda wanted: wanted.order):
        keys = _candidates(nodes, shape, wanted)
        if not every and wanted.value == ANY and len(keys) > 1 and shape.most is None:
            left.append(wanted)
        else:
            alternatives.append([with_value(key, wanted.value) for key in keys])
    count = 1
    for each in alternatives:
        count *= len(each)
    if not alternatives or count > _MAX_ALTERNATIVES:
        return [shape]
    bare = replace(shape, wanted=frozenset(left))
    return list(
        dict.fromkeys(met for each in product(*alternatives) if (met := _meet_all(bare, each, meet)) is not None)
    )


def _meet_all(shape: Shape, others: tuple[Object, ...], meet: Meet) -> Shape | None:
    met: Shape | None = shape
    for other in others:
        met = None if met is None else meet(met, other)
    return met


def is_closed(nodes: Expander, shape: Object) -> bool:
    """True if an object is certainly closed: one of its maps allows only the keys that it names."""
    return any(not rules.patterns and nodes.is_never(rules.extra) for rules in shape.maps)


def _candidates(nodes: Expander, shape: Object, wanted: Witness) -> list[str]:
    return [key for key in _named(nodes, shape) if is_key_of(nodes, wanted, key)]


def _named(nodes: Expander, shape: Object) -> Iterator[str]:
    """The named keys that may occur."""
    names = shape.required.union(*([name for name, _ in rules.named] for rules in shape.maps))
    for name in sorted(names):
        if not nodes.is_never(nodes.value_node(shape, name)) and nodes.is_instance(shape.names, name):
            yield name
