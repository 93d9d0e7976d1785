"""Checks a client's schema against budgets before it is compiled, and restricts arguments to objects."""

import json
from dataclasses import replace
from typing import Any

from constrained_k2.errors import UnsupportedSchema, excerpt, kind_of_json
from constrained_k2.schema.budget import check_budget
from constrained_k2.schema.coverage import Coverage, Status
from constrained_k2.schema.dialects import NULLABLE, type_named
from constrained_k2.schema.document import draft_of
from constrained_k2.schema.undeclared_keys import REASON, UndeclaredKeys, takes_no_arguments

Note = tuple[str, Status, str]
"""The pointer of a keyword, its status and the reason."""


def checked(schema: str, *, is_object: bool, undeclared_keys: UndeclaredKeys) -> tuple[str, Note | None]:
    """Check a schema's budgets. Return the schema to compile, and a note if it differs from the given one.

    Arguments are restricted to objects. With ``undeclared_keys`` "forbid", empty ``properties`` allow no key.
    """
    document = _read(schema)
    check_budget(document)
    note: Note | None = None
    is_object_only = document.get("type") == "object" and document.keys().isdisjoint(NULLABLE)
    is_restricted = is_object and (_ignores_siblings(document) or not is_object_only)
    if is_restricted:
        note = _restrict_to_objects(document)
    if is_object and undeclared_keys == "forbid" and takes_no_arguments(document):
        document["additionalProperties"] = False
        note = note or ("#/properties", "narrowed", REASON)
    elif not is_restricted and schema.isascii():  # ASCII escapes lone surrogates, which annotations may have
        return schema, None
    return json.dumps(document, separators=(",", ":")), note


def noted(coverage: Coverage, note: Note) -> Coverage:
    """Add the note of :func:`checked` to a coverage, and remove the keyword that :func:`checked` added."""
    added = "#/additionalProperties" if note[2] == REASON else ""
    coverage = replace(coverage, enforced=tuple(use for use in coverage.enforced if use.pointer != added))
    return coverage.noting(*note)


def _ignores_siblings(document: dict[str, Any]) -> bool:
    """True if a schema has a ``$ref`` and is of an old draft, in which keywords next to ``$ref`` are ignored."""
    return "$ref" in document and draft_of(document) == "legacy"


def _read(schema: str) -> dict[str, Any]:
    try:
        document = json.loads(schema)
    except ValueError as error:  # not JSON, or an integer too long for Python
        raise UnsupportedSchema(f"the schema is not valid JSON: {error}", "", "Correct it") from None
    if not isinstance(document, dict):
        raise UnsupportedSchema(f"the schema is {kind_of_json(document)}", "", "Write it as a JSON object")
    return document


def _restrict_to_objects(document: Any) -> Note | None:
    """Set a schema's type to object, in place, since arguments are always objects; a note if it has another type."""
    for keyword in NULLABLE:
        document.pop(keyword, None)
    note: Note | None = None
    declared = document.get("type", "object")
    names = declared if isinstance(declared, list) else [declared]
    if "object" not in names:
        is_read = any(type_named(name) in {"object", "any"} for name in names)
        how = "is read as 'object'" if is_read else "is left out: arguments are always an object"
        note = ("#/type", "read_as" if is_read else "relaxed", f"the type {', '.join(map(excerpt, names))} {how}")
    if _ignores_siblings(document):  # else the type would be ignored
        document["allOf"] = [*document.get("allOf", ()), {"$ref": document.pop("$ref")}]
    document["type"] = "object"
    return note
