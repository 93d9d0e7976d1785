"""A schema's node written as an LLGuidance grammar: objects in any property order, each key once.

Structure and blanks are rules, strings and numbers terminals. What has no grammar is written wider, and noted.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

from constrained_k2.grammar.arrays import array_rule
from constrained_k2.grammar.cannot_write import CannotWrite
from constrained_k2.grammar.leaves import leaf_can_be, number_rule, string_expression, string_rule
from constrained_k2.grammar.objects import object_rule
from constrained_k2.grammar.plan import PlanWriter
from constrained_k2.grammar.reach import Reach
from constrained_k2.grammar.terminals import PREAMBLE, key, literal, one_of
from constrained_k2.schema.coverage import Status
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    Array,
    Boolean,
    KeyMap,
    Node,
    Null,
    Number,
    Object,
    Shape,
    String,
    Value,
    meet,
)

_MOST_PERMUTED = 4  # properties of one constant that may come in any order


class LarkWriter:
    """Writes the grammar of one schema.

    Args:
        normalizer: The schema's.
        has_match: Whether any text matches a terminal's expression: what tells contradictions among patterns, lengths
            and exclusions, which would lead a call nowhere.
    """

    def __init__(self, normalizer: Normalizer, has_match: Callable[[str], bool]) -> None:
        self.normalizer = normalizer
        self._has_match = has_match
        self.reach = Reach(
            normalizer,
            lambda shape: leaf_can_be(shape, has_match),
            lambda shape, found: bool(self._key_expression(shape, found)),
        )
        self.plans = PlanWriter()
        self._names: dict[Node, str] = {}
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        self._waiting: list[Node] = []
        self._node: Node = ANY  # the one that is being written

    def write(self, root: Node) -> str:
        """The grammar of a node's instances. Keywords that are not kept exactly are in the normalizer's notes.

        Raises:
            UnsupportedSchema: A subschema is not one, or nothing satisfies the schema.
            SchemaTooCostly: Over a budget.
        """
        if not self.reach.is_known(root):
            raise self.normalizer.document.unsupported("no value satisfies this schema", self.reach.empty_at(root))
        lines = [f"start: {self.rule(root)}"]
        while self._waiting:
            node = self._waiting.pop()
            bodies = [self._body(node, shape, number) for number, shape in enumerate(self._shapes(node))]
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

    def terminal(self, expression: str) -> str:
        """The name of a terminal."""
        return self._terminals.setdefault(expression, f"T{len(self._terminals)}")

    def add_rule(self, line: str) -> None:
        """Add a rule of a shape's own."""
        self._rules.append(line)

    def extra_key(self, shape: Object, found: tuple[str, ...]) -> str:
        """A terminal of the keys that a shape does not name and in which exactly the ``found`` patterns are.

        Raises:
            CannotWrite: A pattern has no counterpart on JSON's spelling.
        """
        try:
            expression = self._spelled_keys(shape, found)
        except CannotWrite as error:
            named = tuple((name, self.normalizer.value_node(shape, name)) for name in self.reach.named_keys(shape))
            anything = replace(shape, maps=frozenset({KeyMap(named)}), names=ANY)
            raise CannotWrite(
                str(error), ("patternProperties", "additionalProperties", "propertyNames"), anything
            ) from error
        return self.terminal(expression) if expression else ""

    def _key_expression(self, shape: Object, found: tuple[str, ...]) -> str:
        """The same for looking ahead: what cannot be told is taken to be there."""
        try:
            return self._spelled_keys(shape, found)
        except CannotWrite:
            return "any"

    def _spelled_keys(self, shape: Object, found: tuple[str, ...]) -> str:
        """An expression of those keys; empty if there are none."""
        patterns = self.reach.patterns(shape)
        names = self.reach.named_keys(shape)
        keys = String(
            patterns=frozenset(found), absent=frozenset(patterns).difference(found), excluded=frozenset(names)
        )
        allowed = EVERYTHING if shape.names == ANY else self.normalizer.shapes(shape.names)
        met = (meet(keys, allowed_name) for allowed_name in allowed if isinstance(allowed_name, String))
        ways = [string_expression(way) for way in met if isinstance(way, String)]
        listed = [way.value for way in allowed if isinstance(way, Value) and isinstance(way.value, str)]
        matches = self.normalizer.matches
        listed = [
            name
            for name in listed
            if name not in names and tuple(pattern for pattern in patterns if matches(pattern, name)) == found
        ]
        if listed:
            ways.append(one_of(sorted(listed)))
        expression = " | ".join(ways)
        return expression if ways and self._has_match(expression) else ""

    def _shapes(self, node: Node) -> list[Shape]:
        return [shape for shape in self.normalizer.shapes(node) if self.reach.can_be(shape)]

    def _body(self, node: Node, shape: Shape, number: int) -> str:
        """The body of a rule for one shape; where it has none, that of a wider shape, which is noted."""
        self._node = node
        while True:
            written = len(self._rules)
            try:
                body = self._shape(shape, self._names[node], number)
            except CannotWrite as error:
                del self._rules[written:]
                shape = error.wider
                self.note(error.keywords, "relaxed", str(error))
            else:
                self.plans.add(node, shape)
                return body

    def note_members(self, values: Mapping[str, Node], extra: Iterable[Node], *, counts_extra: bool) -> None:
        """Note what members an object of the node that is being written has: see :class:`PlanWriter`."""
        self.plans.add_members(self._node, values, extra, counts_extra=counts_extra)

    def note(self, keywords: tuple[str, ...], status: Status, reason: str) -> None:
        """Note that these keywords are not kept exactly in the node that is being written."""
        for pointer in self.normalizer.occurrences(self._node, keywords):
            self.normalizer.note(pointer, status, reason)

    def _shape(self, shape: Shape, name: str, number: int) -> str:
        """The body of a rule for one shape."""
        if isinstance(shape, Null):
            return '"null"'
        if isinstance(shape, Boolean):
            return " | ".join(f'"{str(value).lower()}"' for value in sorted(shape.values))
        if isinstance(shape, Number):
            return number_rule(self, shape)
        if isinstance(shape, String):
            return string_rule(self, shape)
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


def _separated(parts: Iterable[str]) -> Iterable[str]:
    for number, part in enumerate(parts):
        if number:
            yield '","'
        yield part
