"""What becomes of each keyword of a schema: kept exactly, written narrower, written wider, or refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.schema.document import SchemaDocument, escape, unescape

Status = Literal["enforced", "narrowed", "relaxed", "refused"]
Notes = Mapping[str, tuple[Status, str]]
"""Pointer of a keyword -> what becomes of it, and why; for those that are not enforced exactly."""

STATUSES: tuple[Status, ...] = ("enforced", "narrowed", "relaxed", "refused")

_ONE = frozenset({"additionalProperties", "additionalItems", "propertyNames", "contains", "not", "if", "then", "else",
                  "unevaluatedItems", "unevaluatedProperties", "items"})  # fmt: skip
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_PLAIN = frozenset({"type", "enum", "const", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                    "minLength", "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems",
                    "minContains", "maxContains", "minProperties", "maxProperties", "required", "dependentRequired",
                    "$ref", "$dynamicRef", "$recursiveRef"})  # fmt: skip
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef",
                       "dependentSchemas", "dependencies"})  # fmt: skip
KEYWORDS = _ONE | _LIST | _NAMED | _PLAIN
"""The keywords that constrain; all others are annotations, as the specification has it."""


@dataclass(frozen=True, slots=True, order=True)
class KeywordUse:
    """One occurrence of a keyword.

    Attributes:
        pointer: JSON pointer to it, ``#/properties/city/minLength``.
        reason: Why it is not kept exactly; empty where it is.
    """

    pointer: str
    reason: str = ""

    @property
    def keyword(self) -> str:
        """The keyword."""
        return unescape(self.pointer.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Coverage:
    """What an engine makes of each keyword of one schema.

    Attributes:
        engine: The engine.
        enforced: The grammar allows exactly what the keyword allows.
        narrowed: The grammar allows less, so all it allows is valid still.
        relaxed: The grammar allows more: what is written may be invalid here.
        refused: There is no grammar because of it.
    """

    engine: str
    enforced: tuple[KeywordUse, ...] = ()
    narrowed: tuple[KeywordUse, ...] = ()
    relaxed: tuple[KeywordUse, ...] = ()
    refused: tuple[KeywordUse, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether everything that can be written is an instance of the schema."""
        return not self.relaxed and not self.refused

    def by_status(self) -> dict[Status, tuple[KeywordUse, ...]]:
        """The occurrences under each status."""
        return {
            "enforced": self.enforced,
            "narrowed": self.narrowed,
            "relaxed": self.relaxed,
            "refused": self.refused,
        }

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        uses: dict[str, Any] = {
            status: [{"pointer": use.pointer, "reason": use.reason} if use.reason else {"pointer": use.pointer}
                     for use in found]
            for status, found in self.by_status().items()
        }  # fmt: skip
        return {"engine": self.engine, "sound": self.is_sound} | uses


def coverage_of(document: SchemaDocument, engine: str, notes: Notes) -> Coverage:
    """The coverage of a schema of which an engine's compiler left these notes."""
    statuses: dict[str, tuple[Status, str]] = dict.fromkeys(keyword_uses(document), ("enforced", ""))
    statuses |= notes
    found: dict[Status, list[KeywordUse]] = {status: [] for status in STATUSES}
    for pointer, (status, reason) in sorted(statuses.items()):
        found[status].append(KeywordUse(pointer, reason))
    return Coverage(engine, **{status: tuple(uses) for status, uses in found.items()})


def refusal(document: SchemaDocument, engine: str, pointer: str, reason: str) -> Coverage:
    """The coverage of a schema that has no grammar because of what stands at ``pointer``."""
    return coverage_of(document, engine, {pointer or "#": ("refused", reason)})


def keyword_uses(document: SchemaDocument) -> Iterator[str]:
    """The pointer of every keyword that constrains, in the subschemas that the root leads to."""
    waiting, seen = ["#"], {"#"}
    while waiting:
        pointer = waiting.pop()
        try:
            schema = document.at(pointer)
        except UnsupportedSchema:  # a schema that is none is refused where it is compiled
            continue
        if not isinstance(schema, dict):
            continue
        for keyword in schema:
            if keyword not in KEYWORDS or (document.draft == "legacy" and "$ref" in schema and keyword != "$ref"):
                continue
            yield f"{pointer}/{escape(keyword)}"
            for child in _children(document, schema, pointer, keyword):
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)


def in_place(document: SchemaDocument, schema: dict[str, Any], pointer: str) -> list[str]:
    """The pointers of the subschemas that speak of the same value as a schema does."""
    return [
        child for keyword in schema if keyword in _IN_PLACE for child in _children(document, schema, pointer, keyword)
    ]


def _children(document: SchemaDocument, schema: dict[str, Any], pointer: str, keyword: str) -> Iterator[str]:
    """The pointers of the subschemas that a keyword leads to."""
    value, here = schema[keyword], f"{pointer}/{escape(keyword)}"
    if keyword in {"$ref", "$dynamicRef"}:
        try:
            yield document.resolve(value, pointer)
        except UnsupportedSchema:
            return
    elif keyword in _NAMED and isinstance(value, dict):
        yield from (f"{here}/{escape(name)}" for name, inner in value.items() if isinstance(inner, dict))
    elif keyword in _LIST and isinstance(value, list):
        yield from (f"{here}/{number}" for number in range(len(value)))
    elif keyword in _ONE and isinstance(value, dict):
        yield here
