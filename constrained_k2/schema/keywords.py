"""What each keyword of JSON Schema leaves of each type, and what its negation does. Anything not here is annotation."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from constrained_k2.errors import SchemaTooCostly
from constrained_k2.schema.formats import FORMATS
from constrained_k2.schema.pattern import parts_of
from constrained_k2.schema.reader import Reader, at
from constrained_k2.schema.shapes import (
    EVERYTHING,
    NEVER,
    Array,
    KeyMap,
    Node,
    Number,
    Object,
    Shape,
    String,
    meet,
    tighten,
)

if TYPE_CHECKING:
    from constrained_k2.schema.normalize import Normalizer, Shapes

Union = Callable[[], "Shapes"]
_TYPES = {"null", "boolean", "number", "integer", "string", "array", "object"}
_VALUES = ("properties", "patternProperties", "additionalProperties")


class Undecided(Exception):
    """This keyword, as it is used here, is not among what can be written as a grammar exactly."""


def typed_shapes(normalizer: "Normalizer", schema: dict[str, Any], pointer: str) -> "Shapes":
    """The shapes that the keywords which look at one type each leave."""
    kinds = kinds_of(normalizer, schema, pointer)
    shapes = [shape for shape in EVERYTHING if shape.kind in kinds or (shape.kind == "number" and "integer" in kinds)]
    bounds = list(_typed(normalizer, schema, pointer))
    if "integer" in kinds and "number" not in kinds:
        bounds.append(Number(integer=True))
    met = {shape.kind: shape for shape in shapes}
    for bound in bounds:
        if bound.kind in met:
            shape = meet(met.pop(bound.kind), bound)
            if shape is not None:
                met[bound.kind] = shape
    return tuple(met[shape.kind] for shape in shapes if shape.kind in met)


def kinds_of(normalizer: "Normalizer", schema: dict[str, Any], pointer: str) -> set[str]:
    """The types that a schema's ``type`` names; all of them where there is none."""
    declared = schema.get("type", list(_TYPES))
    kinds = declared if isinstance(declared, list) else [declared]
    if any(not isinstance(kind, str) or kind not in _TYPES for kind in kinds):
        raise normalizer.document.unsupported(f"{str(declared)[:80]!r} is no type", f"{pointer}/type", "type")
    return set(kinds)


def _typed(normalizer: "Normalizer", schema: dict[str, Any], pointer: str) -> Iterator[Shape]:
    read = Reader(normalizer, schema, pointer)
    for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if (bound := read.bound(name)) is not None:
            value, is_open = bound
            low = name in {"minimum", "exclusiveMinimum"}
            yield Number(low=value, low_open=is_open) if low else Number(high=value, high_open=is_open)
    if (multiple := read.number("multipleOf")) is not None:
        if multiple <= 0:
            raise read.wrong("multipleOf", "is not above 0")
        yield tighten(Number(multiple=multiple)) or Number()
    yield from _strings(read)
    yield from _arrays(read)
    yield from _objects(read)


def _strings(read: Reader) -> Iterator[Shape]:
    yield String(read.size("minLength") or 0, read.size("maxLength"))
    if (pattern := read.text("pattern")) is not None:
        if problem := read.pattern_problem(pattern, "pattern"):
            read.note("pattern", "relaxed", problem)
        else:
            parts = parts_of(pattern)
            yield String(patterns=frozenset(parts.found), absent=frozenset(parts.absent))
    if (known := read.text("format") or "") in FORMATS:
        yield String(formats=frozenset({known}))
        if left_out := FORMATS[known].left_out:
            read.note("format", "narrowed", f"what is not written: {left_out}")


def _arrays(read: Reader) -> Iterator[Shape]:
    schema, pointer = read.schema, read.pointer
    yield Array(shortest=read.size("minItems") or 0, longest=read.size("maxItems"))
    if schema.get("uniqueItems") is True:
        yield Array(unique=True)
    prefix, rest = read.items()
    yield Array(prefix, rest)
    if "contains" in schema:
        fewest, most = read.size("minContains"), read.size("maxContains")
        yield Array(contains=frozenset({(at(pointer, "contains"), 1 if fewest is None else fewest, most)}))


def _objects(read: Reader) -> Iterator[Shape]:
    schema, pointer = read.schema, read.pointer
    yield Object(fewest=read.size("minProperties") or 0, most=read.size("maxProperties"))
    if required := read.names("required"):
        yield Object(required=frozenset(required))
    if any(name in schema for name in _VALUES):
        yield Object(maps=frozenset({read.key_map()}))
    if "propertyNames" in schema:
        yield Object(names=at(pointer, "propertyNames"))


def without_key(key: str) -> Object:
    """Objects that lack a key."""
    return Object(maps=frozenset({KeyMap(((key, NEVER),))}))


