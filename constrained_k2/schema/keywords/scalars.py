"""Keywords for values of any type, numbers and strings. Numbers are exact fractions, as the schema spells them."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

from constrained_k2.errors import excerpt
from constrained_k2.schema.document import IllFormed
from constrained_k2.schema.keywords.keyword import Children, Keyword, Reader, size_keywords
from constrained_k2.schema.pattern import parts_of
from constrained_k2.schema.shapes import EVERYTHING, Array, Boolean, Number, Object, Shape, String, kind_of, value_of
from constrained_k2.schema.string_formats import FORMATS

_TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")
_SYNONYMS = {
    **dict.fromkeys(("none", "nil", "nonetype"), "null"),
    "bool": "boolean",
    **dict.fromkeys(("float", "float32", "float64", "double", "decimal"), "number"),
    **dict.fromkeys(("int", "int32", "int64", "long", "short", "bigint"), "integer"),
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("list", "tuple", "sequence"), "array"),
    **dict.fromkeys(("dict", "dictionary", "map", "hashmap", "json"), "object"),
    **{name: name for name in _TYPES},
}
"""Names of types in programming languages, in lower case -> JSON Schema's name."""
_ANY_TYPE = ("any", "mixed", "unknown")


def type_named(name: object) -> str:
    """JSON Schema's type that a name in any case means, or ``any``; empty for no type."""
    lower = name.lower() if isinstance(name, str) else ""
    return "any" if lower in _ANY_TYPE else _SYNONYMS.get(lower, "")


def _kinds(read: Reader) -> list[str]:
    """The types that a schema declares, each by JSON Schema's name; all of them if one cannot be read."""
    declared = read.schema.get("type", list(_TYPES))
    kinds: list[str] = []
    for name in declared if isinstance(declared, list) else [declared]:
        kind = name if name in _TYPES else type_named(name)
        if not kind:
            raise read.wrong("type", f"unknown type {excerpt(name)}: use {', '.join(_TYPES)}")
        if name not in _TYPES:
            what = "every type" if kind == "any" else repr(kind)
            read.note("type", "read_as", f"{excerpt(name)} is read as {what}")
        kinds += _TYPES if kind == "any" else [kind]
    return kinds


def type_shapes(read: Reader, *, holds: bool = True) -> Iterator[Shape]:
    """One shape for each JSON type that ``type`` allows, or else excludes."""
    try:
        kinds = _kinds(read)
    except IllFormed as error:
        if not holds:
            raise
        read.relax("type", error.problem)
        kinds = list(_TYPES)
    for shape in EVERYTHING:
        if shape.kind == "number" and "integer" in kinds and "number" not in kinds:
            yield Number(integer=holds, fraction=not holds)
        elif (shape.kind in kinds) == holds:
            yield shape


def allowed_values(read: Reader) -> tuple[Shape, ...]:
    """The values that ``enum`` and ``const`` allow."""
    schema = read.schema
    listed = isinstance(schema.get("enum"), list)
    if "enum" in schema and not listed:
        read.relax("enum", "is not an array")
    if not listed:
        return (value_of(schema["const"]),) if "const" in schema else EVERYTHING
    values = map(value_of, schema["enum"])
    return tuple(value for value in values if "const" not in schema or value == value_of(schema["const"]))


def _excluding(read: Reader, keyword: str, values: list[Any]) -> Iterator[Shape]:
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(kind_of(value), []).append(value)
    yield from (shape for shape in EVERYTHING if shape.kind not in by_kind)
    if "boolean" in by_kind and (booleans := frozenset({True, False}).difference(by_kind["boolean"])):
        yield Boolean(booleans)
    if "string" in by_kind:
        yield String(excluded=frozenset(by_kind["string"]))
    if "number" in by_kind:
        edges = [None, *sorted({Fraction(str(value)) for value in by_kind["number"]}), None]
        yield from (Number(low=low, low_open=True, high=high, high_open=True) for low, high in pairwise(edges))
    for kind, not_empty in (("array", Array(shortest=1)), ("object", Object(fewest=1))):
        if kind in by_kind and not any(by_kind[kind]):
            yield not_empty
        elif kind in by_kind:
            read.note_negation(keyword, f"no {kind} is written")


def _not_enum(read: Reader) -> Iterator[Shape]:
    if not isinstance(read.schema["enum"], list):
        raise read.wrong("enum", "is not an array")
    return _excluding(read, "enum", read.schema["enum"])


