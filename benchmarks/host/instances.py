"""Writes ordinary arguments for a tool, with properties in the schema's order."""

import itertools
from collections.abc import Iterator
from typing import Any

import jsonschema

_DEPTH = 6
_TEXTS = (
    "Quarterly report for the northern region",
    "https://example.com/articles/2026/autumn?page=2&sort=asc",
    "SELECT id, total FROM orders WHERE country = 'NO' ORDER BY total DESC",
    "ana@example.com",
    'The meeting moved to Thursday; please bring last month\'s figures and the "draft" with you.',
    "/home/ana/projects/notes/2026-11-21.md",
    "北京明天的天气怎么样",
    "def area(r):\n    return 3.14159 * r * r",
)


def instance_of(schema: Any, seed: int = 0) -> Any | None:
    """Return an object that the schema accepts; None if this simple method finds none.

    Args:
        schema: A JSON Schema of an object.
        seed: Selects texts; an odd seed leaves out every other optional property.
    """
    value = _Writer(schema, seed).value(schema, 0)
    return value if isinstance(value, dict) and jsonschema.Draft202012Validator(schema).is_valid(value) else None


class _Writer:
    def __init__(self, root: Any, seed: int) -> None:
        self._root = root
        self._sparse = bool(seed % 2)
        self._texts: Iterator[str] = itertools.islice(itertools.cycle(_TEXTS), seed, None)
        self._numbers = itertools.count(seed)

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > _DEPTH:
            return None
        if "$ref" in schema:
            return self.value(self._resolved(schema["$ref"]), depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                return self.value(schema[keyword][0], depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][next(self._numbers) % len(schema["enum"])]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = kind[0]
        return getattr(self, f"_{kind}", lambda *_: None)(schema, depth)

    def _resolved(self, reference: str) -> Any:
        found = self._root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def _object(self, schema: Any, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self.value(inner, depth + 1)
            for position, (name, inner) in enumerate(schema.get("properties", {}).items())
            if name in required or (depth < 3 and not (self._sparse and position % 2))
        }

    def _array(self, schema: Any, depth: int) -> list[Any]:
        count = max(schema.get("minItems", 0), 1 if schema.get("maxItems") == 1 else 2)
        return [self.value(schema.get("items", {"type": "string"}), depth + 1) for _ in range(count)]

    def _string(self, schema: Any, _depth: int) -> str:
        fixed = {"date": "2026-11-21", "date-time": "2026-11-21T09:30:00Z", "uri": _TEXTS[1], "email": _TEXTS[3]}
        text = fixed.get(schema.get("format", "")) or next(self._texts)
        return text[: schema.get("maxLength", len(text))]

    def _integer(self, schema: Any, _depth: int) -> int:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 2) + 1)
        return int(min(low + next(self._numbers) % 40, schema.get("maximum", low + 40)))

    def _number(self, schema: Any, depth: int) -> float:
        return self._integer(schema, depth)

    def _boolean(self, _schema: Any, _depth: int) -> bool:
        return bool(next(self._numbers) % 2)

    def _null(self, _schema: Any, _depth: int) -> None:
        return None
