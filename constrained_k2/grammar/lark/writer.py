"""Writes a schema as an LLGuidance grammar: objects in any property order, each key once.

Structure and whitespace are rules, strings and numbers are terminals. A shape without an exact grammar is written
wider, and the keywords that this relaxes are noted.

{"type": "array", "items": {"type": "boolean"}}     n0: "[" ws (n1 ws ("," ws n1 ws)*)? "]"     n1: "true" | "false"
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import proxy

from constrained_k2.errors import SchemaTooCostly
from constrained_k2.grammar.lark.arguments import ANY_RULES, XTML_PREAMBLE, arguments_rule
from constrained_k2.grammar.lark.arrays import array_rule
from constrained_k2.grammar.lark.leaves import joined_strings, listed_strings, number_body, string_body
from constrained_k2.grammar.lark.model import GrammarModel
from constrained_k2.grammar.lark.objects import object_rule
from constrained_k2.grammar.lark.small import is_usual
from constrained_k2.grammar.lark.terminals import (
    NO_FORCING,
    NUMBER,
    SIGN_APART,
    NoExactGrammar,
    literal,
    one_of,
    preamble,
)
from constrained_k2.grammar.lark.values import LISTING, has_integer, value_text
from constrained_k2.grammar.plan.leaves import (
    INTEGER,
    INTEGERS,
    CanBegin,
    Effort,
    NumbersSoFar,
    is_endless,
    is_long,
    is_text,
    leaf_has_value,
    plan_number,
    plan_string,
    string_expression,
)
from constrained_k2.grammar.plan.nodes import NumberPlan, StringPlan, Wider
from constrained_k2.grammar.productivity import Productivity, constants
from constrained_k2.grammar.spelling import JSON, RAW, Spelling
from constrained_k2.schema.budget import objects_in
from constrained_k2.schema.no_instances import NoInstancesError
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.notes import NoteStatus
from constrained_k2.schema.shapes import (
    ANY,
    EVERYTHING,
    NEVER,
    Array,
    KeyMap,
    Kind,
    Node,
    Number,
    Object,
    Shape,
    String,
    Value,
    meet,
)
from constrained_k2.schema.undeclared_keys import REASON, UndeclaredKeys

_CONTAINERS = (Array, Object)
_ANY_STRING = (String(),)
_ANY_SHAPES = frozenset(EVERYTHING)
_MAX_ALTERNATIVES = 50_000  # of all arguments' values; engines refuse more, but only after they have read them


class LarkWriter:
    """Writes the grammar of one schema.

    ``has_match`` tells whether any text matches a terminal's expression. It finds contradictions among patterns,
    lengths and exclusions, which would be dead ends for a call. ``can_begin`` tells whether the engine can write such
    a text, behind an opening: some patterns fail with the first mask.
    """

    def __init__(
        self, normalizer: Normalizer, has_match: Callable[[str], bool], undeclared_keys: UndeclaredKeys = "allow"
    ) -> None:
        self.normalizer = normalizer
        self.has_match = has_match
        writer = proxy(self)  # a cycle would keep the schema with all its shapes until the next garbage collection
        self.productivity = Productivity(
            normalizer,
            lambda shape: leaf_has_value(shape, has_match),
            lambda shape, found: writer.has_extra_key(shape, found),  # noqa: PLW0108 - a method refers to the writer
            undeclared_keys,
        )
        self.model = GrammarModel()
        # LLGuidance (1.7.6) has no negative multiples: their sign is a terminal of its own. Its lexer goes on with the
        # longer of two terminals and never returns, so all numbers of the grammar are written so.
        self.signs_apart = any("multipleOf" in part for _, part in objects_in(normalizer.document.root))
        self.any_number = SIGN_APART if self.signs_apart else NUMBER
        self.strings: dict[str, None] = {}  # those of the node that is being written, which become one terminal
        self._numbers = NumbersSoFar()  # counts of the node that is being written
        self._names: dict[Node, str] = {}
        self.rules: list[str] = []  # helper rules of objects and arrays
        self._terminals: dict[str, str] = {}
        self._simple = {INTEGER}  # expressions of terminals that no engine finds hard
        self._choices: dict[str, str] = {}
        self._alternatives = 0  # of the arguments' values
        self.member_count = 0  # alternatives of the rules of members, in all objects
        self.effort: Effort = "exact"
        self.can_begin: CanBegin = lambda expression, opening, *, is_long: True  # noqa: ARG005
        self.has_long_texts = False  # True if a string may force a long text
        self._waiting: list[Node] = []
        self.node: Node = ANY  # the node being written
        self._notes: list[tuple[str, NoteStatus, str]] | None = None  # on the shape being written, if one is
        self._raw: set[Node] = set()  # nodes whose strings are written without quotes and escapes

    def write(self, root: Node) -> str:
        """Return the grammar of a node's instances. Keywords not enforced exactly are in the normalizer's notes."""
        body = "\n".join(self._lines(root))
        return f"{body}\n{preamble(body, self.any_number)}"

    def write_arguments(self, root: Node) -> str:
        """Return the grammar of a node's objects as XTML arguments, as :meth:`write` does."""
        arguments, _ = self.normalizer.by_kind(root).get("object", (NEVER, ()))
        self.model.arguments = arguments
        body = "\n".join([NO_FORCING, *self._lines(arguments)])
        return f"{body}\n{preamble(body, self.any_number)}{XTML_PREAMBLE}"

    def _lines(self, root: Node) -> list[str]:
        if not self.productivity.analyze(root):
            location = self.productivity.empty_location(root)
            raise NoInstancesError("no value satisfies this schema", location, "Rewrite it, or leave the tool out")
        self.model.root = root
        lines = [f"start: {self.rule(root)}"]
        while self._waiting:
            node = self._waiting.pop()
            lines.append(f"{self._names[node]}: {self._alternatives_of(node, self._names[node])}")
            if self.productivity.is_narrowed(node):
                self.note(("properties",), "narrowed", REASON)
        named = [f"{name}: {text}" for known in (self._choices, self._terminals) for text, name in known.items()]
        return [*lines, *self.rules, *named]

    @property
    def hard_terminals(self) -> set[str]:
        """The expressions of terminals that may take an engine to a limit: all but keys and numbers of usual size."""
        easy = (text for shape, text in self.model.terminals.items() if isinstance(shape, Number) and is_usual(shape))
        return self._terminals.keys() - self._simple - set(easy)

    def rule(self, node: Node) -> str:
        """Return the name of a productive node's rule."""
        if node == ANY:
            self.model.has_open_keys = True
            return "any"
        if node not in self._names:
            self._names[node] = self._leaf(node) or f"n{len(self._names)}"
        return self._names[node]

    def _leaf(self, node: Node) -> str:
        """Return the name of a rule or terminal that all nodes of the same strings, numbers and constants share.

        A node that has objects or arrays waits to be written, and the name is empty.
        """
        shapes = self.productivity.shapes(node)
        if shapes == _ANY_STRING and node not in self._raw:  # the most frequent
            self.model.nodes[node].shapes.extend(shapes)
            return "STRING"
        if node == self.model.arguments or any(isinstance(shape, _CONTAINERS) for shape in shapes):
            self._waiting.append(node)
            return ""
        outer = self.node
        body = self._alternatives_of(node, "")
        self.node = outer
        return body if body.isidentifier() else self.choice([body])

    def _alternatives_of(self, node: Node, name: str) -> str:
        shapes = list(filter(self.productivity.has_value, self.productivity.shapes(node)))
        listed = listed_strings(shapes, RAW if node in self._raw else JSON)
        self._simple.update(listed)
        around, self.strings, self._numbers = (self.strings, self._numbers), dict.fromkeys(listed), NumbersSoFar()
        ways = []
        for number, shape in enumerate(shapes):
            if listed and is_text(shape):
                self.model.nodes[node].shapes.append(shape)
            else:
                ways.append(self._body(node, shape, f"{name}_{number}"))
        strings, (self.strings, self._numbers) = self.strings, around
        return " | ".join([*dict.fromkeys(filter(None, ways)), *joined_strings(self, node, strings)])

    def argument_rules(self, node: Node) -> list[tuple[Kind, str]]:
        """Return the types of the values of an argument, each with the name of a rule of its values."""
        parts = self.model.parts.get(node)
        if parts is None:
            parts = self.model.parts[node] = self._argument_parts(node)
            self.model.has_open_keys |= ANY in (parts.get("object"), parts.get("array"))
        rules = {**ANY_RULES, "number": self.any_number}
        return [(kind, rules[kind] if part == ANY else self.rule(part)) for kind, part in parts.items()]

    def _argument_parts(self, node: Node) -> dict[Kind, Node]:
        parts: dict[Kind, Node] = {}
        found = self.normalizer.by_kind(node)
        for kind, (part, shapes) in found.items():
            if not _ANY_SHAPES.isdisjoint(shapes):  # all values of the type
                parts[kind] = ANY
                continue
            self._alternatives += len(shapes)
            if kind == "string":
                self._raw.add(part)
            parts[kind] = node if len(found) == 1 and kind != "string" else part
        if self._alternatives > _MAX_ALTERNATIVES:
            problem = f"the values of arguments have more than {_MAX_ALTERNATIVES} alternatives"
            error = (problem, self.normalizer.document.location, "Shorten its enums, or declare fewer properties")
            raise SchemaTooCostly(*error, "alternatives", _MAX_ALTERNATIVES, self._alternatives)
        return {kind: part for kind, part in parts.items() if part == ANY or self.productivity.analyze(part)}

    def choice(self, ways: list[str]) -> str:
        """Return the name of a rule that has these alternatives."""
        return self._choices.setdefault(" | ".join(ways), f"a{len(self._choices)}")

    def value_text(self, value: Any) -> str:
        """Return the grammar of one value."""
        is_listed = has_integer(value) and "#" not in self.normalizer.occurrences(self.node, LISTING)
        if is_listed:  # itself, not as part of a listed object or array
            self.note(*INTEGERS._replace(keywords=LISTING))
        return value_text(value, self.choice, signs_apart=self.signs_apart)

    def terminal(self, expression: str) -> str:
        """Return the name of a terminal."""
        return self._terminals.setdefault(expression, f"T{len(self._terminals)}")

    def extra_key(self, shape: Object, found: tuple[str, ...], form: Spelling = JSON) -> str:
        """Return the terminal of the keys that a shape does not name and that match exactly these patterns."""
        try:
            if self.effort == "relaxed" and self.productivity.patterns(shape):
                raise NoExactGrammar("the patterns cost the engine too much", (), shape)  # noqa: TRY301
            expression = self._spelled_keys(shape, found, form)
            if isinstance(expression, Wider):
                raise NoExactGrammar(expression.reason, (), shape)  # noqa: TRY301
        except NoExactGrammar as error:
            names = self.productivity.named_keys(shape)
            named = tuple((name, self.normalizer.value_node(shape, name)) for name in names)
            wider = replace(shape, maps=frozenset({KeyMap(named)}), names=ANY, wanted=frozenset())
            keywords = ("patternProperties", "additionalProperties", "propertyNames")
            raise NoExactGrammar(str(error), keywords, wider) from error
        if shape.names == ANY and not self.productivity.patterns(shape):
            self._simple.add(expression)
        return self.terminal(expression) if expression else ""

    def has_extra_key(self, shape: Object, found: tuple[str, ...]) -> bool:
        """Return True if a shape allows keys that it does not name and that match exactly these patterns."""
        return bool(self._spelled_keys(shape, found))

    def _spelled_keys(self, shape: Object, found: tuple[str, ...], form: Spelling = JSON) -> str | Wider:
        """Return an expression of those keys; empty if there are none."""
        patterns, names = self.productivity.patterns(shape), self.productivity.named_keys(shape)
        absent = frozenset(patterns).difference(found)
        keys = String(patterns=frozenset(found), absent=absent, excluded=frozenset(names))
        allowed = EVERYTHING if shape.names == ANY else self.normalizer.shapes(shape.names)
        met = [meet(keys, name) for name in allowed if isinstance(name, String)]
        strings = [way for way in met if isinstance(way, String)]
        self.has_long_texts |= any(map(is_long, strings))
        ways, matches = list[str](), self.normalizer.matches
        for way in strings:
            expression = string_expression(way, form)
            if isinstance(expression, Wider):
                return expression
            ways.append(expression)
        values = [way.value for way in allowed if isinstance(way, Value)]
        texts = [value for value in values if isinstance(value, str) and value not in names]
        listed = [text for text in texts if tuple(pattern for pattern in patterns if matches(pattern, text)) == found]
        ways += [one_of(sorted(listed), form)] if listed else []
        expression = " | ".join(ways)
        return expression if any(map(is_endless, strings)) or (ways and self.has_match(expression)) else ""

    def _body(self, node: Node, shape: Shape, name: str) -> str:
        """Return the body of a shape's rule; if it cannot be exact, note that and return a wider shape's."""
        self.node = node
        written, outer = len(self.rules), self._notes
        wider: Shape | None = None
        notes = self._notes = []
        try:
            body = self._shape(shape, name)
        except NoExactGrammar as error:
            del self.rules[written:]
            notes.clear()
            wider = error.wider
            self.note(error.keywords, "relaxed", str(error))
        for note in notes:
            self.normalizer.notes.add(*note)
        self._notes = outer
        if wider is not None:
            return self._body(node, wider, name)
        self.model.nodes[node].shapes.append(shape)
        return body

    def note(self, keywords: tuple[str, ...], status: NoteStatus, reason: str) -> None:
        """Note that these keywords are not enforced exactly in the node being written, if its shape is written so."""
        for pointer in self.normalizer.occurrences(self.node, keywords):
            if self._notes is None:
                self.normalizer.notes.add(pointer, status, reason)
            else:
                self._notes.append((pointer, status, reason))

    def _shape(self, shape: Shape, name: str) -> str:
        if self.node == self.model.arguments:
            return arguments_rule(self, shape, name)
        form = RAW if self.node in self._raw else JSON
        if isinstance(shape, String | Number):
            return self._leaf_body(shape, form)
        if form is RAW and isinstance(shape, Value):
            return literal(shape.value)
        if isinstance(shape, Array):
            return array_rule(self, shape, name)
        if isinstance(shape, Object):
            return object_rule(self, shape, name)
        return " | ".join(map(self.value_text, constants(shape)))

    def _leaf_body(self, shape: String | Number, form: Spelling) -> str:
        if isinstance(shape, String):
            plan: StringPlan | NumberPlan | Wider = plan_string(shape, form, self.effort, self.can_begin)
        else:
            plan = plan_number(shape, self._numbers)
        if isinstance(plan, Wider):
            raise NoExactGrammar(plan.reason, plan.keywords, plan.shape)
        for note in plan.notes:
            self.note(*note)
        return number_body(self, plan) if isinstance(plan, NumberPlan) else string_body(self, plan, form)
