"""The table of JSON Schema keywords: the instances each one allows, its negation, its subschemas.

A key of a schema that is not in the table is an annotation. The rows are in the other files of this folder;
``tests/schema/cases`` has one file of instances for each keyword.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.schema.document import IllFormed, SchemaDocument, escape
from constrained_k2.schema.keywords import applicators, containers, scalars
from constrained_k2.schema.keywords.keyword import Children, Keyword, Reader
from constrained_k2.schema.keywords.unevaluated import with_unevaluated
from constrained_k2.schema.shapes import EVERYTHING, Node, Number, Shape, Shapes, meet

ROWS = with_unevaluated((*scalars.KEYWORDS, *containers.KEYWORDS, *applicators.KEYWORDS))
"""All rows in the order of evaluation, which also orders the alternatives in grammars."""
KEYWORDS: dict[str, Keyword] = {name: row for row in ROWS for name in row.names}
"""Keyword -> its row."""
_PARENTS = frozenset(name for name, row in KEYWORDS.items() if row.names[name])
"""The keywords that may have subschemas."""
_TO_REFERENCES, _TO_ARRAYS, _TO_MAPS, _TO_SCHEMAS = (
    frozenset(name for name in _PARENTS if part in KEYWORDS[name].names[name])
    for part in (Children.REFERENCE, Children.ARRAY, Children.MAP, Children.SCHEMA)
)  # sets, because each keyword of a schema is tested and operators of enum.Flag are slow
_PLAIN: dict[str, Shapes] = {shape.kind: (shape,) for shape in EVERYTHING} | {"integer": (Number(integer=True),)}
_ORDER = {name: number for number, row in enumerate(ROWS) for name in row.names}


def rows_of(schema: dict[str, Any]) -> tuple[Keyword, ...]:
    """The rows of a schema's keywords."""
    return _rows(tuple(name for name in schema if name in _ORDER))


@lru_cache(1024)
def _rows(names: tuple[str, ...]) -> tuple[Keyword, ...]:
    return tuple(ROWS[number] for number in sorted({_ORDER[name] for name in names}))


def plain_shapes(schema: dict[str, Any]) -> Shapes | None:
    """The shapes of a schema whose only keyword is ``type`` with one valid name; None for any other schema."""
    name = schema.get("type")
    return _PLAIN.get(name) if isinstance(name, str) and len(rows_of(schema)) == 1 else None


def typed_shapes(read: Reader) -> Shapes:
    """One shape for each allowed JSON type, within the bounds of all keywords for that type."""
    name = read.schema.get("type")
    plain = _PLAIN.get(name) if isinstance(name, str) else None
    shapes: dict[str, Shape | None] = {shape.kind: shape for shape in plain or scalars.type_shapes(read)}
    for row in rows_of(read.schema):
        if row.bounds is None:
            continue
        for bound in lenient(row.bounds, read, row) or ():
            if (known := shapes.get(bound.kind)) is not None:
                shapes[bound.kind] = meet(known, bound)
    return tuple(shape for shape in shapes.values() if shape is not None)


def lenient(function: Callable[[Reader], Iterable[Shape]], read: Reader, row: Keyword) -> Shapes | None:
    """Call a row's function, after removing the row's keywords that have an invalid value from the schema.

    Such a keyword is noted as relaxed. Returns None if no keyword of the row remains.
    """
    while not row.names.keys().isdisjoint(read.schema):
        try:
            return tuple(function(read))
        except IllFormed as error:
            keyword = error.keyword if error.keyword in row.names else row.name_in(read.schema)
            read.relax(keyword, error.problem)
            read = read.without(keyword)
    return None


def keyword_uses(document: SchemaDocument) -> Iterator[str]:
    """The pointer of every occurrence of a keyword in the subschemas that are reachable from the root."""
    waiting, seen = ["#"], {"#"}
    while waiting:
        pointer = waiting.pop()
        try:
            schema = document.at(pointer)
        except UnsupportedSchema:  # a null in place of a schema, which compiling relaxes
            continue
        for keyword in schema if isinstance(schema, dict) else ():
            if keyword not in KEYWORDS or (document.draft == "legacy" and "$ref" in schema and keyword != "$ref"):
                continue
            yield f"{pointer}/{escape(keyword)}"
            if keyword not in _PARENTS:
                continue
            fresh = [child for child in _children(document, schema, pointer, keyword) if child not in seen]
            waiting += fresh
            seen.update(fresh)


def in_place(document: SchemaDocument, schema: dict[str, Any], pointer: str) -> list[str]:
    """The pointers of the subschemas that apply to the same instance as a schema."""
    names = [name for name in schema if name in KEYWORDS and KEYWORDS[name].in_place]
    return [child for name in names for child in _children(document, schema, pointer, name)]


def keyword_places(
    document: SchemaDocument, synthetic: Mapping[str, tuple[Node, ...]], waiting: list[str], keywords: tuple[str, ...]
) -> list[str]:
    """Pointers of ``keywords`` in subschemas that apply to the same instance; coverage reports notes there.

    Args:
        document: The schema.
        synthetic: Name of a synthetic node -> the nodes that it unites.
        waiting: Pointers of the subschemas, in a fixed order.
        keywords: The keywords.
    """
    found: dict[str, None] = {}
    seen = set[str]()
    while waiting:
        pointer = waiting.pop()
        if pointer in seen or pointer == "never":
            continue
        seen.add(pointer)
        if pointer in synthetic:
            waiting += [part for inner in synthetic[pointer] for part, _ in sorted(inner)]
            continue
        schema = document.find(pointer)
        if isinstance(schema, dict):
            found |= dict.fromkeys(f"{pointer}/{keyword}" for keyword in keywords if keyword in schema)
            waiting += in_place(document, schema, pointer)
    return list(found) or sorted(pointer for pointer in seen if pointer.startswith("#"))[:1] or ["#"]


def _children(document: SchemaDocument, schema: dict[str, Any], pointer: str, keyword: str) -> Iterator[str]:
    """The pointers of a keyword's subschemas."""
    if keyword not in _PARENTS:
        return
    value, here = schema[keyword], f"{pointer}/{escape(keyword)}"
    if keyword in _TO_REFERENCES:
        try:
            yield document.resolve(value, pointer)
        except UnsupportedSchema:
            return
    elif isinstance(value, list) and keyword in _TO_ARRAYS:
        yield from (f"{here}/{number}" for number in range(len(value)))
    elif isinstance(value, dict) and keyword in _TO_MAPS:
        yield from (f"{here}/{escape(name)}" for name, inner in value.items() if isinstance(inner, dict))
    elif isinstance(value, dict) and keyword in _TO_SCHEMAS:
        yield here
