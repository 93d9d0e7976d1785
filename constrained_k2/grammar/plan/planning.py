"""The state of planning one schema's grammar: nodes so far, and keywords not enforced exactly."""

from collections.abc import Callable
from functools import partial
from typing import Any

from constrained_k2.errors import SchemaTooCostly
from constrained_k2.grammar.plan.keys import has_keys
from constrained_k2.grammar.plan.leaves import INTEGERS, CanBegin, Effort, leaf_has_value
from constrained_k2.grammar.plan.nodes import ANY_VALUE, LISTING, PlanNode
from constrained_k2.grammar.productivity import Productivity
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.notes import NoteStatus
from constrained_k2.schema.shapes import ANY, EVERYTHING, Kind, Node
from constrained_k2.schema.undeclared_keys import UndeclaredKeys

_ANY_SHAPES = frozenset(EVERYTHING)
_MAX_ALTERNATIVES = 50_000  # max alternatives of all arguments' values; engines refuse more, but only after reading


class Planning:
    """The nodes of a plan by number, and notes on keywords that are not enforced exactly.

    Args:
        normalizer: Expands the schema's nodes, and collects the notes.
        has_match: Returns True if any text matches a terminal's body. It finds contradictions among patterns,
            lengths and exclusions, which would be dead ends for a call.
        can_begin: Returns True if the engine can begin such a text: some patterns fail at the first mask.
        undeclared_keys: The setting of this name.
        effort: The precision of the grammar, which decides its cost for the engine.
    """

    def __init__(
        self,
        normalizer: Normalizer,
        has_match: Callable[[str], bool],
        can_begin: CanBegin,
        undeclared_keys: UndeclaredKeys,
        effort: Effort,
    ) -> None:
        self.normalizer = normalizer
        self.has_match = has_match
        self.can_begin = can_begin
        self.effort = effort
        leaf, keys = partial(leaf_has_value, has_match=has_match), partial(has_keys, normalizer, has_match)
        self.productivity = Productivity(normalizer, leaf, keys, undeclared_keys)
        self.nodes: list[PlanNode] = [PlanNode()]  # by number; a node that waits to be planned is empty
        self.sources: list[Node] = [ANY]  # by number; for an XTML argument, the node of its values
        self.waiting: list[int] = []
        self.has_open_keys = self.has_long_texts = self.has_multiples = False
        self.member_count = 0
        self.raw: set[Node] = set()  # nodes whose strings are written without quotes and escapes
        self.node: Node = ANY  # the node that is being planned
        self._numbers = {ANY: ANY_VALUE}
        self._arguments: dict[Node, int] = {}
        self._alternatives = 0  # number of alternatives of the arguments' values so far
        self._noted: list[tuple[str, NoteStatus, str]] = []  # notes on the shape that is being planned

    def number(self, node: Node) -> int:
        """Return the number of a productive node, which is planned now or later."""
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = self._next(node, PlanNode())
            self.waiting.append(found)
        self.has_open_keys |= found == ANY_VALUE
        return found

    def argument(self, node: Node) -> int:
        """Return the number of an XTML argument, which has a node for each JSON type of its values."""
        found = self._arguments.get(node)
        if found is None:
            parts = tuple((kind, self._part(kind, part)) for kind, part in self._parts(node).items())
            found = self._arguments[node] = self._next(node, PlanNode(parts=parts))
        return found

    def note(self, keywords: tuple[str, ...], status: NoteStatus, reason: str, node: Node | None = None) -> None:
        """Note that keywords of a node are not enforced exactly; the note is dropped if a wider shape is planned."""
        for pointer in self.normalizer.occurrences(self.node if node is None else node, keywords):
            self._noted.append((pointer, status, reason))

    def note_listed(self, value: Any, node: Node | None = None) -> None:
        """Note that integers in a listed value have one spelling, unless a listed object or array contains it."""
        if has_integer(value) and "#" not in self.normalizer.occurrences(self.node if node is None else node, LISTING):
            self.note(*INTEGERS._replace(keywords=LISTING), node=node)

    def settle_notes(self, *, is_planned: bool) -> None:
        """Keep the notes on the current shape if it is planned; else drop them, because a wider shape is planned."""
        if is_planned:
            for note in self._noted:
                self.normalizer.notes.add(*note)
        self._noted.clear()

    def _next(self, node: Node, planned: PlanNode) -> int:
        self.nodes.append(planned)
        self.sources.append(node)
        return len(self.nodes) - 1

    def _part(self, kind: Kind, part: Node) -> int:
        if part != ANY:
            return self.number(part)
        self.has_open_keys |= kind in {"object", "array"}
        return ANY_VALUE

    def _parts(self, node: Node) -> dict[Kind, Node]:
        """Return a node for each JSON type of a node's values; :data:`ANY` if all values of the type are allowed."""
        parts: dict[Kind, Node] = {}
        found = self.normalizer.by_kind(node)
        for kind, (part, shapes) in found.items():
            if not _ANY_SHAPES.isdisjoint(shapes):
                parts[kind] = ANY
                continue
            self._alternatives += len(shapes)
            if kind == "string":
                self.raw.add(part)
            parts[kind] = node if len(found) == 1 and kind != "string" else part
        if self._alternatives > _MAX_ALTERNATIVES:
            problem = f"the values of arguments have more than {_MAX_ALTERNATIVES} alternatives"
            error = (problem, self.normalizer.document.location, "Shorten its enums, or declare fewer properties")
            raise SchemaTooCostly(*error, "alternatives", _MAX_ALTERNATIVES, self._alternatives)
        return {kind: part for kind, part in parts.items() if part == ANY or self.productivity.analyze(part)}


def has_integer(value: Any) -> bool:
    """True if a value is an integer, or contains one."""
    if isinstance(value, list | dict):
        return any(map(has_integer, value.values() if isinstance(value, dict) else value))
    return type(value) is int
