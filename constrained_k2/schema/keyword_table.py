"""What becomes of each keyword, by example: the table in the README is made of these by asking the engines."""

from typing import Any

EXAMPLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("type", {"type": ["string", "null"]}),
    ("type: integer", {"type": "integer"}),
    ("enum", {"enum": ["a", 1, None, {"b": [2]}]}),
    ("const", {"const": {"unit": "celsius"}}),
    ("minimum, maximum", {"type": "number", "minimum": -1.5, "maximum": 2**63}),
    ("exclusiveMinimum, exclusiveMaximum", {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    ("multipleOf", {"type": "number", "multipleOf": 0.25}),
    ("minLength, maxLength", {"type": "string", "minLength": 1, "maxLength": 200}),
    ("pattern", {"type": "string", "pattern": "^[A-Z]{3}-\\d+$"}),
    ("pattern with look-ahead at its start", {"type": "string", "pattern": "^(?=.*\\d)(?!admin).{8,}$"}),
    ("pattern with look-ahead inside, or a back-reference", {"type": "string", "pattern": "(a+)-\\1"}),
    ("format: date, ipv4, uuid, json-pointer, duration", {"type": "string", "format": "date"}),
    ("format: date-time, time", {"type": "string", "format": "date-time"}),
    ("format: email, hostname, ipv6, uri and the like", {"type": "string", "format": "email"}),
    ("properties, required", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
    ("required, more than 64", {"type": "object", "required": [f"key{number}" for number in range(70)]}),
    ("additionalProperties", {"type": "object", "additionalProperties": {"type": "boolean"}}),
    ("patternProperties", {"type": "object", "patternProperties": {"^x": {"type": "null"}, "y$": {"minLength": 1}}}),
    ("patternProperties, more than 4", {"patternProperties": {f"^{name}": {} for name in "abcdef"}}),
    ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 8}}),
    (
        "minProperties, maxProperties of declared keys",
        {"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False, "minProperties": 2},
    ),
    ("minProperties of open keys, 2 and more", {"type": "object", "minProperties": 2}),
    (
        "dependentRequired, dependentSchemas",
        {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
    ),
    ("items, prefixItems", {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}),
    ("minItems, maxItems", {"type": "array", "minItems": 2, "maxItems": 100_000}),
    ("contains", {"type": "array", "contains": {"const": 1}, "maxItems": 9}),
    (
        "contains, several or beside maxContains and maxItems",
        {"contains": {"const": 1}, "maxContains": 2, "maxItems": 9},
    ),
    ("uniqueItems of a finite set", {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}),
    ("uniqueItems of open items", {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
    ("allOf", {"allOf": [{"required": ["a"]}, {"properties": {"a": {"maxLength": 3}}}]}),
    ("anyOf", {"anyOf": [{"type": "string"}, {"required": ["a"]}], "minLength": 2}),
    ("oneOf", {"oneOf": [{"properties": {"k": {"const": 1}}, "required": ["k"]}, {"required": ["m"]}]}),
    ("not", {"not": {"anyOf": [{"type": "null"}, {"const": "a"}, {"required": ["b"]}]}}),
    (
        "if, then, else",
        {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["a"]}, "else": {"required": ["b"]}},
    ),
    ("$ref, $defs, recursion", {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}),
    ("$ref that leaves the schema", {"$ref": "https://example.com/schema.json"}),
    ("$dynamicRef", {"$dynamicAnchor": "n", "properties": {"next": {"$dynamicRef": "#n"}}}),
    (
        "unevaluatedProperties",
        {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False},
    ),
    ("unevaluatedItems", {"prefixItems": [{}], "contains": {"type": "string"}, "unevaluatedItems": False}),
)
"""Name -> a schema that shows it."""
