"""Rewrites a JSON Schema to what xgrammar's converter enforces exactly, and relaxes the rest.

xgrammar (0.2.8) accepts nearly every schema and silently ignores what it does not know: ``not``, ``if``, ``contains``,
``uniqueItems``, siblings of ``$ref``, ``anyOf`` and ``enum``, constraints without a ``type``, lengths beside a pattern.
So it never gets the user's schema, but a rewritten one: a union of typed shapes, with strings as patterns on their JSON
text and undeclared keys as patterns that exclude the declared ones. A keyword that cannot be rewritten like this is
left out and noted as relaxed.
"""

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.productivity import Productivity
from constrained_k2.grammar.xgrammar.strings import ANY_STRING, found, none_of, one_of, other_keys, sized
from constrained_k2.schema.no_instances import NoInstancesError
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.notes import NoteStatus
from constrained_k2.schema.shapes import (
    ANY,
    Array,
    Boolean,
    ListedValue,
    Node,
    Null,
    Number,
    Object,
    Shape,
    Shapes,
    String,
)
from constrained_k2.schema.string_formats import patterns_of
from constrained_k2.schema.undeclared_keys import REASON, UndeclaredKeys
from constrained_k2.schema.wanted_members import chosen

_DIGITS = 10**6  # xgrammar writes the numbers of a range, and reads their bounds, with at most six decimals
_EXACT = 2**53
_LONGEST = 64  # characters; with this maxLength a mask takes 60 ms on the real vocabulary, with 400 it takes 500 ms
_LENGTHS = frozenset({"minLength", "maxLength"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_DECLARING = frozenset({"properties", "required", "additionalProperties", "dependentRequired"})
_OPEN = frozenset({"patternProperties", "additionalProperties"})
_NEGATIONS = frozenset({"not", "oneOf", "if", "else", "enum", "const"})
_ANY = {"$ref": "#/$defs/any"}
_ANY_OBJECT = {"type": "object", "patternProperties": {ANY_STRING: _ANY}, "additionalProperties": False}
_ANY_SCALARS = ({"$ref": "#/$defs/string"}, *({"type": kind} for kind in ("number", "boolean", "null")))
_ANYTHING: dict[str, Any] = {
    "string": {"type": "string", "pattern": ANY_STRING},
    "any": {"anyOf": [*_ANY_SCALARS, {"type": "array", "items": _ANY}, _ANY_OBJECT]},
}


class XGrammarWriter:
    """Writes the schema for xgrammar; adds keywords that are not enforced exactly to the normalizer's notes."""

    def __init__(self, normalizer: Normalizer, undeclared_keys: UndeclaredKeys = "allow") -> None:
        self.normalizer = normalizer
        # Only one of several demands on a string is written, so demands cannot contradict each other.
        self.productivity = Productivity(normalizer, lambda _: True, lambda *_: True, undeclared_keys)
        self._names: dict[Node, str] = {}
        self._waiting: list[Node] = []
        self.relax, self.narrow = partial(self._note, "relaxed"), partial(self._note, "narrowed")

    def write(self, root: Node) -> dict[str, Any]:
        """Return the schema of a node's instances."""
        if not self.productivity.analyze(root):
            raise NoInstancesError("no value satisfies this schema", "#", "Rewrite it, or leave the tool out")
        definitions = dict(_ANYTHING)
        start = self.ref(root)
        while self._waiting:
            node = self._waiting.pop()
            shapes = self._writable(self.productivity.shapes(node))
            alternatives = [each for each in (self._shape(node, shape) for shape in shapes) if each is not None]
            if self.productivity.is_narrowed(node):
                self.narrow(node, {"properties"}, REASON)
            if not alternatives:
                raise self.normalizer.document.unsupported("no value of this schema can be written", min(node)[0])
            definitions[self._names[node]] = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
        return start | {"$defs": definitions}

    def _writable(self, shapes: Shapes) -> Iterator[Shape]:
        """Yield the shapes that have values. Each witness gets a key; objects whose witnesses get none are left out."""
        for shape in shapes:
            wanted = shape.wanted if isinstance(shape, Object) else frozenset()
            alternatives = [shape]
            if isinstance(shape, Object) and wanted:
                alternatives = chosen(self.normalizer, shape, self.normalizer.meet, every=True)
            for each in alternatives:
                if isinstance(each, Object) and each.wanted:
                    for one in wanted:
                        self.normalizer.notes.add(
                            one.pointer, "narrowed", "negated: no member can be wanted of open keys"
                        )
                    continue
                if wanted and isinstance(each, Object):
                    for name in each.required:
                        self.productivity.analyze(self.normalizer.value_node(each, name))
                if self.productivity.has_value(each):
                    yield each

    def ref(self, node: Node) -> dict[str, Any]:
        """Return a reference to a productive node."""
        if node == ANY:
            return _ANY
        if node not in self._names:
            self._names[node] = f"n{len(self._names)}"
            self._waiting.append(node)
        return {"$ref": f"#/$defs/{self._names[node]}"}

    def _note(self, status: NoteStatus, node: Node, keywords: AbstractSet[str], reason: str) -> None:
        """Note ``keywords`` as relaxed or narrowed in all subschemas that constrain the same value as ``node``."""
        for pointer in self.normalizer.occurrences(node, tuple(sorted(keywords))):
            self.normalizer.notes.add(pointer, status, reason)

    def string(self, node: Node, shape: String) -> str:
        """Return a regex for a shape's strings. xgrammar accepts one regex, so one of several patterns is enforced."""
        patterns = [*sorted(shape.patterns), *patterns_of(shape.formats)]
        longest = math.inf if shape.longest is None else shape.longest
        fitting = [value for value in shape.excluded if shape.shortest <= len(value) <= longest]
        excluded = [value for value in fitting if all(self._may_match(pattern, value) for pattern in patterns)]
        if shape.absent:
            self.relax(node, _NEGATIONS | {"pattern"}, "a negated pattern is not enforced")
        for number, pattern in enumerate(patterns):
            try:
                expression = found(pattern)
            except Untranslatable as error:
                self.relax(node, {"pattern"}, f"the pattern is not enforced: {error}")
                continue
            if number + 1 < len(patterns):
                self.relax(node, {"pattern", "format"}, "one pattern or format of several is enforced")
            if shape.shortest or shape.longest is not None:
                self.relax(node, _LENGTHS, "lengths combined with a pattern or format are not enforced")
            if excluded:
                self.relax(node, _NEGATIONS, "excluded values combined with a pattern or format are not enforced")
            return expression
        if excluded:
            if shape.shortest or shape.longest is not None:
                self.relax(node, _LENGTHS, "lengths combined with excluded values are not enforced")
            return none_of(excluded)
        if shape.longest is not None and shape.longest > _LONGEST:
            self.relax(node, _LENGTHS, f"a maxLength above {_LONGEST} is not enforced: masks would take too long")
            shape = replace(shape, longest=None)
        if shape.shortest or shape.longest is not None:
            return sized(shape.shortest, shape.longest)
        return ANY_STRING

    def _may_match(self, pattern: str, value: str) -> bool:
        try:
            return self.normalizer.matches(pattern, value)
        except UnsupportedSchema:
            return True

    def _shape(self, node: Node, shape: Shape) -> dict[str, Any] | None:
        """Return the schema of a shape; None if it is left out."""
        if isinstance(shape, Null):
            return {"type": "null"}
        if isinstance(shape, Boolean):
            return {"type": "boolean"} if len(shape.values) == 2 else {"const": next(iter(shape.values))}
        if isinstance(shape, Number):
            return self._number(node, shape)
        if isinstance(shape, String):
            return {"type": "string", "pattern": self.string(node, shape)}
        if isinstance(shape, Array):
            return self._array(node, shape)
        if isinstance(shape, Object):
            return self._object(node, shape)
        return self._value(node, shape)

    def _value(self, node: Node, shape: ListedValue) -> dict[str, Any] | None:
        value = shape.value
        if isinstance(value, float) and abs(value) < _EXACT and (Fraction(str(value)) * _DIGITS).denominator == 1:
            return {"type": "number", "minimum": value, "maximum": value}
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                self.narrow(node, {"enum", "const"}, "a lone surrogate cannot be written")
                return None
            return {"type": "string", "pattern": one_of([value])}
        if _holds_fractions(value):
            self.narrow(node, {"enum", "const"}, "numbers in it are written with 17 digits")
        return {"const": value}

    def _number(self, node: Node, shape: Number) -> dict[str, Any] | None:
        schema: dict[str, Any] = {"type": "integer" if shape.integer else "number"}
        if shape.integer:
            self.narrow(node, {"type"}, "1.0, an integer to JSON Schema, is never written")
        if shape.multiple:
            self.relax(node, {"multipleOf"}, "multipleOf is not enforced")
        if shape.fraction:
            self.relax(node, _NEGATIONS, "integers are not excluded")
        scale = 1 if shape.integer else _DIGITS
        for name, bound, is_open, sign in (("minimum", shape.low, shape.low_open, 1),
                                           ("maximum", shape.high, shape.high_open, -1)):  # fmt: skip
            if bound is not None and abs(bound) > _EXACT:
                self.relax(node, _BOUNDS, "a bound beyond 2^53 is not enforced")
            elif bound is not None:
                steps = -(-bound * sign * scale // 1)  # rounds inwards
                key = "exclusiveM" + name[1:] if is_open and steps == bound * sign * scale else name
                limit = Fraction(steps * sign, scale)
                schema[key] = int(limit) if limit.denominator == 1 else float(limit)
                if not shape.integer:
                    self.narrow(node, _BOUNDS, "numbers in a range are written with at most six decimals")
        low, high = (schema.get(name, schema.get("exclusiveM" + name[1:])) for name in ("minimum", "maximum"))
        return None if low is not None and high is not None and low > high else schema

    def _array(self, node: Node, shape: Array) -> dict[str, Any]:
        if any(fewest or most is not None for _, fewest, most in shape.contains):
            self.relax(node, {"contains", "minContains", "maxContains"}, "contains is not enforced")
        if shape.unique and (shape.longest is None or shape.longest > 1):
            self.relax(node, {"uniqueItems"}, "uniqueItems is not enforced")
        prefix, longest = self.productivity.items(shape)
        schema: dict[str, Any] = {"type": "array"}
        schema |= {"prefixItems": [self.ref(item) for item in prefix]} if prefix else {}
        schema["items"] = False if longest == len(prefix) else self.ref(shape.rest)
        schema |= {"minItems": shape.shortest} if shape.shortest else {}
        return schema | ({"maxItems": longest} if longest is not None and longest > len(prefix) else {})

    def _object(self, node: Node, shape: Object) -> dict[str, Any]:
        """Return the schema of an object: the declared properties in the schema's order, then other keys."""
        possible = set(self.productivity.possible_keys(shape))
        names = _declared(shape)
        keys = [name for name in names if name in possible]
        if any("\x7f" in name for name in keys):
            self.relax(node, {"properties", "required"}, "a key with U+007F may be written twice")
        extras = dict(self._extras(node, shape, names))
        schema: dict[str, Any] = {"type": "object"}
        if keys:
            schema["properties"] = {name: self.ref(self.normalizer.value_node(shape, name)) for name in keys}
        if shape.required:
            schema["required"] = [name for name in keys if name in shape.required]
        if extras:
            schema["patternProperties"] = {expression: self.ref(value) for expression, value in extras.items()}
        schema["additionalProperties"] = False
        if shape.fewest > len(shape.required):
            schema["minProperties"] = shape.fewest
            if extras and shape.fewest > 1:
                self.relax(node, {"minProperties", "maxProperties"}, "a key written twice counts as two")
        if shape.most is not None:
            schema["maxProperties"] = shape.most
        return schema

    def _extras(self, node: Node, shape: Object, names: list[str]) -> Iterator[tuple[str, Node]]:
        """Yield expressions for undeclared keys, each with the node of its values."""
        values = dict(self.productivity.extra_nodes(shape))
        if len(values) == 1:
            if self.productivity.is_productive(values[()]):
                yield from ((expression, values[()]) for expression in self._undeclared(node, shape, names))
            return
        if shape.names != ANY:
            self.relax(node, {"propertyNames"}, "propertyNames combined with patternProperties is not enforced")
        if self.productivity.is_productive(values[()]):
            if any(value != values[()] for value in values.values()):
                self.relax(node, _OPEN, "a key that matches the pattern may have a value of a key that does not")
            yield self._open_key(node, names), values[()]
        for which, value in values.items():
            if len(which) > 1 and any(value != values[pattern,] for pattern in which):
                self.relax(node, _OPEN, "a key that matches several patterns is constrained by one of them")
            if len(which) != 1 or not self.productivity.is_productive(value):
                continue
            try:
                expression = found(which[0])
            except Untranslatable as error:
                self.narrow(node, _OPEN, f"keys that match the pattern are not written: {error}")
                continue
            again = (name for name in names if self.normalizer.matches(which[0], name))
            if not all(self.normalizer.value_node(shape, name) <= value for name in again):
                keywords = _OPEN | {"properties", "required"}
                self.relax(node, keywords, "a declared key may be written again as one that matches a pattern")
            yield expression, value

    def _open_key(self, node: Node, names: list[str]) -> str:
        if any(names):
            reason = "other keys are written only if no declared key begins with the same character"
            self.narrow(node, _DECLARING, reason)
        return other_keys(names) if names else ANY_STRING

    def _undeclared(self, node: Node, shape: Object, names: list[str]) -> Iterator[str]:
        """Yield expressions for the undeclared keys that ``propertyNames`` allows."""
        if shape.names == ANY:
            yield self._open_key(node, names)
            return
        allowed = self.normalizer.shapes(shape.names)
        for name in allowed:
            if isinstance(name, String):
                yield self.string(shape.names | node, replace(name, excluded=name.excluded.union(names)))
        listed = {name.value for name in allowed if isinstance(name, ListedValue) and isinstance(name.value, str)}
        if others := listed.difference(names):
            yield one_of(others)


def _declared(shape: Object) -> list[str]:
    """Return the declared keys, in the order of the schema."""
    return list(dict.fromkeys(shape.in_order() + sorted(shape.required)))


def _holds_fractions(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_holds_fractions, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value != int(value)
