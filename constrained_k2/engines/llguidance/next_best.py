"""The grammars that go on where one fails while it writes: the engine's limits are met only with the text that comes.

The next best grammar of a schema first shortens strings that have a pattern and a long limit, which is sound. Where the
tool is not strict, the last one leaves the patterns out.
"""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.grammar.lark.writer import Effort

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.engine import LLGuidanceGrammar

_ORDER: tuple[Effort, ...] = ("exact", "narrow", "relaxed")
_logger = logging.getLogger(__name__)


class NextBest:
    """The grammars of one schema, by effort, compiled when the one before fails. Thread-safe.

    Args:
        make: Compiles the schema; raises a ``ConstrainedK2Error`` or ``Refused`` if there is no such grammar.
    """

    def __init__(self, make: Callable[[Effort], "LLGuidanceGrammar"]) -> None:
        self._make = make
        self._made: dict[Effort, LLGuidanceGrammar | None] = {}
        self._lock = threading.Lock()

    def after(self, effort: Effort, *, may_relax: bool) -> "LLGuidanceGrammar | None":
        """The grammar to go on with where that of ``effort`` failed; None if there is none."""
        for other in _ORDER[_ORDER.index(effort) + 1 : None if may_relax else -1]:
            with self._lock:
                if other not in self._made:
                    self._made[other] = self._compiled(other)
                if (found := self._made[other]) is not None:
                    return found
        return None

    def _compiled(self, effort: Effort) -> "LLGuidanceGrammar | None":
        from constrained_k2.engines.llguidance.grammar_text import Refused

        try:
            grammar = self._make(effort)
        except (ConstrainedK2Error, Refused, RecursionError):
            return None
        grammar.next_best = self
        _logger.warning("a schema costs LLGuidance too much while it writes; going on with a %s grammar", effort)
        return grammar
