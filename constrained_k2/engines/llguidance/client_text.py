"""Limits the CPU time of matching a client's regex or Lark grammar, for a custom tool or an answer.

    s: s s | "a" | "b" "a"?      ambiguous: each token compares all parses, so the call fails after some 300 bytes

LLGuidance's own limits count lexer expressions and parser items. They do not bound the time of an ambiguous rule.
"""

import gc
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher, fill_each
from constrained_k2.engines.protocol import Failures
from constrained_k2.errors import SchemaTooCostly
from constrained_k2.grammar.lark.text_grammar import TextGrammar
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vocabulary.bitmask import BitmaskRows

if TYPE_CHECKING:
    from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar

_FREE_NS = 10_000_000  # uncounted CPU time per step; most steps take 0.1 to 3 ms
_MOST_NS = 80_000_000  # limit of the counted time; a step that needs less than _FREE_NS reduces the sum


class ClientTextGrammar:
    """A compiled grammar of a client. Implements :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.

    Args:
        inner: The grammar.
        tokens: Passed on to :class:`ClientTextMatcher`.
    """

    def __init__(self, inner: "LLGuidanceGrammar", tokens: npt.NDArray[np.int32] | None) -> None:
        self._inner = inner
        self._tokens = tokens
        self.coverage: Coverage = inner.coverage

    @property
    def on_growth(self) -> Callable[[int], None]:
        return self._inner.on_growth

    @on_growth.setter
    def on_growth(self, on_growth: Callable[[int], None]) -> None:
        self._inner.on_growth = on_growth

    @property
    def cost_bytes(self) -> int:
        return self._inner.cost_bytes

    def matcher(self, location: str, *, may_relax: bool = False) -> "ClientTextMatcher":
        return ClientTextMatcher(self._inner.matcher(location, may_relax=may_relax), location, self._tokens)


class ClientTextMatcher:
    """A matcher that limits its CPU time. Implements :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

    A step is one call of a method. The step that exceeds the limit still returns, unless it replays tokens; every later
    step raises ``SchemaTooCostly``. Python's garbage collector is off during a step, because one collection in a large
    process takes longer than the limit.

    Args:
        inner: The matcher of the text.
        location: The location of the grammar in the request, for errors.
        tokens: Bitmask of the tokens that a text may contain, int32 ``[words]``; None for any. It excludes special
            tokens, which a complement in LLGuidance's dialect (``~/a/``) would match.
    """

    __slots__ = ("_begun", "_collects", "_inner", "_location", "_spent_ns", "_tokens")

    def __init__(self, inner: LLGuidanceMatcher, location: str, tokens: npt.NDArray[np.int32] | None) -> None:
        self._inner = inner
        self._inner.watch = self._check
        self._location = location
        self._tokens = tokens
        self._spent_ns = 0
        self._begun = 0
        self._collects = False

    @property
    def text_grammar(self) -> TextGrammar | None:
        return self._inner.text_grammar

    @property
    def plan(self) -> None:
        """A client's grammar has no plan."""

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        with self:
            self._inner.fill(row, address)
            if self._tokens is not None:
                row &= self._tokens

    @staticmethod
    def fill_batch(batch: Sequence[tuple[Any, int]], rows: BitmaskRows) -> Failures:
        return fill_each(batch, rows)  # on this thread, whose CPU time is counted

    def mask_without_engine(self) -> npt.NDArray[np.int32] | None:
        return None

    def forced_tokens(self) -> list[int]:
        return []

    def accept(self, token_id: int) -> bool:
        with self:
            return self._inner.accept(token_id)

    def written(self) -> Sequence[int]:
        return self._inner.written()

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)

    def is_complete(self) -> bool:
        with self:
            return self._inner.is_complete()

    def fork(self) -> "ClientTextMatcher":
        copy = ClientTextMatcher(self._inner.fork(), self._location, self._tokens)
        copy._spent_ns = self._spent_ns
        return copy

    def __enter__(self) -> None:
        self._begun = thread_time_ns()
        self._check()
        self._collects = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        self._spent_ns = self._with_step()
        if self._collects:
            gc.enable()

    def _with_step(self) -> int:
        """Return the counted time, current step included. It falls with each step that is faster than ``_FREE_NS``."""
        return max(self._spent_ns + thread_time_ns() - self._begun - _FREE_NS, 0)

    def _check(self) -> None:
        """Raise if the counted time, current step included, is over the limit."""
        spent = self._with_step() if self._spent_ns <= _MOST_NS else self._spent_ns
        if spent > _MOST_NS:
            limit, free, actual = _MOST_NS // 1_000_000, _FREE_NS // 1_000_000, spent // 1_000_000
            problem = f"computing its masks took {actual} ms more than {free} ms per step, over the limit of {limit} ms"
            remedy = "Rewrite rules that match one text in several ways, and lower repetition counts"
            raise SchemaTooCostly(problem, self._location, remedy, "mask_ms", limit, actual)