def _no_object() -> list[Shape]:
    return [shape for shape in EVERYTHING if shape.kind != "object"]


def combined(normalizer: "Normalizer", schema: dict[str, Any], pointer: str) -> Iterator[tuple[str, Union]]:
    """The keywords that combine schemas: each with the union of shapes it leaves."""
    n, read = normalizer, Reader(normalizer, schema, pointer)
    if "$ref" in schema:
        yield "$ref", lambda: n.shapes(frozenset({(n.document.resolve(schema["$ref"], pointer), True)}))
    if "$dynamicRef" in schema:
        target = n.document.resolve_dynamic(schema["$dynamicRef"], pointer)
        found = undecided("its target depends on the path taken") if target is None else by_reference(n, target)
        yield "$dynamicRef", found
    if "$recursiveRef" in schema:
        yield "$recursiveRef", undecided("its target depends on the path taken")
    if "allOf" in schema:
        yield (
            "allOf",
            lambda: n.shapes(frozenset().union(*(at(pointer, "allOf", i) for i in range(len(read.list("allOf")))))),
        )
    if "anyOf" in schema:
        yield "anyOf", lambda: n.either(*(n.shapes(at(pointer, "anyOf", i)) for i in range(len(read.list("anyOf")))))
    if "oneOf" in schema:
        yield "oneOf", lambda: _exactly_one(n, pointer, len(read.list("oneOf")))
    if "not" in schema:
        yield "not", lambda: n.shapes(at(pointer, "not", holds=False))
    if "if" in schema:
        yield "if", lambda: conditional(n, schema, pointer, holds=True)
    for keyword, key, value in dependencies(read):
        yield keyword, lambda keyword=keyword, key=key, value=value: _depends(n, pointer, keyword, key, value)  # type: ignore[misc]
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        if schema.get(keyword, True) not in (True, {}):
            from constrained_k2.schema.unevaluated import unevaluated  # which reads keywords

            yield keyword, lambda keyword=keyword: unevaluated(n, schema, pointer, keyword)  # type: ignore[misc]


def by_reference(n: "Normalizer", target: str) -> Union:
    """The union of what stands at a pointer."""
    return lambda: n.shapes(frozenset({(target, True)}))


def undecided(reason: str) -> Union:
    """A union that cannot be told."""

    def raises() -> "Shapes":
        raise Undecided(reason)

    return raises


def _exactly_one(n: "Normalizer", pointer: str, count: int) -> "Shapes":
    branches = [at(pointer, "oneOf", number) for number in range(count)]
    try:
        return _one_alone(n, pointer, branches)
    except SchemaTooCostly as error:
        n.note(f"{pointer}/oneOf", "relaxed", f"several branches may hold at once: {error.problem}")
        return n.either(*map(n.shapes, branches))


def _one_alone(n: "Normalizer", pointer: str, branches: list[Node]) -> "Shapes":
    unions = []
    for number, branch in enumerate(branches):
        node = branch
        for other, rival in enumerate(branches):
            if other == number:
                continue
            meets = n.both(n.shapes(branch), n.shapes(rival))
            if meets or n.is_narrowed:  # else it cannot hold as well anyway; a narrowed one might, unseen
                node |= at(pointer, "oneOf", other, holds=False)
        unions.append(n.shapes(node))
    return n.either(*unions)


def conditional(n: "Normalizer", schema: dict[str, Any], pointer: str, *, holds: bool) -> "Shapes":
    """``if``, ``then`` and ``else`` together, or (not ``holds``) their negation."""
    unions = []
    for branch, condition in (("then", True), ("else", False)):
        node = at(pointer, "if", holds=condition)
        if branch in schema:
            unions.append(n.shapes(node | at(pointer, branch, holds=holds)))
        elif holds:
            unions.append(n.shapes(node))
    return n.either(*unions)


def dependencies(read: Reader) -> Iterator[tuple[str, str, Any]]:
    """Every dependency on a key: the keyword, the key, and what depends on it."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for key, value in read.object(keyword).items():
            if keyword == "dependentRequired" and not isinstance(value, list):
                raise read.wrong(keyword, "holds a value that is no array")
            if isinstance(value, list) and not all(isinstance(name, str) for name in value):
                raise read.wrong(keyword, "holds an array that is not of strings")
            yield keyword, key, value


def _depends(n: "Normalizer", pointer: str, keyword: str, key: str, value: Any) -> "Shapes":
    absent: list[Shape] = [*_no_object(), without_key(key)]
    if isinstance(value, list):
        return (*absent, Object(required=frozenset({key, *value})))
    present = n.both((Object(required=frozenset({key})),), n.shapes(at(pointer, keyword, key)))
    return n.either(absent, present)
