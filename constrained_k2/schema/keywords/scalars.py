"""Implements type, enum, const, and the keywords for numbers and strings, such as minimum and pattern."""

from collections.abc import Iterable, Iterator
from typing import Any

from constrained_k2.errors import excerpt
from constrained_k2.schema.dialects import TYPES
from constrained_k2.schema.document import IllFormed
from constrained_k2.schema.doubles import above, below
from constrained_k2.schema.keywords.excluded import excluding
from constrained_k2.schema.keywords.keyword import Children, Keyword, Reader, size_keywords
from constrained_k2.schema.pattern import parts_of, without_looks
from constrained_k2.schema.shapes import EVERYTHING, Number, Shape, String, value_of
from constrained_k2.schema.string_formats import FORMATS


def _kinds(read: Reader) -> list[str]:
    """The types that a schema declares."""
    declared = read.schema.get("type", list(TYPES))
    kinds: list[str] = declared if isinstance(declared, list) else [declared]
    for name in kinds:
        if name not in TYPES:
            raise read.wrong("type", f"unknown type {excerpt(name)}: use {', '.join(TYPES)}")
    return kinds


def type_shapes(read: Reader, *, holds: bool = True) -> Iterator[Shape]:
    """One shape for each JSON type that ``type`` allows, or that it excludes if ``holds`` is False."""
    try:
        kinds = _kinds(read)
    except IllFormed as error:
        if not holds:
            raise
        read.relax("type", error.problem)
        kinds = list(TYPES)
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


def _not_enum(read: Reader) -> Iterator[Shape]:
    if not isinstance(read.schema["enum"], list):
        raise read.wrong("enum", "is not an array")
    return excluding(read, "enum", read.schema["enum"])


def _bound(keyword: str, examples: dict[str, dict[str, Any]] | None = None) -> Keyword:
    is_low = keyword.endswith("inimum")

    def beyond(read: Reader, *, holds: bool) -> Iterator[Shape]:
        if (bound := read.bound(keyword)) is not None:
            value, is_open = bound[0], bound[1] == holds
            if is_open:
                yield above(value) if is_low == holds else below(value)
            else:
                yield Number(low=value) if is_low == holds else Number(high=value)

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

            def enforced(parts: Iterable[str]) -> frozenset[str]:
                return frozenset(part for part in parts if part and not read.pattern_problem(part, "pattern"))

            rest = String(patterns=enforced(map(without_looks, found)), absent=enforced(absent))
            if holds and rest != String():
                problem += "; the rest of the pattern is enforced"
                yield rest
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
            read.note("format", "narrowed", f"these valid strings are never written: {left_out}")


def _not_format(read: Reader) -> list[Shape]:
    if read.text("format") in FORMATS:  # every string satisfies an unknown format
        read.note_negation("format")
    return []


KEYWORDS = (
    Keyword(
        {"type": Children.NONE},  # type_shapes makes the shapes that all other keywords bound
        negate=lambda read: type_shapes(read, holds=False),
        examples={"type": {"type": ["string", "null"]}, "type: integer": {"type": "integer"}},
    ),
    Keyword(
        {"const": Children.NONE},  # see allowed_values
        negate=lambda read: excluding(read, "const", [read.schema["const"]]),
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
            "pattern with lookahead at its start": {"type": "string", "pattern": "^(?=.*\\d)(?!admin).{8,}$"},
            "pattern with lookaround or word boundaries inside": {
                "type": "string",
                "pattern": "^a(?!.*--)\\b.*(?<!-)$",
            },
            "pattern with a back-reference to a group that matches few texts": {
                "type": "string",
                "pattern": "^([\"']?)a\\1$",
            },
            "pattern with a back-reference to a group that matches any number of texts": {
                "type": "string",
                "pattern": "(a+)-\\1",
            },
        },
    ),
    Keyword(
        {"format": Children.NONE},
        _format,
        negate=_not_format,
        examples={
            "format: date": {"type": "string", "format": "date"},
            "format: date-time": {"type": "string", "format": "date-time"},
            "format: time": {"type": "string", "format": "time"},
            "format: ipv4, uuid, json-pointer, duration": {"type": "string", "format": "uuid"},
            "format: email, hostname, ipv6, uri and the like": {"type": "string", "format": "email"},
        },
    ),
)
