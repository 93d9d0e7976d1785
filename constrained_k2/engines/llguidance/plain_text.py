"""Plain schemas: their models are made without a grammar's text, which is written when something first needs it."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from constrained_k2.engines.llguidance.grammar_text import GrammarText, Patterns, Refused, our_text
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.grammar.lark.direct_model import DirectModel
from constrained_k2.grammar.lark.plain_models import LeafModel, Leaves, is_surely_small, plain_models
from constrained_k2.grammar.lark.plain_nodes import LeafKey, NotPlainError, PlainNodes
from constrained_k2.grammar.lark.plain_walk import plain_nodes
from constrained_k2.grammar.lark.small import groups_in
from constrained_k2.grammar.lark.state_model import StateModel
from constrained_k2.grammar.lark.writer import Effort
from constrained_k2.schema.undeclared_keys import UndeclaredKeys

_MAX_LEAVES = 1024
_MAX_FRESH = 8  # leaves of one schema that are compiled by themselves: each takes as long as a small schema


@dataclass(slots=True, eq=False)
class PlainText:
    """A grammar for LLGuidance as :class:`GrammarText`, of a plain schema. Thread-safe.

    Attributes:
        key: Equal for schemas whose grammars have one meaning.
        size: About the number of characters of the text.
        write: Writes the text.
    """

    key: Hashable
    size: int
    model: StateModel
    direct: DirectModel
    has_open_keys: bool
    write: Callable[[], GrammarText]
    allows_any_split: bool = False
    effort: Effort = "exact"
    places: None = None
    is_simple: bool = True
    _written: GrammarText | None = None
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def written(self) -> GrammarText:
        """Return the grammar with its text.

        Raises:
            ConstrainedK2Error: It cannot be written.
        """
        with self._writing:
            if self._written is None:
                self._written = self.write()
        return self._written


def plain_text(
    document: Any,
    undeclared_keys: UndeclaredKeys,
    leaves: "PlainLeaves",
    write: Callable[[], GrammarText],
    *,
    known_only: bool = False,
) -> PlainText | None:
    """Return the grammar of a decoded schema; None if it is not plain, or its grammar may not be simple.

    Args:
        document: The schema.
        undeclared_keys: As :meth:`LLGuidanceEngine.compile` takes it.
        leaves: The models of leaves.
        write: Writes the grammar of this schema.
        known_only: Return None also if one of its leaves has not been compiled before.
    """
    try:
        nodes = plain_nodes(document, undeclared_keys)
    except NotPlainError:
        return None
    found = leaves.of(nodes, known_only=known_only)
    if found is None or not is_surely_small(nodes, found):
        return None
    models = plain_models(nodes, found)
    key, size = (nodes.root, nodes.nodes), nodes.size // 2  # at most, and half of it is usual
    return PlainText(key, size, models.model, models.direct, models.has_open_keys, write)


class PlainLeaves:
    """The models of strings and numbers with bounds, patterns or formats: tools have the same ones again and again."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._known: dict[LeafKey, LeafModel | None] = {}  # None for leaves whose grammars are not simple

    def of(self, nodes: PlainNodes, *, known_only: bool) -> Leaves | None:
        """Return the models of all leaves of a schema; None if one has none, or too many were not compiled before.

        With ``known_only``, none is compiled.
        """
        keys = dict.fromkeys(node.leaf for node in nodes.nodes if node.leaf)
        fresh = [key for key in keys if key not in self._known]
        if len(fresh) > (0 if known_only else _MAX_FRESH):
            return None
        for key in fresh:
            self._add(key)
        found = {key: model for key in keys if (model := self._known.get(key)) is not None}
        return found if len(found) == len(keys) else None

    def clear(self) -> None:
        """Drop all models."""
        self._known.clear()

    def _add(self, key: LeafKey) -> None:
        model = _leaf_model(key, self._patterns)
        if len(self._known) >= _MAX_LEAVES:
            self._known.clear()
        self._known[key] = model


def _leaf_model(key: LeafKey, patterns: Patterns) -> LeafModel | None:
    """Return what the grammar of an object with one leaf says of it; None if that is not simple, or inexact."""
    leaf = {name: list(value) if name == "type" else value for name, value in key}
    document = {"type": "object", "properties": {"leaf": leaf}, "required": ["leaf"], "additionalProperties": False}
    try:
        source = our_text(document, patterns, "forbid")
    except (ConstrainedK2Error, Refused, RecursionError):
        return None  # the schema's grammar has the same error, with its location
    if not source.is_simple or source.coverage.inexact or source.model is None or source.direct is None:
        return None
    members = source.model.nodes[source.model.root].object
    if members is None or source.text.count("(") != source.text.count(")"):
        return None
    _, number = members.values["leaf"]
    rule = source.direct[number]
    easy = source.text.replace(rule.string, "", 1) if rule is not None and rule.string else source.text
    return LeafModel(source.model.nodes[number], rule, len(easy), groups_in(easy))
