"""The grammars that go on where one fails while it writes: the engine's limits are met only with the text that comes.

In this order, of those that take the tokens so far: our own with shorter strings where they have a pattern and a long
limit, which is sound; our own without patterns; LLGuidance's builtin grammar; and that of any JSON object. A strict
tool goes on only with those that relax nothing.
"""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal
from weakref import finalize, ref

from constrained_k2.engines.llguidance.grammar_text import GrammarText, Patterns, Refused, builtin_text, our_text
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.schema.coverage import Coverage, KeywordUse
from constrained_k2.schema.undeclared_keys import UndeclaredKeys

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.engine import LLGuidanceGrammar

Step = Literal["exact", "narrow", "relaxed", "builtin", "any"]
"""A place in the order of grammars; the first is the one that a schema is compiled into."""
UNREADABLE = (ConstrainedK2Error, Refused, RecursionError, ValueError)
"""What compiling a grammar, or reading one, raises if there is none."""

_STEPS: tuple[Step, ...] = ("exact", "narrow", "relaxed", "builtin", "any")
_NAMES: dict[Step, str] = {
    "narrow": "a grammar of shorter strings",
    "relaxed": "a grammar without its patterns",
    "builtin": "LLGuidance's builtin grammar",
    "any": "the grammar of any JSON object, or of any answer",
}
_REASON = "LLGuidance failed while it wrote with the schema's grammar"
_logger = logging.getLogger(__name__)


def next_best_text(
    schema: str, step: Step, patterns: Patterns, undeclared_keys: UndeclaredKeys, encoding: ArgumentEncoding
) -> GrammarText:
    """Return another grammar of a schema, JSON text. Its states are not cached: few calls get there.

    Raises:
        Refused: There is none.
        UnsupportedSchema: The same.
        SchemaTooCostly: It is over a budget.
    """
    document = json.loads(schema)
    if step == "builtin":
        if encoding == "xtml":
            raise Refused("the builtin compiler writes JSON alone")
        return builtin_text(document, _REASON)
    if step == "any":
        is_object = isinstance(document, dict) and document.get("type") == "object"
        source = our_text({"type": "object"} if is_object else {}, patterns, "allow", encoding)
        kind = "JSON object" if is_object else "JSON value"
        coverage = Coverage("llguidance", relaxed=(KeywordUse("#", f"{_REASON}: any {kind} is allowed"),))
        return replace(source, coverage=coverage, model=None, is_simple=False)
    source = our_text(document, patterns, undeclared_keys, encoding, step)
    return replace(source, model=None, is_simple=False)


class NextBest:
    """The grammars of one schema, by step, compiled when the one before fails. Thread-safe.

    Args:
        make: Compiles the schema; raises one of :data:`UNREADABLE` if there is no such grammar.
    """

    def __init__(self, make: Callable[[Step], "LLGuidanceGrammar"]) -> None:
        self._make = make
        self.first: Callable[[], LLGuidanceGrammar | None] = lambda: None  # while something refers to it
        self._made: dict[Step, LLGuidanceGrammar | None] = {}
        self._logged: set[Step] = set()
        self._lock = threading.Lock()

    def made(self, step: Step) -> "LLGuidanceGrammar":
        """Compile the grammar of a step; raises one of :data:`UNREADABLE`."""
        return self.before(self._make(step), step)

    def before(self, grammar: "LLGuidanceGrammar", step: Step) -> "LLGuidanceGrammar":
        """Return the first grammar of the schema, with these to go on with."""
        grammar.step, grammar.next_best = step, self
        self.first = ref(grammar)
        # The others refer to this object. Without the first one only calls in progress need them.
        finalize(grammar, self._made.clear).atexit = False
        return grammar

    def cost_bytes(self, first: "LLGuidanceGrammar") -> int:
        """Return the estimated memory of the grammars that go on with ``first``; 0 for one of these."""
        others = list(self._made.values()) if first is self.first() else []
        return sum(other.own_bytes for other in others if other is not None)

    def after(self, step: Step, *, may_relax: bool, keeps_keys: bool) -> "LLGuidanceGrammar | None":
        """Return the grammar to go on with where that of ``step`` failed; None if there is none.

        Args:
            step: The step whose grammar failed.
            may_relax: False for a strict tool.
            keeps_keys: True if the matcher itself leaves out keys that an object has already.
        """
        for other in _STEPS[_STEPS.index(step) + 1 :]:
            if not may_relax and other in {"relaxed", "any"}:
                continue
            with self._lock:
                if other not in self._made:
                    self._made[other] = self._compiled(other)
                found = self._made[other]
            if found is None or (other == "builtin" and not may_relax and _relaxes(found, keeps_keys=keeps_keys)):
                continue
            return found
        return None

    def log(self, step: Step, location: str, problem: str) -> None:
        """Log, once a step, that its grammar goes on with the call of the schema at ``location``."""
        with self._lock:
            if step in self._logged:
                return
            self._logged.add(step)
        _logger.warning(
            "%s: LLGuidance failed in a call's arguments, which go on with %s: %s", location, _NAMES[step], problem
        )

    def _compiled(self, step: Step) -> "LLGuidanceGrammar | None":
        try:
            grammar = self._make(step)
        except UNREADABLE:
            return None
        grammar.step, grammar.next_best = step, self
        return grammar


def _relaxes(builtin: "LLGuidanceGrammar", *, keeps_keys: bool) -> bool:
    """Return True if a builtin grammar relaxes a keyword. Of ``properties``, it relaxes that a key comes once."""
    return any(not (keeps_keys and use.keyword == "properties") for use in builtin.coverage.relaxed)
