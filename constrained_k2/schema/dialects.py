"""Rewrites idioms of OpenAPI, Gemini, old drafts and programming languages as current JSON Schema.

    {"type": "STRING", "nullable": true}           a string or null
    {"minimum": 0, "exclusiveMinimum": true}       {"exclusiveMinimum": 0}
    {"properties": {"a": {"required": true}}}      {"properties": {"a": {}}, "required": ["a"]}

Idioms of draft 4 are JSON Schema, so they count as enforced. The coverage report lists all other idioms as ``read_as``.
Older keywords that need no rewriting (``items`` as an array, ``dependencies``, ``definitions``) are in the keyword
table. :mod:`constrained_k2.schema.pattern` rewrites patterns of other regex dialects.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from constrained_k2.errors import excerpt
from constrained_k2.schema.document import DATA, DEFINITIONS, MAPS, NAMING, escape
from constrained_k2.schema.shapes import is_number

TYPES: Final = ("null", "boolean", "number", "integer", "string", "array", "object")
NULLABLE: Final = ("nullable", "x-nullable")
"""OpenAPI 3.0's keyword for "or null", which zod, FastMCP and Gemini write too, and Swagger 2.0's extension."""

_SYNONYMS = {
    **dict.fromkeys(("none", "nil", "nonetype"), "null"),
    "bool": "boolean",
    **dict.fromkeys(("float", "float32", "float64", "double", "decimal"), "number"),
    **dict.fromkeys(("int", "int32", "int64", "long", "short", "bigint"), "integer"),
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("list", "tuple", "sequence"), "array"),
    **dict.fromkeys(("dict", "dictionary", "map", "hashmap", "json"), "object"),
    **{name: name for name in TYPES},
}
"""Names of types in programming languages, in lower case -> JSON Schema's name."""
_ANY_TYPE = ("any", "mixed", "unknown")
_OUTSIDE = NAMING | DEFINITIONS | {"$schema"}  # keywords that stay at a schema's top, where references look for them


class Reading(NamedTuple):
    """One schema, rewritten as JSON Schema.

    Attributes:
        schema: The rewritten schema. A value that is neither an object nor a type's name stays as it is.
        null: The keyword that makes null valid too; empty if none does.
        notes: The parts that are read as something else: (pointer below the schema, how it is read).
    """

    schema: Any
    null: str = ""
    notes: tuple[tuple[str, str], ...] = ()


_Notes = list[tuple[str, str]]


def read(schema: Any) -> Reading:
    """Rewrite one schema, but not its subschemas."""
    if isinstance(schema, str) and (kind := type_named(schema)):
        note = f"the text {schema!r} is read as the type {kind!r}"
        return Reading({} if kind == "any" else {"type": kind}, "", (("", note),))
    if not isinstance(schema, dict) or is_read_as_written(schema):
        return Reading(schema)
    made, notes = dict(schema), _Notes()
    for name, row in _ROWS.items():
        if name in schema and row.applies(schema[name]):
            row.rewrite(made, notes)
    null = next((keyword for keyword in NULLABLE if made.get(keyword) is True), "")
    return Reading(made, null, tuple(notes))


def is_read_as_written(schema: dict[str, Any]) -> bool:
    """True if :func:`read` changes nothing."""
    for name, value in schema.items():  # noqa: SIM110 - a generator takes twice as long, for each part of each schema
        if name in _ROWS and _ROWS[name].applies(value):
            return False
    return True


def in_json_schema(document: Any) -> tuple[Any, dict[str, str]]:
    """Rewrite a whole decoded schema. Also returns how rewritten parts are read, by their pointers in ``document``.

    For programs other than this package, which know only JSON Schema.
    """
    return _Rewriting().document(document)