def _bound(keyword: str, examples: dict[str, dict[str, Any]] | None = None) -> Keyword:
    is_low = keyword.endswith("inimum")

    def beyond(read: Reader, *, holds: bool) -> Iterator[Shape]:
        if (bound := read.bound(keyword)) is not None:
            value, is_open = bound[0], bound[1] == holds
            yield Number(low=value, low_open=is_open) if is_low == holds else Number(high=value, high_open=is_open)

    return Keyword(
        {keyword: Children.NONE},
        lambda read: beyond(read, holds=True),
        negate=lambda read: beyond(read, holds=False),
        examples=examples or {},
    )


def _multiples(read: Reader) -> Iterator[Shape]:
    if (multiple := read.number("multipleOf")) is not None:
        if multiple <= 0:
            raise read.wrong("multipleOf", "is not above 0")
        yield Number(multiple=multiple)


def _pattern(read: Reader, *, holds: bool) -> Iterator[Shape]:
    if (pattern := read.text("pattern")) is not None:
        pattern = read.in_ecma(pattern, "pattern")
        found, absent = parts_of(pattern)
        if problem := read.pattern_problem(pattern, "pattern"):
            read.note("pattern", "relaxed", problem) if holds else read.note_negation("pattern", problem)
        elif holds:
            yield String(patterns=frozenset(found), absent=frozenset(absent))
        else:
            yield from (String(absent=frozenset({part})) for part in found)
            yield from (String(patterns=frozenset({part})) for part in absent)


def _format(read: Reader) -> Iterator[Shape]:
    if (name := read.text("format") or "") in FORMATS:
        yield String(formats=frozenset({name}))
        if left_out := FORMATS[name].left_out:
            read.note("format", "narrowed", f"not written: {left_out}")


def _not_format(read: Reader) -> list[Shape]:
    if read.text("format") in FORMATS:  # every string satisfies an unknown format
        read.note_negation("format")
    return []


KEYWORDS = (
    Keyword(
        {"type": Children.NONE},  # its shapes are those that all other keywords bound: see type_shapes
        negate=lambda read: type_shapes(read, holds=False),
        examples={"type": {"type": ["string", "null"]}, "type: integer": {"type": "integer"}},
    ),
    Keyword(
        {"const": Children.NONE},  # see allowed_values
        negate=lambda read: _excluding(read, "const", [read.schema["const"]]),
        examples={"const": {"const": {"unit": "celsius"}}},
    ),
    Keyword({"enum": Children.NONE}, negate=_not_enum, examples={"enum": {"enum": ["a", 1, None, {"b": [2]}]}}),
    _bound("minimum", {"minimum, maximum": {"type": "number", "minimum": -1.5, "maximum": 2**63}}),
    _bound("maximum"),
    _bound(
        "exclusiveMinimum",
        {"exclusiveMinimum, exclusiveMaximum": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}},
    ),
    _bound("exclusiveMaximum"),
    Keyword({"multipleOf": Children.NONE}, _multiples, examples={"multipleOf": {"type": "number", "multipleOf": 0.25}}),
    *size_keywords(
        *("Length", String, "shortest", "longest"),
        {"minLength, maxLength": {"type": "string", "minLength": 1, "maxLength": 200}},
    ),
    Keyword(
        {"pattern": Children.NONE},
        lambda read: _pattern(read, holds=True),
        negate=lambda read: _pattern(read, holds=False),
        examples={
            "pattern": {"type": "string", "pattern": "^[A-Z]{3}-\\d+$"},
            "pattern with look-ahead at its start": {"type": "string", "pattern": "^(?=.*\\d)(?!admin).{8,}$"},
            "pattern with look-around or word boundaries inside": {
                "type": "string",
                "pattern": "^a(?!.*--)\\b.*(?<!-)$",
            },
            "pattern with a back-reference to a group of few texts": {"type": "string", "pattern": "^([\"']?)a\\1$"},
            "pattern with a back-reference to a group of any text": {"type": "string", "pattern": "(a+)-\\1"},
        },
    ),
    Keyword(
        {"format": Children.NONE},
        _format,
        negate=_not_format,
        examples={
            "format: date, ipv4, uuid, json-pointer, duration": {"type": "string", "format": "date"},
            "format: date-time, time": {"type": "string", "format": "date-time"},
            "format: email, hostname, ipv6, uri and the like": {"type": "string", "format": "email"},
        },
    ),
)
