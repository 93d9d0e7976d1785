"""What the negation of each keyword leaves of each type: how ``not``, ``oneOf`` and ``else`` are written."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from constrained_k2.schema.formats import FORMATS
from constrained_k2.schema.keywords import (
    Union,
    conditional,
    dependencies,
    kinds_of,
    undecided,
    without_key,
)
from constrained_k2.schema.pattern import parts_of
from constrained_k2.schema.reader import Reader, at
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    Array,
    Boolean,
    KeyMap,
    Node,
    Number,
    Object,
    Shape,
    String,
    kind_of,
)

if TYPE_CHECKING:
    from constrained_k2.schema.normalize import Normalizer, Shapes


def opposite(normalizer: "Normalizer", schema: dict[str, Any], pointer: str) -> Iterator[tuple[str, Union]]:
    """Each keyword that can fail, with the union of shapes in which it does."""
    n, read = normalizer, Reader(normalizer, schema, pointer)
    if "type" in schema:
        yield "type", lambda: _not_types(n, schema, pointer)
    for keyword in ("const", "enum"):
        if keyword in schema:
            yield keyword, lambda keyword=keyword: _not_values(n, schema, pointer, keyword)  # type: ignore[misc]
    yield from _opposite_bounds(read)
    yield from _opposite_containers(read)
    if "$ref" in schema:
        yield "$ref", lambda: n.shapes(frozenset({(n.document.resolve(schema["$ref"], pointer), False)}))
    if "allOf" in schema:
        count = len(read.list("allOf"))
        yield "allOf", lambda: n.either(*(n.shapes(at(pointer, "allOf", i, holds=False)) for i in range(count)))
    if "anyOf" in schema:
        count = len(read.list("anyOf"))
        yield (
            "anyOf",
            lambda: n.shapes(frozenset().union(*(at(pointer, "anyOf", i, holds=False) for i in range(count)))),
        )
    if "oneOf" in schema:
        yield "oneOf", lambda: _not_exactly_one(n, pointer, len(read.list("oneOf")))
    if "not" in schema:
        yield "not", lambda: n.shapes(at(pointer, "not"))
    if "if" in schema:
        yield "if", lambda: conditional(n, schema, pointer, holds=False)
    for keyword, key, value in dependencies(read):
        yield keyword, lambda keyword=keyword, key=key, value=value: _fails_dependency(n, pointer, keyword, key, value)  # type: ignore[misc]
    for keyword in ("$dynamicRef", "unevaluatedProperties", "unevaluatedItems"):
        if keyword in schema:
            yield keyword, undecided("has no opposite that can be written")


def _not_types(n: "Normalizer", schema: dict[str, Any], pointer: str) -> "Shapes":
    kinds = kinds_of(n, schema, pointer)
    rest = [shape for shape in EVERYTHING if shape.kind not in kinds]
    if "integer" in kinds and "number" not in kinds:
        rest = [Number(fraction=True) if shape.kind == "number" else shape for shape in rest]
    return tuple(rest)


def _not_values(n: "Normalizer", schema: dict[str, Any], pointer: str, keyword: str) -> "Shapes":
    values = schema[keyword] if keyword == "enum" and isinstance(schema["enum"], list) else [schema[keyword]]
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(kind_of(value), []).append(value)
    shapes: list[Shape] = [shape for shape in EVERYTHING if shape.kind not in by_kind]
    if booleans := frozenset({True, False}).difference(by_kind.get("boolean", ())):
        shapes += [Boolean(booleans)] if "boolean" in by_kind else []
    if "string" in by_kind:
        shapes.append(String(excluded=frozenset(by_kind["string"])))
    if "number" in by_kind:
        points = sorted({Fraction(str(value)) for value in by_kind["number"]})
        edges = [None, *points, None]
        shapes += [Number(low=low, low_open=True, high=high, high_open=True) for low, high in pairwise(edges)]
    for kind, empty in (("array", Array(shortest=1)), ("object", Object(fewest=1))):
        if kind in by_kind:
            shapes.append(empty)
            if any(by_kind[kind]):
                shapes.pop()
                n.note(
                    f"{pointer}/{keyword}",
                    "narrowed",
                    f"under a negation: no {kind} is written",
                )
    return tuple(shapes)


def _opposite_bounds(read: Reader) -> Iterator[tuple[str, Union]]:
    """The opposites of bounds on numbers, lengths and counts, and of patterns."""
    for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if (bound := read.bound(name)) is not None:
            value, is_open = bound
            low = name in {"minimum", "exclusiveMinimum"}
            shape = Number(high=value, high_open=not is_open) if low else Number(low=value, low_open=not is_open)
            yield name, lambda shape=shape: (shape,)  # type: ignore[misc]
    below: dict[str, Callable[[int], Shape]] = {
        "minLength": lambda size: String(longest=size - 1),
        "minItems": lambda size: Array(longest=size - 1),
        "minProperties": lambda size: Object(most=size - 1),
    }
    above: dict[str, Callable[[int], Shape]] = {
        "maxLength": lambda size: String(shortest=size + 1),
        "maxItems": lambda size: Array(shortest=size + 1),
        "maxProperties": lambda size: Object(fewest=size + 1),
    }
    for name, shape_of in (below | above).items():
        size = read.size(name)
        if size is not None:
            shapes: Shapes = (shape_of(size),) if name in above or size else ()
            yield name, lambda shapes=shapes: shapes  # type: ignore[misc]
    if (pattern := read.text("pattern")) is not None:
        problem, parts = read.pattern_problem(pattern, "pattern"), parts_of(pattern)
        ways = [String(absent=frozenset({part})) for part in parts.found]
        ways += [String(patterns=frozenset({part})) for part in parts.absent]
        yield "pattern", undecided(problem) if problem else lambda: tuple(ways)
    for name in ("multipleOf", "format", "uniqueItems", "propertyNames", "patternProperties"):
        if read.schema.get(name, False) is not False and not (name == "format" and read.text(name) not in FORMATS):
            yield name, undecided("has no opposite that can be written")


def _opposite_containers(read: Reader) -> Iterator[tuple[str, Union]]:
    """The opposites of keywords that look into arrays and objects."""
    schema, pointer = read.schema, read.pointer
    prefix, rest = read.items()
    for position, node in enumerate(prefix):
        shape = Array((*(ANY for _ in range(position)), _flip(node)), shortest=position + 1)
        yield "prefixItems", lambda shape=shape: (shape,)  # type: ignore[misc]
    if rest != ANY:
        inside = Array(contains=frozenset({(_flip(rest), 1, None)}))
        yield "items", (lambda: (inside,)) if not prefix else undecided("behind prefixItems it has no opposite")
    if "contains" in schema:
        fewest, most = read.size("minContains"), read.size("maxContains")
        fewest = 1 if fewest is None else fewest
        node = at(pointer, "contains")
        shapes: list[Shape] = []
        if fewest == 1:
            shapes.append(Array(rest=_flip(node)))
        elif fewest > 1:
            shapes.append(Array(contains=frozenset({(node, 0, fewest - 1)})))
        if most is not None:
            shapes.append(Array(contains=frozenset({(node, most + 1, None)})))
        yield "contains", lambda: tuple(shapes)
    if required := read.names("required"):
        yield "required", lambda: tuple(without_key(key) for key in required)
    for key in read.object("properties"):
        wrong = Object(
            maps=frozenset({KeyMap(((key, at(pointer, "properties", key, holds=False)),))}), required=frozenset({key})
        )
        yield "properties", lambda wrong=wrong: (wrong,)  # type: ignore[misc]
    if schema.get("additionalProperties", True) not in (True, {}):
        yield "additionalProperties", undecided("has no opposite that can be written")


def _flip(node: Node) -> Node:
    """The opposite of a node of one literal."""
    ((pointer, holds),) = node
    return frozenset({(pointer, not holds)})


def _not_exactly_one(n: "Normalizer", pointer: str, count: int) -> "Shapes":
    none: Node = frozenset().union(*(at(pointer, "oneOf", number, holds=False) for number in range(count)))
    pairs = (
        n.shapes(at(pointer, "oneOf", one) | at(pointer, "oneOf", other))
        for one in range(count)
        for other in range(one + 1, count)
    )
    return n.either(n.shapes(none), *pairs)


def _fails_dependency(n: "Normalizer", pointer: str, keyword: str, key: str, value: Any) -> "Shapes":
    present = (Object(required=frozenset({key})),)
    if isinstance(value, list):
        return n.either(*(n.both(present, (without_key(needed),)) for needed in value))
    return n.both(present, n.shapes(at(pointer, keyword, key, holds=False)))
