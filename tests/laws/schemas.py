"""Random schemas as converters write them: pydantic, zod, OpenAPI 3.0 and 3.1, FastMCP, TypeScript.

A schema is a function of one seed. :mod:`tests.laws.reduction` makes a schema that breaks a law smaller.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Schema = Any  # dict[str, Any] | bool
WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))
NAMES: list[str] = WORDS["names"]
TEXTS: list[str] = WORDS["texts"]
PATTERNS: dict[str, list[str]] = WORDS["patterns, each with texts that match"]
FORMATS: dict[str, list[str]] = WORDS["formats, each with texts of it"]
NUMBERS = [0, 1, 2, 3, 5, 7, 9, 10, 12, 100, 255, 1000, 65535, 2**31 - 1, 2**53, -1, -2, -5, -10, -1000, 0.5, 1.5, -0.5, 0.1, 2.75, -3.25, 99.99]  # fmt: skip


class Writer:
    """Writes one schema. ``chance(p)`` decides; unions and what meets in them are more frequent than in life."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.defs: dict[str, Schema] = {}
        self._left = draw.choice((4, 8, 8, 14, 24))  # subschemas to come
        self._is_nullable_30 = draw.random() < 0.15
        self._defs_key = draw.choice(("$defs", "$defs", "definitions"))

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def root(self) -> dict[str, Any]:
        """A tool's parameters."""
        schema: dict[str, Any] = self.object_() if self.chance(0.85) else {"type": "object"} | self.combined()
        if self.chance(0.15):
            schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        if self.defs:
            schema[self._defs_key] = self.defs
        return schema

    def any_(self) -> Schema:
        self._left -= 1
        if self._left < 0:
            return self.annotated(self.leaf())
        kinds: list[tuple[int, Callable[[], Schema]]] = [
            (42, self.leaf), (12, self.array), (10, self.object_), (16, self.union), (6, self.optional), (4, self.reference),
            (3, self.combined), (2, self.tagged), (2, self.contradiction), (1, lambda: self.draw.choice((True, {}))),
        ]  # fmt: skip
        return self.annotated(self.one_of(kinds))

    def one_of(self, kinds: list[tuple[int, Callable[[], Schema]]]) -> Schema:
        """One of these, by their weights."""
        return self.draw.choices([make for _, make in kinds], [weight for weight, _ in kinds])[0]()

    def annotated(self, schema: Schema) -> Schema:
        if isinstance(schema, dict) and self.chance(0.15):
            return self.draw.choice(WORDS["annotations"]) | schema
        return schema

    # Leaves

    def leaf(self) -> Schema:
        kinds: list[tuple[int, Callable[[], Schema]]] = [
            (10, self.string), (9, self.number), (5, self.listed), (3, lambda: {"type": "boolean"}), (1, lambda: {"type": "null"}),
        ]  # fmt: skip
        return self.one_of(kinds)

    def string(self) -> Schema:
        schema: dict[str, Any] = {"type": "string"}
        kind = self.draw.randrange(10)
        if kind in {3, 4}:
            schema["pattern"] = self.draw.choice(list(PATTERNS))
        elif kind == 5:
            schema["format"] = self.draw.choice(list(FORMATS))
        elif kind == 6:
            excluded: list[Schema] = [{"const": self.text()}, {"enum": [self.text(), self.text()]}, {"enum": []}]
            schema["not"] = self.draw.choice(excluded)
        if kind in {7, 8} or self.chance(0.1):
            schema |= self.bounds("Length", (0, 1, 1, 2, 3), (1, 2, 3, 5, 8, 40, 256))
        return schema

    def number(self) -> Schema:
        schema: dict[str, Any] = {"type": self.draw.choice(("integer", "integer", "number"))}
        kind = self.draw.randrange(8)
        low, high = sorted((self.draw.choice(NUMBERS), self.draw.choice(NUMBERS)))
        if kind in {2, 3, 4}:
            first = self.draw.choice(("minimum", "exclusiveMinimum"))
            schema |= self.some({first: low, self.draw.choice(("maximum", "exclusiveMaximum")): high})
        if kind in {5, 4} and self.chance(0.7):
            schema["multipleOf"] = self.draw.choice((1, 2, 3, 5, 10, 25, 0.5, 0.25, 0.1, 0.01))
        return schema

    def listed(self) -> Schema:
        values = list(dict.fromkeys(self.text() for _ in range(self.draw.choice((1, 1, 2, 3, 6)))))
        kind = self.draw.randrange(8)
        if kind < 3:
            return {"type": "string", "enum": values}
        if kind == 3:
            mixed: list[Any] = [*values, 1, None, True, 1.5, [], {"a": 1}]
            return {"enum": self.draw.sample(mixed, self.draw.randint(1, len(mixed)))}
        if kind == 4:
            return {"type": "integer", "enum": self.draw.sample([0, 1, 2, 3, 10, 12, -1, 100], 3)}
        if kind == 5:
            return {"type": ["string", "null"], "enum": [*values, None]}
        return {"const": self.draw.choice([*values, 1, 0, True, False, None, 12, -1, {"a": [1]}, [1, "a"]])}

    def text(self) -> str:
        return self.draw.choice(TEXTS)

    def some(self, keywords: dict[str, Any]) -> dict[str, Any]:
        kept = self.draw.sample(list(keywords), self.draw.randint(1, len(keywords)))
        return {name: keywords[name] for name in keywords if name in kept}

    def bounds(self, suffix: str, lows: Sequence[int], highs: Sequence[int]) -> dict[str, Any]:
        low, high = sorted((self.draw.choice(lows), self.draw.choice(highs)))
        return self.some({f"min{suffix}": low, f"max{suffix}": high})

    # What holds others

    def array(self) -> Schema:
        schema: dict[str, Any] = {"type": "array"}
        kind = self.draw.randrange(10)
        if kind:
            schema["items"] = self.leaf() if self.chance(0.4) else self.any_()
        if kind in {1, 2}:
            schema["prefixItems"] = [self.any_() for _ in range(self.draw.randint(1, 3))]
            schema["items"] = self.draw.choice((False, schema["items"]))
        if kind in {3, 4, 5, 2}:
            schema |= self.bounds("Items", range(4), range(5))
        if self.chance(0.25):
            schema["uniqueItems"] = True
        if kind == 6:
            schema["contains"] = self.leaf() if self.chance(0.6) else {"const": self.text()}
            if self.chance(0.4):
                schema |= self.some({"minContains": self.draw.randrange(3), "maxContains": self.draw.randint(1, 3)})
        return schema

    def name(self) -> str:
        return self.draw.choice(NAMES[: 9 if self.chance(0.6) else len(NAMES)])

    def object_(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        if self.chance(0.12):  # a record
            schema["additionalProperties"] = self.any_()
        else:
            names = dict.fromkeys(self.name() for _ in range(self.draw.choice((0, 1, 2, 2, 3, 3, 4, 6))))
            schema["properties"] = {name: self.any_() for name in names}
            required = [name for name in names if self.chance(0.5)]
            if self.chance(0.05):
                required.append("undeclared")
            if required or self.chance(0.1):
                schema["required"] = required
            if self.chance(0.5):
                schema["additionalProperties"] = self.draw.choices((False, True, None), (6, 2, 2))[0]
                if schema["additionalProperties"] is None:
                    schema["additionalProperties"] = self.any_()
        if self.chance(0.3):
            self.ruled(schema)
        return schema

    def ruled(self, schema: dict[str, Any]) -> None:
        """Add one of the rarer keywords of objects."""
        names = list(schema.get("properties", {})) or ["a", "b"]
        one, other = self.draw.choice(names), self.draw.choice(names)
        match self.draw.randrange(8):
            case 0:
                schema["patternProperties"] = {self.draw.choice(("^x-", "^[a-z]+$", "_id$", "b")): self.any_()}
            case 1:
                rules: list[Schema] = [{"pattern": "^[a-z_]+$"}, {"maxLength": 8}, {"enum": [*names, "z"]}]
                schema["propertyNames"] = self.draw.choice(rules)
            case 2:
                schema |= self.bounds("Properties", range(4), range(5))
            case 3:
                schema["dependentRequired"] = {one: [other]}
            case 4:
                schema["dependentSchemas"] = {one: {"required": [other], "properties": {other: self.leaf()}}}
            case 5:
                schema |= {"if": {"properties": {one: self.leaf()}, "required": [one]}, "then": {"required": [other]}}
                if self.chance(0.5):
                    schema["else"] = {"properties": {other: self.leaf()}}
            case 6:
                member = {"properties": {one: self.leaf()}, "required": [one]}
                schema["not"] = self.draw.choice(({"required": sorted({one, other})}, member))
            case _:
                schema["anyOf"] = [{"required": [one]}, {"required": [other]}]

    def union(self) -> Schema:
        key = self.draw.choice(("anyOf", "anyOf", "anyOf", "oneOf"))
        inner = self.leaf if self.chance(0.6) else self.any_
        branches: list[Schema] = [self.annotated(inner()) for _ in range(self.draw.choice((1, 2, 2, 2, 3, 4)))]
        if self.chance(0.2):
            branches.append({"type": "null"})
        return {key: branches} | ({"default": None} if self.chance(0.2) else {})

    def optional(self) -> Schema:
        schema = self.any_()
        if not isinstance(schema, dict) or self.chance(0.5):
            return {"anyOf": [schema, {"type": "null"}], "default": None}
        if self._is_nullable_30 and "type" in schema:
            return schema | {"nullable": True}
        if isinstance(schema.get("type"), str) and schema["type"] != "null":
            return schema | {"type": [schema["type"], "null"]}
        return {"oneOf": [{"type": "null"}, schema]}

    def reference(self) -> Schema:
        name = self.draw.choice(("Node", "Item", "Odd~/%Name", "Item"))
        if name not in self.defs:
            self.defs[name] = True  # the schema may refer to itself
            self.defs[name] = self.object_() if name == "Node" else self.any_()
        escaped = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
        ref: dict[str, Any] = {"$ref": f"#/{self._defs_key}/{escaped}"}
        if self.chance(0.2):
            return {"allOf": [ref], "description": "as pydantic 1 writes it"}
        return ref | ({"description": "a sibling"} if self.chance(0.2) else {})

    def combined(self) -> dict[str, Any]:
        """An intersection, mostly of objects."""
        if self.chance(0.7):
            return {"allOf": [self.object_(), self.object_() if self.chance(0.7) else self.any_()]}
        return {"allOf": [self.any_(), self.leaf()]}

    def tagged(self) -> Schema:
        """A discriminated union."""
        tag = self.draw.choice(("type", "kind", "a"))
        values = self.draw.sample(["circle", "square", "a", "ab", "é"], self.draw.randint(2, 3))
        branches = []
        for value in values:
            branch = self.object_()
            member = {"const": value, "type": "string"} if self.chance(0.6) else {"enum": [value]}
            branch["properties"] = {tag: member} | branch.get("properties", {}) | {tag: member}
            branch["required"] = [tag, *(name for name in branch.get("required", ()) if name != tag)]
            branches.append(branch)
        return {"oneOf": branches} | ({"discriminator": {"propertyName": tag}} if self.chance(0.6) else {})

    def contradiction(self) -> Schema:
        """A schema that no value, or hardly one, satisfies."""
        return self.draw.choice(WORDS["contradictions"])


def schema_of(seed: int | str) -> dict[str, Any]:
    """The schema of a seed."""
    return Writer(random.Random(seed)).root()
