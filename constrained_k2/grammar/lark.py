"""A schema's node written as an LLGuidance grammar: objects in any property order, each key once.

Leaves (strings and numbers) are LLGuidance's own ``%json``, which is strong there, with blanks switched off so that
all lexemes stay in one class; structure and blanks are rules of ours.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import permutations, product
from typing import Any

from constrained_k2.grammar.arrays import array_rule, finite_values
from constrained_k2.grammar.cannot_write import CannotWrite
from constrained_k2.grammar.digits import number_range
from constrained_k2.grammar.objects import object_rule
from constrained_k2.grammar.patterns import Untranslatable, found_anywhere
from constrained_k2.grammar.terminals import CHARACTER, PREAMBLE, key, literal, one_of
from constrained_k2.schema.coverage import Status
from constrained_k2.schema.formats import patterns_of
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.own_compilers import LARGEST_EXACT, LARGEST_MULTIPLE
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

_MOST_PATTERNS = 4
_MOST_PERMUTED = 4  # properties of one constant that may come in any order
_LEAF = {"x-guidance": {"whitespace_flexible": False}}


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
        self._productive: set[Node] = set()
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
        self._find_productive(root)
        if root not in self._productive:
            raise self.normalizer.document.unsupported("no value satisfies this schema", self._empty_at(root))
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
        parts = [rf'/"{CHARACTER}{{{shape.shortest},{longest}}}"/'] if shape.shortest or longest else []
        wanted = (*sorted(shape.patterns), *patterns_of(shape.formats))
        parts += (self._found_anywhere(shape, pattern) for pattern in wanted)
        parts += (f"~{self._found_anywhere(shape, pattern)}" for pattern in sorted(shape.absent))
        if shape.excluded:
            parts.append(f"~{one_of(sorted(shape.excluded))}")
        if not (parts and shape.shortest + bool(longest) + len(shape.patterns) + len(shape.formats)):
            parts.insert(0, "PLAIN")  # what is only excluded leaves all others
        return " & ".join(parts)

    @staticmethod
    def _found_anywhere(shape: String, pattern: str) -> str:
        try:
            return found_anywhere(pattern)
        except Untranslatable as error:
            without = replace(shape, patterns=shape.patterns - {pattern}, absent=shape.absent - {pattern})
            reason = f"the pattern {pattern[:60]!r} beside others, exclusions or a negation: {error}"
            raise CannotWrite(reason, ("pattern",), without) from error

    def extra_key(self, shape: Object, found: tuple[str, ...]) -> str:
        """A terminal of the keys that a shape does not name and in which exactly the ``found`` patterns are.

        Raises:
            CannotWrite: A pattern has no counterpart on JSON's spelling.
        """
        try:
            return self._extra_key(shape, found)
        except CannotWrite as error:
            named = tuple((name, self.normalizer.value_node(shape, name)) for name in self.named_keys(shape))
            anything = replace(shape, maps=frozenset({KeyMap(named)}), names=ANY)
            raise CannotWrite(
                str(error), ("patternProperties", "additionalProperties", "propertyNames"), anything
            ) from error

    def _extra_key(self, shape: Object, found: tuple[str, ...]) -> str:
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
        expression = " | ".join(ways)
        return self.terminal(expression) if ways and self._has_match(expression) else ""

    def _shapes(self, node: Node) -> list[Shape]:
        return [shape for shape in self.normalizer.shapes(node) if self.can_be(shape)]

    def _body(self, node: Node, shape: Shape, number: int) -> str:
        """The body of a rule for one shape; where it has none, that of a wider shape, which is noted."""
        self._node = node
        while True:
            written = len(self._rules)
            try:
                return self._shape(shape, self._names[node], number)
            except CannotWrite as error:
                del self._rules[written:]
                shape = error.wider
                self.note(error.keywords, "relaxed", str(error))

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
        if shape.integer:
            self.note(("type", "multipleOf"), "narrowed", "1.0, an integer to JSON Schema, is never written")
        if not shape.multiple:
            expression = number_range(shape)
            return self.terminal(expression) if expression else "NUMBER"
        if shape.fraction:
            reason = "fractions cannot be told from integers among multiples"
            raise CannotWrite(reason, ("not", "type", "oneOf", "multipleOf"), replace(shape, fraction=False))
        # LLGuidance (1.7.6) writes no negative multiples: they are written as a sign and the multiple.
        ways = []
        if shape.high is None or shape.high >= 0:
            ways.append(self._multiples(shape, shape.low, shape.high))
        if shape.low is None or shape.low < 0:
            ways.append(f'"-" {self._multiples(shape, _negated(shape.high), _negated(shape.low))}')
        return " | ".join(ways)

    def _multiples(self, shape: Number, low: Fraction | None, high: Fraction | None) -> str:
        """The non-negative multiples in a range, whose bounds are multiples themselves."""
        if _coefficient(shape.multiple) > LARGEST_MULTIPLE:
            reason = f"a multiple of more than {LARGEST_MULTIPLE} (its decimals counted) costs too much to keep"
            raise CannotWrite(reason, ("multipleOf",), replace(shape, multiple=Fraction(0)))
        schema: dict[str, Any] = {"type": "integer" if shape.integer else "number", "minimum": 0}
        schema["multipleOf"] = _decimal(shape.multiple)
        for name, bound in (("minimum", low), ("maximum", high)):
            if bound is not None and (bound > 0 or name == "maximum"):
                if bound > LARGEST_EXACT and name == "minimum":
                    without = replace(shape, low=None, high=None)
                    raise CannotWrite("multiples beyond 2^53 are not told apart", (name, "maximum"), without)
                schema[name] = _decimal(min(bound, Fraction(LARGEST_EXACT)))
                if bound > LARGEST_EXACT:
                    self.note(("minimum", "maximum"), "narrowed", "multiples beyond 2^53 are not written")
        return self._leaf(schema)

    def _string(self, shape: String) -> str:
        """A string: in any spelling where only its length matters, else in the one spelling that patterns know."""
        if shape == String():
            return "STRING"
        if not (shape.excluded or shape.absent or shape.patterns or shape.formats):
            return self._leaf({"type": "string"} | _sizes(shape))
        try:
            return self.terminal(self.string_expression(shape))
        except CannotWrite as error:
            if shape.excluded or shape.absent:
                raise
            reason = f"{error}; the engine's own reading may let a quote or backslash through that a class excludes"
            self.note(error.keywords, "relaxed", reason)
        # A class without the quote or the backslash lets them through (LLGuidance 1.7.6): hence not the first choice.
        patterns = [{"pattern": pattern} for pattern in sorted({*shape.patterns, *patterns_of(shape.formats)})]
        return self._leaf({"type": "string", "allOf": patterns} | _sizes(shape))

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

    def _empty_at(self, node: Node) -> str:
        """Where an unproductive node's schema stands: the innermost one that is required and has no value itself."""
        seen: set[Node] = set()
        while node not in seen:
            seen.add(node)
            for shape in self.normalizer.shapes(node):
                inner = (
                    [self.normalizer.value_node(shape, name) for name in shape.required]
                    if isinstance(shape, Object)
                    else []
                )
                empty = sorted(filter(None, (part for part in inner if not self.is_productive(part))), key=sorted)
                if empty:
                    node = empty[0]
                    break
        places = [pointer for pointer, _ in sorted(node) if pointer.startswith("#")]
        return places[0] if places else "#"

    def _children(self, shape: Shape) -> Iterable[Node]:
        if isinstance(shape, Array):
            yield from shape.prefix
            yield shape.rest
            yield from (wish | node for wish, _, _ in shape.contains for node in (*shape.prefix, shape.rest))
        elif isinstance(shape, Object):
            for name in self.named_keys(shape):
                yield self.normalizer.value_node(shape, name)
            yield from (node for _, node in self.extra_nodes(shape))

    def can_be(self, shape: Shape) -> bool:
        """Whether a shape has a value, as far as is known by now."""
        if isinstance(shape, Array):
            needed = [*shape.prefix[: shape.shortest], *([shape.rest] if shape.shortest > len(shape.prefix) else [])]
            if not all(self._has_room(shape, wish, fewest) for wish, fewest, _ in shape.contains):
                return False
            if shape.unique and shape.shortest > 1 and (values := finite_values(self, shape.rest)) is not None:
                return len(values) >= shape.shortest and all(map(self.is_productive, needed))
            return all(map(self.is_productive, needed))
        if isinstance(shape, Object):
            keys = [name for name in shape.required if not self.normalizer.admits(shape.names, name)]
            if keys or not all(self.is_productive(self.normalizer.value_node(shape, name)) for name in shape.required):
                return False
            open_ended = any(self.is_productive(node) for _, node in self.extra_nodes(shape))
            return open_ended or shape.fewest <= len(list(self.possible_keys(shape)))
        try:
            if isinstance(shape, String) and _is_intersection(shape):
                return self._has_match(self.string_expression(shape))
            if isinstance(shape, Number) and shape.fraction:
                return bool(shape.multiple) or self._has_match(number_range(shape))
        except CannotWrite:
            return True  # something wider is written, if at all
        return True

    def _has_room(self, shape: Array, wish: Node, fewest: int) -> bool:
        """Whether that many items can satisfy a ``contains``."""
        places = 0
        for node in shape.prefix[: shape.longest]:
            if not self.is_productive(node):
                return places >= fewest
            places += self.is_productive(node | wish)
        if self.is_productive(shape.rest | wish):
            places += fewest if shape.longest is None else max(shape.longest - len(shape.prefix), 0)
        return places >= fewest

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
            self.note(
                ("patternProperties",), "narrowed", "of so many patterns a key is written that matches one at most"
            )
        for found in _combinations(patterns):
            node: Node = frozenset()
            for rules in shape.maps:
                parts = [value for pattern, value in rules.patterns if pattern in found]
                node = node.union(*parts) if parts else node | rules.extra
            yield found, node

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


