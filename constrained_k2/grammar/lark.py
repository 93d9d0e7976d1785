"""A schema's node written as an LLGuidance grammar: objects in any property order, each key once.

Leaves (strings and numbers) are LLGuidance's own ``%json``, which is strong there, with blanks switched off so that
all lexemes stay in one class; structure and blanks are rules of ours.
"""

import json
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from itertools import permutations, product
from typing import Any

from constrained_k2.grammar.arrays import array_rule
from constrained_k2.grammar.objects import object_rule
from constrained_k2.grammar.patterns import Untranslatable, found_anywhere
from constrained_k2.grammar.terminals import CHARACTER, PREAMBLE, key, literal, one_of
from constrained_k2.schema.formats import FORMAT_PATTERNS
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.screen import move_open_bounds
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    Array,
    Boolean,
    Node,
    Null,
    Number,
    Object,
    Shape,
    String,
    Value,
    meet,
)

_MOST_PATTERNS = 4
_MOST_PERMUTED = 4  # properties of one constant that may come in any order
_LEAF = {"x-guidance": {"whitespace_flexible": False}}


class CannotWrite(Exception):
    """A shape has no grammar here."""


class LarkWriter:
    """Writes the grammar of one schema.

    Args:
        normalizer: The schema's.
    """

    def __init__(self, normalizer: Normalizer) -> None:
        self.normalizer = normalizer
        self._productive: set[Node] = set()
        self._names: dict[Node, str] = {}
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        self._waiting: list[Node] = []

    def write(self, root: Node) -> str:
        """The grammar of a node's instances.

        Raises:
            CannotWrite: It has none here.
            UnsupportedSchema: A subschema is not one, or nothing satisfies the schema.
            SchemaTooCostly: Over a budget.
        """
        self._find_productive(root)
        if root not in self._productive:
            raise self.normalizer.document.unsupported("no value satisfies this schema", "#")
        lines = [f"start: {self.rule(root)}"]
        while self._waiting:
            node = self._waiting.pop()
            bodies = [self._shape(shape, self._names[node], number) for number, shape in enumerate(self._shapes(node))]
            lines.append(f"{self._names[node]}: {' | '.join(bodies)}")
        terminals = [f"{name}: {expression}" for expression, name in self._terminals.items()]
        return "\n".join([*lines, *self._rules, *terminals, PREAMBLE])

    def rule(self, node: Node) -> str:
        """The name of a productive node's rule."""
        if node == ANY:
            return "any"
        if node not in self._names:
            self._names[node] = f"n{len(self._names)}"
            self._waiting.append(node)
        return self._names[node]

    def is_productive(self, node: Node) -> bool:
        """Whether anything satisfies a node (that is reachable from the root)."""
        return node == ANY or node in self._productive

    def terminal(self, expression: str) -> str:
        """The name of a terminal."""
        return self._terminals.setdefault(expression, f"T{len(self._terminals)}")

    def add_rule(self, line: str) -> None:
        """Add a rule of a shape's own."""
        self._rules.append(line)

    def string_expression(self, shape: String) -> str:
        """A terminal's expression for strings of a shape, quotes included, each value in its one spelling.

        Raises:
            CannotWrite: A pattern has no counterpart on JSON's spelling.
        """
        longest = "" if shape.longest is None else str(shape.longest)
        parts = [rf'/"{CHARACTER}{{{shape.shortest},{longest}}}"/' if shape.shortest or longest else "PLAIN"]
        try:
            parts += map(found_anywhere, sorted(shape.patterns))
            parts += (found_anywhere(FORMAT_PATTERNS[name]) for name in sorted(shape.formats))
            parts += (f"~{found_anywhere(pattern)}" for pattern in sorted(shape.absent))
        except Untranslatable as error:
            raise CannotWrite(f"a pattern beside others or under a negation: {error}") from error
        if shape.excluded:
            parts.append(f"~{one_of(sorted(shape.excluded))}")
        return " & ".join(parts)

    def extra_key(self, shape: Object, found: tuple[str, ...]) -> str:
        """A terminal of the keys that a shape does not name and in which exactly the ``found`` patterns are."""
        patterns = self._patterns(shape)
        names = self.named_keys(shape)
        keys = String(
            patterns=frozenset(found), absent=frozenset(patterns).difference(found), excluded=frozenset(names)
        )
        allowed = EVERYTHING if shape.names == ANY else self.normalizer.shapes(shape.names)
        met = (meet(keys, allowed_name) for allowed_name in allowed if isinstance(allowed_name, String))
        ways = [self.string_expression(way) for way in met if isinstance(way, String)]
        listed = [way.value for way in allowed if isinstance(way, Value) and isinstance(way.value, str)]
        listed = [name for name in listed if name not in names and self._found(patterns, name) == found]
        if listed:
            ways.append(one_of(sorted(listed)))
        return self.terminal(" | ".join(ways)) if ways else ""

    def _shapes(self, node: Node) -> list[Shape]:
        return [shape for shape in self.normalizer.shapes(node) if self.can_be(shape)]

    def _shape(self, shape: Shape, name: str, number: int) -> str:
        """The body of a rule for one shape."""
        if isinstance(shape, Null):
            return '"null"'
        if isinstance(shape, Boolean):
            return " | ".join(f'"{str(value).lower()}"' for value in sorted(shape.values))
        if isinstance(shape, Number):
            return self._number(shape)
        if isinstance(shape, String):
            return self._string(shape)
        if isinstance(shape, Array):
            return array_rule(self, shape, f"{name}_{number}")
        if isinstance(shape, Object):
            return object_rule(self, shape, f"{name}_{number}")
        return self.value(shape.value)

    def value(self, value: Any) -> str:
        """One value: blanks are free inside it, and up to four properties of an object may come in any order."""
        if isinstance(value, str):
            return key(value)
        if isinstance(value, list):
            return " ws ".join(['"["', *_separated(self.value(item) for item in value), '"]"'])
        if isinstance(value, dict):
            members = [f'{key(name)} ws ":" ws {self.value(item)}' for name, item in value.items()]
            orders = permutations(members) if len(members) <= _MOST_PERMUTED else [tuple(members)]
            return "(" + " | ".join(" ws ".join(['"{"', *_separated(order), '"}"']) for order in orders) + ")"
        if isinstance(value, int) and not isinstance(value, bool):
            digits = str(value) if value else "-?0"
            return rf"/{digits}(?:\.0+)?/"
        return literal(json.dumps(value))

    def _number(self, shape: Number) -> str:
        schema: dict[str, Any] = {"type": "integer" if shape.integer else "number"}
        for bound, is_open, closed_name, open_name in (
            (shape.low, shape.low_open, "minimum", "exclusiveMinimum"),
            (shape.high, shape.high_open, "maximum", "exclusiveMaximum"),
        ):
            if bound is not None:
                schema[open_name if is_open else closed_name] = _decimal(bound)
        if shape.multiple:
            schema["multipleOf"] = _decimal(shape.multiple)
        move_open_bounds(schema)
        return self._leaf(schema) if len(schema) > 1 or shape.integer else "NUMBER"

    def _string(self, shape: String) -> str:
        if shape.excluded or shape.absent:
            return self.terminal(self.string_expression(shape))
        schema: dict[str, Any] = {"type": "string"}
        if shape.shortest:
            schema["minLength"] = shape.shortest
        if shape.longest is not None:
            schema["maxLength"] = shape.longest
        patterns = sorted({*shape.patterns, *(FORMAT_PATTERNS[name] for name in shape.formats)})
        if len(patterns) == 1:
            schema["pattern"] = patterns[0]
        elif patterns:
            schema["allOf"] = [{"pattern": pattern} for pattern in patterns]
        return self._leaf(schema) if len(schema) > 1 else "STRING"

    @staticmethod
    def _leaf(schema: dict[str, Any]) -> str:
        return f"%json {json.dumps(_LEAF | schema)}"

    def _find_productive(self, root: Node) -> None:
        """Find the reachable nodes that some finite value satisfies, by iteration to the least fixed point."""
        reachable: dict[Node, None] = {root: None}
        waiting = [root]
        while waiting:
            for shape in self.normalizer.shapes(waiting.pop()):
                for child in self._children(shape):
                    if child not in reachable and child != ANY:
                        reachable[child] = None
                        waiting.append(child)
        changed = True
        while changed:
            changed = False
            for node in reachable:
                if node not in self._productive and any(map(self.can_be, self.normalizer.shapes(node))):
                    self._productive.add(node)
                    changed = True

    def _children(self, shape: Shape) -> Iterable[Node]:
        if isinstance(shape, Array):
            yield from shape.prefix
            yield shape.rest
            yield from (node | shape.rest for node, _, _ in shape.contains)
        elif isinstance(shape, Object):
            for name in self.named_keys(shape):
                yield self.normalizer.value_node(shape, name)
            yield from (node for _, node in self.extra_nodes(shape))

    def can_be(self, shape: Shape) -> bool:
        """Whether a shape has a value, as far as is known by now."""
        if isinstance(shape, Array):
            needed = [*shape.prefix[: shape.shortest], *([shape.rest] if shape.shortest > len(shape.prefix) else [])]
            needed += [node | shape.rest for node, fewest, _ in shape.contains if fewest]
            return all(map(self.is_productive, needed))
        if isinstance(shape, Object):
            keys = [name for name in shape.required if not self.normalizer.admits(shape.names, name)]
            if keys or not all(self.is_productive(self.normalizer.value_node(shape, name)) for name in shape.required):
                return False
            open_ended = any(self.is_productive(node) for _, node in self.extra_nodes(shape))
            return open_ended or shape.fewest <= len(list(self.possible_keys(shape)))
        return True

    def named_keys(self, shape: Object) -> list[str]:
        """The keys that a shape speaks of by name, the required ones first; in the same order in every process."""
        names = shape.required.union(*([name for name, _ in rules.named] for rules in shape.maps))
        return sorted(names, key=lambda name: (name not in shape.required, name))

    def possible_keys(self, shape: Object) -> Iterable[str]:
        """The named keys that may occur."""
        for name in self.named_keys(shape):
            if self.is_productive(self.normalizer.value_node(shape, name)) and self.normalizer.admits(
                shape.names, name
            ):
                yield name

    def extra_nodes(self, shape: Object) -> Iterable[tuple[tuple[str, ...], Node]]:
        """What values other keys may have: for each set of patterns that may be found in a key together."""
        patterns = self._patterns(shape)
        if len(patterns) > _MOST_PATTERNS:
            raise CannotWrite(f"more than {_MOST_PATTERNS} patternProperties in one object")
        for which in product((False, True), repeat=len(patterns)):
            found = tuple(pattern for pattern, is_found in zip(patterns, which, strict=True) if is_found)
            node: Node = frozenset()
            for rules in shape.maps:
                parts = [value for pattern, value in rules.patterns if pattern in found]
                node = node.union(*parts) if parts else node | rules.extra
            yield found, node

    def cannot(self, reason: str) -> CannotWrite:
        """The error for a shape that has no grammar."""
        return CannotWrite(reason)

    def is_known(self, node: Node) -> bool:
        """Whether something satisfies a node that need not have been reached before."""
        if node != ANY and node not in self._productive:
            self._find_productive(node)
        return self.is_productive(node)

    def _found(self, patterns: Iterable[str], name: str) -> tuple[str, ...]:
        return tuple(pattern for pattern in patterns if self.normalizer.matches(pattern, name))

    @staticmethod
    def _patterns(shape: Object) -> list[str]:
        return sorted({pattern for rules in shape.maps for pattern, _ in rules.patterns})


def _separated(parts: Iterable[str]) -> Iterable[str]:
    for number, part in enumerate(parts):
        if number:
            yield '","'
        yield part


def _decimal(number: Fraction) -> int | float:
    if number.denominator == 1:
        return int(number)
    return float(Decimal(number.numerator) / Decimal(number.denominator))
