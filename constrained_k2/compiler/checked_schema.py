"""Reads the text of a client's schema and checks it before an engine gets it."""

import json
from typing import Any

from constrained_k2.errors import UnsupportedSchema, excerpt, kind_of_json
from constrained_k2.schema.budget import check_budget
from constrained_k2.schema.coverage import Status
from constrained_k2.schema.dialects import NULLABLE, type_named
from constrained_k2.schema.document import draft_of


def checked(schema: str, *, is_object: bool) -> tuple[str, tuple[Status, str] | None]:
    """A schema within its budgets, and a note on its type."""
    document = _read(schema)
    check_budget(document)
    note: tuple[Status, str] | None = None
    is_object_only = document.get("type") == "object" and document.keys().isdisjoint(NULLABLE)
    if is_object and (_ignores_siblings(document) or not is_object_only):
        note = _restrict_to_objects(document)
    elif schema.isascii():  # lone surrogates, which annotations may have, are escaped in it
        return schema, None
    return json.dumps(document, separators=(",", ":")), note


def _ignores_siblings(document: dict[str, Any]) -> bool:
    """True if a schema is a reference of an old draft, beside which other keywords mean nothing."""
    return "$ref" in document and draft_of(document) == "legacy"


def _read(schema: str) -> dict[str, Any]:
    try:
        document = json.loads(schema)
    except ValueError as error:  # not JSON, or an integer too long for Python
        raise UnsupportedSchema(f"the schema is not valid JSON: {error}", "", "Correct it") from None
    if not isinstance(document, dict):
        raise UnsupportedSchema(f"the schema is {kind_of_json(document)}", "", "Write it as a JSON object")
    return document


def _restrict_to_objects(document: Any) -> tuple[Status, str] | None:
    """Set a schema's type to object, in place, since arguments are always one; a note if it has another type."""
    for keyword in NULLABLE:
        document.pop(keyword, None)
    note: tuple[Status, str] | None = None
    declared = document.get("type", "object")
    names = declared if isinstance(declared, list) else [declared]
    if "object" not in names:
        is_read = any(type_named(name) in {"object", "any"} for name in names)
        how = "is read as 'object'" if is_read else "is left out: arguments are always an object"
        note = ("read_as" if is_read else "relaxed", f"the type {', '.join(map(excerpt, names))} {how}")
    if _ignores_siblings(document):  # the type would be one
        document["allOf"] = [*document.get("allOf", ()), {"$ref": document.pop("$ref")}]
    document["type"] = "object"
    return note
