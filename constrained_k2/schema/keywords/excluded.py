"""Negates ``enum`` and ``const``: describes the values other than the listed ones, for each JSON type.

Arrays are split item by item, and objects member by member, as in a trie of the listed values. Each node of the trie
is an alternative. If the listed arrays, or the listed objects, have more than 64 parts in all, the negation is narrowed
(no array, or no object, is allowed) or relaxed.

{"not": {"const": [1]}}     arrays: [], [not 1, …] and [1, any, …]
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from constrained_k2.schema.doubles import above, below, number_of
from constrained_k2.schema.keywords.keyword import Reader
from constrained_k2.schema.shapes import (
    EVERYTHING,
    Array,
    Boolean,
    KeyMap,
    Kind,
    Node,
    Object,
    Shape,
    String,
    Witness,
    kind_of,
    meet,
    value_of,
    without_key,
)

_MAX_PARTS = 64  # max excluded arrays and their items, or excluded objects and their members


def excluding(read: Reader, keyword: str, values: list[Any]) -> Iterator[Shape]:
    """All values except ``values``, which a keyword lists."""
    by_kind: dict[Kind, list[Any]] = {}
    for value in values:
        by_kind.setdefault(kind_of(value), []).append(value)
    yield from (shape for shape in EVERYTHING if shape.kind not in by_kind)
    if "boolean" in by_kind and (booleans := frozenset({True, False}).difference(by_kind["boolean"])):
        yield Boolean(booleans)
    if "string" in by_kind:
        yield String(excluded=frozenset(by_kind["string"]))
    if "number" in by_kind:
        edges = sorted(set(map(number_of, by_kind["number"])))
        between = (meet(above(low), below(high)) for low, high in pairwise(edges))
        yield from (below(edges[0]), *(shape for shape in between if shape is not None), above(edges[-1]))
    for kind, empty, different in (("array", Array(shortest=1), _arrays), ("object", Object(fewest=1), _objects)):
        if kind in by_kind and not any(by_kind[kind]):
            yield empty
        elif kind in by_kind:
            parts = sum(1 + len(value) for value in by_kind[kind])
            if parts <= _MAX_PARTS and read.normalizer.exact_witnesses:
                yield from different(_Excluder(read, keyword), by_kind[kind])
            else:
                read.note_negation(keyword, f"no {kind} is written")


class _Excluder:
    """Makes synthetic nodes: for one value, or for all values except some."""

    def __init__(self, read: Reader, keyword: str) -> None:
        self._read, self._keyword = read, keyword

    def only(self, value: Any) -> Node:
        return self._read.normalizer.shapes_node((value_of(value),))

    def none_of(self, values: list[Any]) -> Node:
        return self._read.normalizer.shapes_node(tuple(excluding(self._read, self._keyword, values)))


def _distinct(values: list[Any]) -> dict[Shape, Any]:
    return {value_of(value): value for value in values}


def _arrays(make: _Excluder, values: list[list[Any]], path: tuple[Node, ...] = ()) -> Iterator[Shape]:
    """Arrays that begin with the items of ``path`` and differ from ``values``, which begin with ``path`` too."""
    depth = len(path)
    if all(len(value) > depth for value in values):
        yield Array(path, longest=depth, shortest=depth)
    longer = [value for value in values if len(value) > depth]
    firsts = _distinct([value[depth] for value in longer])
    if not longer:
        yield Array(path, shortest=depth + 1)
        return
    yield Array((*path, make.none_of(list(firsts.values()))), shortest=depth + 1)
    for shape, first in firsts.items():
        same = [value for value in longer if value_of(value[depth]) == shape]
        yield from _arrays(make, same, (*path, make.only(first)))


def _objects(make: _Excluder, values: list[dict[str, Any]], path: Object = Object()) -> Iterator[Shape]:  # noqa: B008
    """Objects that have the members of ``path`` and differ from ``values``, which have these members too."""
    known = {name for rules in path.maps for name, _ in rules.named}
    key = min((name for value in values for name in value if name not in known), default=None)
    if not values:
        yield path
    elif key is None:
        yield replace(path, wanted=frozenset({Witness(excluded=frozenset(known))}))
    else:
        lacking = [value for value in values if key not in value]
        yield from _objects(make, lacking, replace(path, maps=path.maps | without_key(key).maps))
        present = _distinct([value[key] for value in values if key in value])
        required = replace(path, required=path.required | {key})
        others = make.none_of(list(present.values()))
        yield replace(required, maps=path.maps | {KeyMap(((key, others),))})
        for shape, item in present.items():
            same = [value for value in values if key in value and value_of(value[key]) == shape]
            yield from _objects(make, same, replace(required, maps=path.maps | {KeyMap(((key, make.only(item)),))}))
