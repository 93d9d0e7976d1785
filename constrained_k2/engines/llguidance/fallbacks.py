"""Fallback grammars, used if LLGuidance fails inside a call; each is compiled on first use.

The first lowers ``maxLength`` for strings with a pattern. The last allows any JSON object, or any JSON value if the
schema's type is not object.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar

_logger = logging.getLogger(__name__)


class Fallbacks:
    """The fallback grammars of one grammar.

    Args:
        make_any: Returns the last one; None if there is none.
        make_narrow: Returns the first one, or None if it does not compile; None if there is none.
    """

    def __init__(
        self,
        make_any: "Callable[[], LLGuidanceGrammar] | None" = None,
        make_narrow: "Callable[[], LLGuidanceGrammar | None] | None" = None,
    ) -> None:
        self._make_any = make_any
        self._make_narrow = make_narrow
        self._narrow: LLGuidanceGrammar | None = None
        self._making = threading.Lock()
        self._has_failed = False

    @property
    def cost_bytes(self) -> int:
        """The estimated memory of the first one, if it was needed; all schemas share the last one."""
        return 0 if self._narrow is None else self._narrow.cost_bytes

    def following(self, grammar: "LLGuidanceGrammar", *, may_relax: bool) -> "Iterator[LLGuidanceGrammar]":
        """Yield the fallback grammars of ``grammar``, most exact first.

        ``may_relax``: False for a strict tool, which gets no fallback that allows more than its schema.
        """
        with self._making:
            if self._make_narrow is not None:
                self._narrow, self._make_narrow = self._make_narrow(), None
                if self._narrow is not None:
                    owner = ref(grammar)
                    self._narrow.fallbacks = Fallbacks(self._make_any)
                    self._narrow.on_growth = lambda _: None if (found := owner()) is None else found.measure()
                    grammar.measure()
        if self._narrow is not None:
            yield self._narrow
        if may_relax and self._make_any is not None:
            yield self._make_any()

    def log_failure(self, location: str, problem: str, following: "LLGuidanceGrammar") -> None:
        """Log, once, that a call continues with the fallback ``following``."""
        if not self._has_failed:
            self._has_failed = True
            how = "without long strings that have patterns" if following is self._narrow else "as any JSON"
            _logger.warning("%s: LLGuidance failed in a call's arguments, which go on %s: %s", location, how, problem)