def _combinations(patterns: list[str]) -> Iterable[tuple[str, ...]]:
    """The sets of patterns that may be found in one key; of many patterns, one at a time."""
    if len(patterns) > _MOST_PATTERNS:
        return [(), *((pattern,) for pattern in patterns)]
    ways = product((False, True), repeat=len(patterns))
    return [tuple(pattern for pattern, is_found in zip(patterns, way, strict=True) if is_found) for way in ways]


def _separated(parts: Iterable[str]) -> Iterable[str]:
    for number, part in enumerate(parts):
        if number:
            yield '","'
        yield part


def _is_intersection(shape: String) -> bool:
    """Whether a string must be several things at once, so that none may be all of them."""
    demands = len(shape.patterns) + len(shape.formats) + len(shape.absent) + bool(shape.excluded)
    return demands + bool(shape.shortest) + (shape.longest is not None) > 1 and demands > 0


def _sizes(shape: String) -> dict[str, int]:
    shortest = {"minLength": shape.shortest} if shape.shortest else {}
    return shortest if shape.longest is None else shortest | {"maxLength": shape.longest}


def _coefficient(number: Fraction) -> int:
    """A decimal number without its point."""
    while number.denominator != 1:
        number *= 10
    return number.numerator


def _negated(number: Fraction | None) -> Fraction | None:
    return None if number is None else -number


def _decimal(number: Fraction) -> int | float:
    if number.denominator == 1:
        return int(number)
    return float(Decimal(number.numerator) / Decimal(number.denominator))