class _Rewriting:
    def __init__(self) -> None:
        self._notes: dict[str, str] = {}
        self._wrapped: set[str] = set()  # pointers of schemas that are now the first branch of an "anyOf"
        self._references: list[tuple[dict[str, Any], str]] = []  # schemas with a $ref, and where its path starts

    def document(self, document: Any) -> tuple[Any, dict[str, str]]:
        made = self._value(document, "#", "#", is_schema=True)
        for schema, base in self._references:
            schema["$ref"] = self._moved(schema["$ref"], base)
        return made, self._notes

    def _value(self, value: Any, pointer: str, base: str, *, is_schema: bool) -> Any:
        if isinstance(value, list):
            return [self._value(item, f"{pointer}/{place}", base, is_schema=True) for place, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        reading = read(value) if is_schema else Reading(value)
        self._notes |= {f"{pointer}/{name}": reason for name, reason in reading.notes}
        base = pointer if is_schema and isinstance(value.get("$id"), str) else base
        made = {
            key: item
            if is_schema and key in DATA
            else self._value(item, f"{pointer}/{escape(key)}", base, is_schema=not is_schema or key not in MAPS)
            for key, item in reading.schema.items()
        }
        if is_schema and isinstance(made.get("$ref"), str):
            self._references.append((made, base))
        return self._or_null(made, pointer, reading.null) if reading.null else made

    def _or_null(self, made: dict[str, Any], pointer: str, keyword: str) -> dict[str, Any]:
        self._wrapped.add(pointer)
        self._notes[f"{pointer}/{keyword}"] = OR_NULL
        outside = {key: made.pop(key) for key in _OUTSIDE & made.keys()}
        for each in NULLABLE:
            made.pop(each, None)
        return outside | {"anyOf": [made, {"type": "null"}]}

    def _moved(self, reference: str, base: str) -> str:
        """A reference by path, adjusted to the schemas on this path that are now a branch of an ``anyOf``."""
        if not reference.startswith("#/"):
            return reference
        found, here = "#", base
        for token in reference.split("/")[1:]:
            found += "/anyOf/0" if here in self._wrapped and token not in _OUTSIDE else ""
            found, here = f"{found}/{token}", f"{here}/{unquote(token)}"
        return found


OR_NULL: Final = "is read as: or null"


def type_named(name: object) -> str:
    """The JSON Schema type that a name means, in upper or lower case, or ``any``; empty if it means none."""
    lower = name.lower() if isinstance(name, str) else ""
    return "any" if lower in _ANY_TYPE else _SYNONYMS.get(lower, "")


def _type(made: dict[str, Any], notes: _Notes) -> None:
    """Rewrite type names of programming languages and of Gemini, and the null that YAML makes of ``[string, null]``."""
    declared = made["type"]
    names = declared if isinstance(declared, list) else [declared]
    found = ["null" if name is None and len(names) > 1 else type_named(name) for name in names]
    said = [
        f"{excerpt(name)} is read as {'every type' if kind == 'any' else repr(kind)}"
        for name, kind in zip(names, found, strict=True)
        if kind and name not in TYPES
    ]
    if said:
        notes.append(("type", "; ".join(said)))
    if "" in found:  # the row of this keyword reports the first unknown name, and relaxes the keyword
        made["type"] = [name for name, kind in zip(names, found, strict=True) if not kind]
    elif "any" in found:
        del made["type"]
    else:
        made["type"] = found if isinstance(declared, list) else found[0]


def _exclusive(closed: str, keyword: str) -> "_Row":
    def rewrite(made: dict[str, Any], _: _Notes) -> None:
        """Rewrite draft 4's ``exclusiveMinimum: true``."""
        if made.pop(keyword) and is_number(made.get(closed)):
            made[keyword] = made.pop(closed)

    return _Row(_is_boolean, rewrite)


def _requires(properties: Any) -> bool:
    return isinstance(properties, dict) and any(
        type(inner) is dict and inner.get("required") is True for inner in properties.values()
    )


def _requiring(made: dict[str, Any], notes: _Notes) -> None:
    """Rewrite draft 3's ``required: true`` inside of a property."""
    required = made.get("required", [])
    listed = [] if isinstance(required, bool) else required
    if not isinstance(listed, list):
        return
    marked = [
        name for name, inner in made["properties"].items() if type(inner) is dict and inner.get("required") is True
    ]
    fresh = [name for name in marked if name not in listed]
    made["required"] = [*listed, *fresh]
    notes += [(f"properties/{escape(name)}/required", _REQUIRED) for name in fresh]


def _required(made: dict[str, Any], _: _Notes) -> None:
    """Remove a boolean ``required``: it is about the schema as a property of another, not about its own properties."""
    if isinstance(made["required"], bool):
        del made["required"]


def _is_boolean(value: Any) -> bool:
    return type(value) is bool


def _is_other_type(declared: Any) -> bool:
    if type(declared) is str:
        return declared not in _PROPER
    names = declared if type(declared) is list else [declared]
    return not all(type(name) is str and name in _PROPER for name in names)


class _Row(NamedTuple):
    applies: Callable[[Any], bool]  # True if the keyword's value needs rewriting
    rewrite: Callable[[dict[str, Any], _Notes], None]  # changes a copy of the schema, adds to its notes


_PROPER = frozenset(TYPES)
_REQUIRED = "true is read as: this property is required"
_ROWS: Mapping[str, _Row] = {
    "type": _Row(_is_other_type, _type),
    "exclusiveMinimum": _exclusive("minimum", "exclusiveMinimum"),
    "exclusiveMaximum": _exclusive("maximum", "exclusiveMaximum"),
    "properties": _Row(_requires, _requiring),
    "required": _Row(_is_boolean, _required),
    **dict.fromkeys(NULLABLE, _Row(lambda value: value is True, lambda _, __: None)),  # see read
}
"""Keyword -> when and how a schema that has it is rewritten; the order makes no difference."""
