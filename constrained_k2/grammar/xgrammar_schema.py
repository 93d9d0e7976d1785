"""A schema's node written as another JSON Schema, made only of what xgrammar's converter keeps exactly.

xgrammar (0.2.8) takes nearly every schema and drops what it does not know in silence: ``not``, ``if``, ``contains``,
``uniqueItems``, whatever stands beside ``$ref``, ``anyOf``, ``enum`` or without a ``type``, lengths beside a pattern.
So it is never given the user's schema, but one of ours: a union of typed shapes, strings as patterns on their spelling,
keys that are open as patterns that leave out the declared ones. What cannot be said so is left out, noted as relaxed.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.grammar.patterns import Untranslatable
from constrained_k2.grammar.reach import Reach
from constrained_k2.grammar.xgrammar_objects import object_schema
from constrained_k2.grammar.xgrammar_strings import ANY_STRING, found, none_of, one_of, sized
from constrained_k2.schema.coverage import Status
from constrained_k2.schema.formats import patterns_of
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import ANY, Array, Boolean, Node, Null, Number, Object, Shape, String, Value

_DIGITS = 10**6
"""xgrammar writes the numbers of a range with at most six decimals, and reads bounds so."""
_EXACT = 2**53
_LONGEST = 64  # a mask inside a string of bounded length takes 60 ms on the real vocabulary, and 500 ms at 400
_LENGTHS = frozenset({"minLength", "maxLength"})
_NEGATIONS = frozenset({"not", "oneOf", "if", "else", "enum", "const"})
_ANYTHING: dict[str, Any] = {
    "string": {"type": "string", "pattern": ANY_STRING},
    "any": {
        "anyOf": [
            {"$ref": "#/$defs/string"},
            *({"type": kind} for kind in ("number", "boolean", "null")),
            {"type": "array", "items": {"$ref": "#/$defs/any"}},
            {
                "type": "object",
                "patternProperties": {ANY_STRING: {"$ref": "#/$defs/any"}},
                "additionalProperties": False,
            },
        ]
    },
}


class XGrammarWriter:
    """Writes the schema for xgrammar; what it cannot keep is added to the normalizer's notes.

    Args:
        normalizer: The user's schema.
    """

    def __init__(self, normalizer: Normalizer) -> None:
        self.normalizer = normalizer
        # No string here can contradict itself, since of several demands one is kept.
        self.reach = Reach(normalizer, lambda _: True, lambda _, __: True)
        self._names: dict[Node, str] = {}
        self._waiting: list[Node] = []

    def write(self, root: Node) -> dict[str, Any]:
        """The schema of a node's instances.

        Raises:
            UnsupportedSchema: A subschema is not one, or nothing satisfies the schema.
            SchemaTooCostly: Over a budget.
        """
        if not self.reach.is_known(root):
            raise self.normalizer.document.unsupported("no value satisfies this schema", "#")
        definitions = dict(_ANYTHING)
        start = self.ref(root)
        while self._waiting:
            node = self._waiting.pop()
            ways = [way for shape in self.normalizer.shapes(node) if self.reach.can_be(shape)
                    for way in [self._shape(node, shape)] if way is not None]  # fmt: skip
            if not ways:
                raise self.normalizer.document.unsupported("of this, nothing can be written", min(node)[0])
            definitions[self._names[node]] = ways[0] if len(ways) == 1 else {"anyOf": ways}
        return start | {"$defs": definitions}

    def ref(self, node: Node) -> dict[str, Any]:
        """A reference to a node that has a value."""
        if node == ANY:
            return {"$ref": "#/$defs/any"}
        if node not in self._names:
            self._names[node] = f"n{len(self._names)}"
            self._waiting.append(node)
        return {"$ref": f"#/$defs/{self._names[node]}"}

    def note(self, node: Node, keywords: frozenset[str], status: Status, reason: str) -> None:
        """Note what becomes of these keywords, wherever they speak of the same value as ``node`` does."""
        for pointer in self.normalizer.occurrences(node, tuple(sorted(keywords))):
            self.normalizer.note(pointer, status, reason)

    def string(self, node: Node, shape: String) -> str:
        """An expression for the strings of a shape: xgrammar takes one, so of several demands one is kept."""
        patterns = [*sorted(shape.patterns), *patterns_of(shape.formats)]
        excluded = self._telling(shape, patterns)
        if shape.absent:
            self.note(node, _NEGATIONS | {"pattern"}, "relaxed", "a pattern that must not be found is not kept")
        for number, pattern in enumerate(patterns):
            try:
                expression = found(pattern)
            except Untranslatable as error:
                self.note(node, frozenset({"pattern"}), "relaxed", f"the pattern is not kept: {error}")
                continue
            if number + 1 < len(patterns):
                self.note(node, frozenset({"pattern", "format"}), "relaxed", "one pattern or format of several is kept")
            if shape.shortest or shape.longest is not None:
                self.note(node, _LENGTHS, "relaxed", "lengths beside a pattern or format are not kept")
            if excluded:
                self.note(node, _NEGATIONS, "relaxed", "excluded values beside a pattern or format are not kept")
            return expression
        if excluded:
            if shape.shortest or shape.longest is not None:
                self.note(node, _LENGTHS, "relaxed", "lengths beside excluded values are not kept")
            return none_of(excluded)
        if shape.longest is not None and shape.longest > _LONGEST:
            self.note(node, _LENGTHS, "relaxed", f"a maxLength above {_LONGEST} is not kept: masks would take too long")
            shape = replace(shape, longest=None)
        if shape.shortest or shape.longest is not None:
            return sized(shape.shortest, shape.longest)
        return ANY_STRING

    def _telling(self, shape: String, patterns: list[str]) -> frozenset[str]:
        """The excluded values that the rest of the shape leaves in."""
        rest = replace(shape, excluded=frozenset())
        longest = len if rest.longest is None else lambda _: rest.longest or 0
        return frozenset(
            value
            for value in shape.excluded
            if rest.shortest <= len(value) <= longest(value)
            and all(self._may_match(pattern, value) for pattern in patterns)
        )

    def _may_match(self, pattern: str, value: str) -> bool:
        try:
            return self.normalizer.matches(pattern, value)
        except UnsupportedSchema:
            return True

    def _shape(self, node: Node, shape: Shape) -> dict[str, Any] | None:
        """The schema of one shape; None where it is left out."""
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
            return object_schema(self, node, shape)
        return self._value(node, shape)

    def _value(self, node: Node, shape: Value) -> dict[str, Any] | None:
        value = shape.value
        if isinstance(value, float) and abs(value) < _EXACT and (Fraction(str(value)) * _DIGITS).denominator == 1:
            return {"type": "number", "minimum": value, "maximum": value}
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                self.note(node, frozenset({"enum", "const"}), "narrowed", "a lone surrogate cannot be written")
                return None
            return {"type": "string", "pattern": one_of([value])}
        if _holds_fractions(value):
            self.note(node, frozenset({"enum", "const"}), "narrowed", "numbers in it are written with 17 digits")
        return {"const": value}

    def _number(self, node: Node, shape: Number) -> dict[str, Any] | None:
        schema: dict[str, Any] = {"type": "integer" if shape.integer else "number"}
        if shape.integer:
            self.note(node, frozenset({"type"}), "narrowed", "1.0, an integer to JSON Schema, is never written")
        if shape.multiple:
            self.note(node, frozenset({"multipleOf"}), "relaxed", "multiples are not kept")
        if shape.fraction:
            self.note(node, _NEGATIONS, "relaxed", "integers among fractions are not kept out")
        scale = 1 if shape.integer else _DIGITS
        for name, bound, is_open, sign in (("minimum", shape.low, shape.low_open, 1),
                                           ("maximum", shape.high, shape.high_open, -1)):  # fmt: skip
            if bound is None:
                continue
            if abs(bound) > _EXACT:
                self.note(node, _BOUNDS, "relaxed", "a bound beyond 2^53 is not kept")
                continue
            steps = -(-bound * sign * scale // 1)  # inwards
            schema["exclusiveM" + name[1:] if is_open and steps == bound * sign * scale else name] = _number(
                steps * sign, scale
            )
            if not shape.integer:
                self.note(node, _BOUNDS, "narrowed", "numbers in a range are written with at most six decimals")
        low, high = (schema.get(name, schema.get("exclusiveM" + name[1:])) for name in ("minimum", "maximum"))
        return None if low is not None and high is not None and low > high else schema

    def _array(self, node: Node, shape: Array) -> dict[str, Any]:
        if any(fewest or most is not None for _, fewest, most in shape.contains):
            self.note(
                node, frozenset({"contains", "minContains", "maxContains"}), "relaxed", "contained items are not kept"
            )
        if shape.unique and (shape.longest is None or shape.longest > 1):
            self.note(node, frozenset({"uniqueItems"}), "relaxed", "items may come again")
        reach = next(
            (n for n, item in enumerate(shape.prefix) if not self.reach.is_productive(item)), len(shape.prefix)
        )
        ends = reach < len(shape.prefix) or not self.reach.is_productive(shape.rest)
        longest = reach if ends and (shape.longest is None or shape.longest > reach) else shape.longest
        prefix = shape.prefix[: reach if longest is None else min(reach, longest)]
        schema: dict[str, Any] = {"type": "array"}
        if prefix:
            schema["prefixItems"] = [self.ref(item) for item in prefix]
        schema["items"] = False if longest == len(prefix) else self.ref(shape.rest)
        if shape.shortest:
            schema["minItems"] = shape.shortest
        if longest is not None and longest > len(prefix):
            schema["maxItems"] = longest
        return schema


_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})


def _number(steps: Fraction | int, scale: int) -> int | float:
    value = Fraction(steps, scale)
    return int(value) if value.denominator == 1 else float(value)


def _holds_fractions(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_holds_fractions, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value != int(value)
