"""What of a schema helps to guess: its properties in the order that the prompt shows, what is required, its enums."""

import json
from dataclasses import dataclass, field
from typing import Any

_MAX_HOPS = 16  # references followed for one value
_MAX_ENUM = 256


@dataclass(frozen=True, slots=True)
class View:
    """A schema as far as guessing looks at it; wrong guesses cost nothing but a rejected draft.

    Attributes:
        kind: The one JSON type of its values; empty if there are several, or it is not told.
        properties: Key -> schema, in the schema's order.
        required: The required keys, in the order of the properties.
        options: The JSON texts of an enum's values, or of a const.
        items: The schema of items; None if it is not told.
        document: What references point into.
    """

    kind: str = ""
    properties: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    items: Any = None
    document: Any = None

    @classmethod
    def of(cls, schema: Any, document: Any) -> "View":
        """Look at a schema.

        Args:
            schema: Decoded; anything that is not understood is a view that tells nothing.
            document: The document it stands in.
        """
        merged = _merge(schema, document, _MAX_HOPS)
        properties = merged.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = merged.get("required")
        required = required if isinstance(required, list) else []
        options = [merged["const"]] if "const" in merged else merged.get("enum")
        texts = tuple(map(_text, options)) if isinstance(options, list) and len(options) <= _MAX_ENUM else ()
        return cls(
            kind=_kind(merged, properties),
            properties=properties,
            required=tuple(key for key in properties if key in required),
            options=texts,
            items=merged.get("items"),
            document=document,
        )

    def value_of(self, key: str) -> "View":
        """What is told of a key's value."""
        return View.of(self.properties.get(key), self.document)

    @property
    def item(self) -> "View":
        """What is told of an item."""
        return View.of(self.items, self.document)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _kind(schema: dict[str, Any], properties: dict[str, Any]) -> str:
    declared = schema.get("type")
    if isinstance(declared, list):
        named = [kind for kind in declared if kind != "null"]
        declared = named[0] if len(named) == 1 else ""
    if isinstance(declared, str):
        return declared
    return "object" if properties else ""


def _merge(schema: Any, document: Any, hops: int) -> dict[str, Any]:
    """A schema with its references followed, its allOf laid over it, and its one alternative beside null taken."""
    if not isinstance(schema, dict) or hops == 0:
        return {}
    merged = dict(schema)
    parts: list[Any] = [_resolve(schema["$ref"], document)] if isinstance(schema.get("$ref"), str) else []
    if isinstance(schema.get("allOf"), list):
        parts += schema["allOf"][:_MAX_HOPS]
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list):
            branches = [branch for branch in branches[:_MAX_HOPS] if branch != {"type": "null"}]
            parts += branches if len(branches) == 1 else []
    for part in parts:
        for key, value in _merge(part, document, hops - 1 if len(parts) == 1 else hops // 2).items():
            known = merged.get(key)
            if key == "properties" and isinstance(known, dict) and isinstance(value, dict):
                merged[key] = known | value
            elif key == "required" and isinstance(known, list) and isinstance(value, list):
                merged[key] = [*known, *value]
            else:
                merged.setdefault(key, value)
    return merged


def _resolve(reference: str, document: Any) -> Any:
    """What a reference within the document points to; None if it is not found."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found = document
    for part in reference.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901 - the part as it is spelled
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found
