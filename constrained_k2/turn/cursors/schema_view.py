"""A simplified JSON Schema for drafting arguments: types, property order, required keys, enums."""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from constrained_k2.schema.document import local_target

_MAX_HOPS = 16  # max references followed for one value
_MAX_ENUM = 256


@lru_cache(maxsize=32)  # a large schema takes megabytes
def decoded(schema: str) -> Any:
    """A decoded schema. Equal texts give the same object while it is cached."""
    return json.loads(schema)


@dataclass(frozen=True, slots=True)
class SchemaView:
    """A simplified schema. A wrong guess from it costs no more than a rejected draft."""

    kind: str = ""  # the JSON type of its values; empty if there are several or it is unknown
    properties: dict[str, Any] = field(default_factory=dict)  # in the schema's order
    required: tuple[str, ...] = ()  # in the order of the properties
    options: tuple[str, ...] = ()  # the JSON texts of an enum's values, or of a const
    items: Any = None
    pattern: str = ""
    format: str = ""
    description: str = ""
    document: Any = None  # references point into it

    @classmethod
    def of(cls, schema: Any, document: Any) -> "SchemaView":
        """Simplify a decoded schema of a document; keywords that are not understood are ignored."""
        merged = _merge(schema, document, _MAX_HOPS)
        properties = merged.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = merged.get("required")
        required = required if isinstance(required, list) else []
        options = [merged["const"]] if "const" in merged else merged.get("enum")
        options = options if isinstance(options, list) and len(options) <= _MAX_ENUM else ()
        texts = tuple(json.dumps(option, ensure_ascii=False) for option in options)
        needed = tuple(key for key in properties if key in required)
        pattern, text_format, description = (
            text if isinstance(text := merged.get(key), str) else "" for key in ("pattern", "format", "description")
        )
        return cls(
            _kind(merged, properties),
            properties,
            needed,
            texts,
            merged.get("items"),
            pattern,
            text_format,
            description,
            document,
        )

    def value_of(self, key: str) -> "SchemaView":
        """The schema of a key's value."""
        return SchemaView.of(self.properties.get(key), self.document)

    @property
    def item(self) -> "SchemaView":
        """The schema of an item."""
        return SchemaView.of(self.items, self.document)


def _kind(schema: dict[str, Any], properties: dict[str, Any]) -> str:
    declared = schema.get("type")
    if isinstance(declared, list):
        named = [kind for kind in declared if kind != "null"]
        declared = named[0] if len(named) == 1 else ""
    if isinstance(declared, str):
        return declared
    return "object" if properties else ""


def _merge(schema: Any, document: Any, hops: int) -> dict[str, Any]:
    """A schema merged with its references, its allOf, and an anyOf or oneOf that has one branch besides null."""
    if not isinstance(schema, dict) or hops == 0:
        return {}
    merged = dict(schema)
    parts: list[Any] = [local_target(document, schema["$ref"])] if isinstance(schema.get("$ref"), str) else []
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
