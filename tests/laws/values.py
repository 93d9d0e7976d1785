"""Values that mostly satisfy a schema, their mutants, their spellings, and the judge of both."""

import json
import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import jsonschema
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from constrained_k2.schema.document import MAPS
from tests.kit.format_oracles import FORMAT_CHECKER
from tests.laws.schemas import FORMATS, NAMES, NUMBERS, PATTERNS, TEXTS, Schema

_SPACES = r"\u00a0\ufeff\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_DATA = {"const", "enum", "default", "examples", "example", "required", "dependentRequired"}


class Values:
    """Draws values of one schema; some are invalid, which the judge tells."""

    def __init__(self, schema: Schema, draw: random.Random) -> None:
        self._root, self.draw = schema, draw

    def value(self, schema: Schema, depth: int = 0) -> Any:
        draw = self.draw
        if not isinstance(schema, dict):
            return self.any_(depth)
        if depth > 8:
            return None
        if isinstance(ref := schema.get("$ref"), str):
            return self.value(self._resolved(ref), depth + 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return draw.choice(schema["enum"])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                rest = {name: found for name, found in schema.items() if name != key}
                branch = draw.choice(schema[key])
                return (
                    self.value(self._both(rest, branch), depth + 1)
                    if isinstance(branch, dict)
                    else self.value(rest, depth)
                )
        if isinstance(schema.get("allOf"), list):
            merged = {name: found for name, found in schema.items() if name != "allOf"}
            for branch in schema["allOf"]:
                merged = self._both(merged, branch)
            return self.value(merged, depth + 1)
        if schema.get("nullable") and draw.random() < 0.3:
            return None
        kinds = schema.get("type")
        kind = draw.choice(kinds) if isinstance(kinds, list) and kinds else kinds
        return self._of(kind or self._implied(schema), schema, depth)

    def _both(self, one: dict[str, Any], other: Any) -> dict[str, Any]:
        for _ in range(8):
            if not isinstance(other, dict) or not isinstance(ref := other.get("$ref"), str):
                break
            other = self._resolved(ref)
        if not isinstance(other, dict) or "$ref" in other:  # a circle of references
            return one
        merged = one | other
        for key in ("properties", "patternProperties"):
            if key in one and key in other:
                merged[key] = one[key] | other[key]
        if "required" in one and "required" in other:
            merged["required"] = [*one["required"], *other["required"]]
        return merged

    def _resolved(self, ref: str) -> Any:
        found = self._root
        for part in ref.removeprefix("#/").split("/") if ref != "#" else ():
            name = part.replace("%25", "%").replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _implied(self, schema: dict[str, Any]) -> str | None:
        if {"properties", "required", "additionalProperties"} & set(schema):
            return "object"
        return "array" if {"items", "prefixItems"} & set(schema) else None

    def _of(self, kind: str | None, schema: dict[str, Any], depth: int) -> Any:
        draw = self.draw
        make: dict[str, Callable[[], Any]] = {
            "string": lambda: self._string(schema),
            "integer": lambda: self._number(schema, is_whole=True),
            "number": lambda: self._number(schema, is_whole=False),
            "boolean": lambda: draw.random() < 0.5,
            "null": lambda: None,
            "array": lambda: self._array(schema, depth),
            "object": lambda: self._object(schema, depth),
        }
        return make.get(kind or "", lambda: self.any_(depth))()

    def _string(self, schema: dict[str, Any]) -> str:
        texts = PATTERNS.get(schema.get("pattern", "-")) or FORMATS.get(schema.get("format", "-")) or TEXTS
        text = self.draw.choice(texts)
        least, most = schema.get("minLength", 0), schema.get("maxLength", 10**6)
        if len(text) < least:
            text += self.draw.choice(("a", "é", "😀", '"')) * int(least - len(text) + self.draw.randint(0, 1))
        return text[: int(most) + (self.draw.random() < 0.1)]

    def _number(self, schema: dict[str, Any], *, is_whole: bool) -> float:
        draw = self.draw
        step = Fraction(str(schema.get("multipleOf") or (1 if is_whole or draw.random() < 0.5 else "0.25")))
        low, high = (schema.get(name, schema.get(other)) for name, other in
                     (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")))  # fmt: skip
        near = draw.choice([one for one in (low, high) if isinstance(one, (int, float))] or NUMBERS)
        value = (Fraction(str(near)) // step + draw.randint(-1, 2)) * step
        return int(value) if value.denominator == 1 else _whole(float(value))

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        draw = self.draw
        prefix = schema.get("prefixItems", ())
        least = max(schema.get("minItems", 0), schema.get("minContains", int("contains" in schema)))
        most = min(schema.get("maxItems", least + 3), least + 3)
        count = draw.randint(least, max(least, int(most))) if depth < 4 else least
        items = [self.value(one, depth + 1) for one in prefix[:count]]
        if schema.get("items") is not False:
            items += [self.value(schema.get("items", True), depth + 1) for _ in range(count - len(items))]
        if "contains" in schema:
            for at in range(min(len(items), max(1, schema.get("minContains", 1)))):
                items[at] = self.value(schema["contains"], depth + 1)
        if schema.get("uniqueItems"):
            items = list({json.dumps(one, sort_keys=True): one for one in items}.values())
        return items

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        draw = self.draw
        named, required = schema.get("properties", {}), schema.get("required", ())
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", 10**6)
        keys = [key for key in named if key in required or draw.random() < (0.5 if depth < 4 else 0)]
        keys += [key for key in required if key not in named]
        others = schema.get("additionalProperties", True)
        if others is not False and draw.random() < 0.4 and depth < 4:
            keys += draw.sample([*NAMES, "x-a", "z_id", "cb"], draw.randint(1, 2))
        keys += draw.sample(NAMES, max(0, min(int(least), 4) - len(keys)))
        keys = draw.sample(keys, len(keys))[: max(int(most), len(required))]
        patterns = schema.get("patternProperties", {})
        found = {}
        for key in keys:
            of_pattern = next((one for pattern, one in patterns.items() if re.search(pattern, key)), others)
            found[key] = self.value(named.get(key, of_pattern), depth + 1)
        return found

    def any_(self, depth: int) -> Any:
        draw = self.draw
        if depth < 4 and draw.random() < 0.2:
            inner = [self.any_(depth + 1) for _ in range(draw.randrange(3))]
            return inner if draw.random() < 0.5 else dict(zip(draw.sample(NAMES, len(inner)), inner, strict=True))
        return draw.choice([None, True, False, draw.choice(NUMBERS), draw.choice(TEXTS)])


def mutant(value: Any, draw: random.Random) -> Any:
    """A value with one change, mostly deep inside."""
    if isinstance(value, dict) and value and draw.random() < 0.7:
        key = draw.choice(list(value))
        changed = dict(value)
        changed[key] = mutant(value[key], draw)
        return changed
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], mutant(value[at], draw), *value[at + 1 :]]
    if isinstance(value, dict):
        key = draw.choice([*value, *NAMES])
        match draw.randrange(3):
            case 0:
                return {name: one for name, one in value.items() if name != key}
            case 1:
                return value | {key + draw.choice(("", "x")): draw.choice([*value.values(), None])}
            case _:
                return {(name + "s" if name == key else name): one for name, one in value.items()}
    if isinstance(value, list):
        extra = draw.choice([*value, None, "a"])
        return draw.choice([[*value, extra], value[1:], [extra, *value], [*value, *value]])
    if isinstance(value, str):
        return draw.choice([value + draw.choice(TEXTS), value[:-1], value * 2, None, 1, [value], value.upper()])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return draw.choice(
            [*map(_whole, (value + 1, value - 1, -value, value + 0.5, value * 10)), str(value), None, True]
        )
    return draw.choice([None, True, 0, 1, "", "a", "null", [], {}, [value], {"a": value}])


def _whole(number: float) -> float:
    """The number as an integer if it is one: 1.0 is never written."""
    return int(number) if number == int(number) else number


def spelled(value: Any, draw: random.Random) -> str:
    """A value as JSON, with any usual whitespace."""
    separators = draw.choice(((",", ":"), (", ", ": "), (", ", ": ")))
    indent = 2 if draw.random() < 0.1 else None
    return json.dumps(value, ensure_ascii=False, separators=None if indent else separators, indent=indent)


class DuplicateKeyError(ValueError):
    """An object has a key twice."""


def decoded(text: str) -> Any:
    """The value of a JSON text; a DuplicateKeyError if an object has a key twice, a ValueError if it is not JSON."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise DuplicateKeyError(pairs)
        return dict(pairs)

    return json.loads(text, object_pairs_hook=members)


def judge_of(schema: Schema) -> Any:
    """jsonschema's validator of a schema, with patterns as ECMA-262 reads them, formats, and exact multiples."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    exact: Any = jsonschema.validators.extend(kind, {"multipleOf": _multiple_of})  # type: ignore[no-untyped-call]
    return exact(_for_python(schema), registry=REGISTRY, format_checker=FORMAT_CHECKER)


def _multiple_of(validator: Any, step: float, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(step)):
        yield jsonschema.ValidationError(f"{value} is no multiple of {step}")


def _for_python(schema: Any, *, is_map: bool = False) -> Any:
    """The schema with the patterns of ECMA-262 as Python's ``re`` reads them."""
    if isinstance(schema, list):
        return [_for_python(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if is_map:
            found[key] = _for_python(value)
        elif key == "pattern" and isinstance(value, str):
            found[key] = _python_pattern(value)
        elif key == "patternProperties" and isinstance(value, dict):
            found[key] = {_python_pattern(pattern): _for_python(one) for pattern, one in value.items()}
        else:
            found[key] = value if key in _DATA else _for_python(value, is_map=key in MAPS)
    return found


def _python_pattern(pattern: str) -> str:
    """Translate what stands outside of classes, and the escapes of classes of characters everywhere."""
    found, is_in_class = [], False
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        escapes = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\s": rf"\t\n\v\f\r {_SPACES}"}
        if part in escapes:
            found.append(escapes[part] if is_in_class else f"[{escapes[part]}]")
        elif part.lower() in escapes and not is_in_class:
            found.append(f"[^{escapes[part.lower()]}]")
        elif not is_in_class and part in {"$", "."}:
            found.append({"$": r"\Z", ".": r"[^\n\r\u2028\u2029]"}[part])
        else:
            is_in_class = part == "[" or (is_in_class and part != "]")
            found.append(part)
    return "".join(found)
