"""Matches a text by a grammar that a client wrote, and bounds the CPU time that this takes.

    s: s s | "a" | "b" "a"?      each step compares all ways to read the text: the call ends after some 300 bytes

LLGuidance's own limits count expressions and parser items, not the work that an ambiguous rule makes of them.
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
    from constrained_k2.engines.llguidance.engine import LLGuidanceGrammar

_FREE_NS = 10_000_000  # of a step; most take 0.1 to 3 ms
_MOST_NS = 80_000_000  # of steps one after the other, above what is free


class ClientTextGrammar:
    """A compiled grammar of a client. Implements :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.

    Args:
        inner: The grammar.
        tokens: As :class:`ClientTextMatcher` takes them.
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
    """A matcher whose steps are timed. Implements :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

    Garbage collections wait for the end of a step: in a large process, one takes longer than the limit. The step that
    takes too long is the last one: it ends as usual, and every later one raises ``SchemaTooCostly``.

    Args:
        inner: The matcher of the text.
        location: The location of the grammar in the request, for errors.
        tokens: The tokens that a text may have, int32 ``[words]``; None for any. A grammar of LLGuidance's own dialect
            can exclude texts, which includes special tokens: ``~/a/``.
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

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        with self:
            self._inner.fill(row, address)
            if self._tokens is not None:
                row &= self._tokens

    @staticmethod
    def fill_batch(batch: Sequence[tuple[Any, int]], rows: BitmaskRows) -> Failures:
        return fill_each(batch, rows)  # on this thread, whose CPU time is counted

    def cached_mask(self) -> npt.NDArray[np.int32] | None:
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
        """Return the time above what is free, with the current step. Fast steps make up for slow ones before them."""
        return max(self._spent_ns + thread_time_ns() - self._begun - _FREE_NS, 0)

    def _check(self) -> None:
        """Raise if the call's latest steps, with the current one, have taken too long."""
        spent = self._with_step() if self._spent_ns <= _MOST_NS else self._spent_ns
        if spent > _MOST_NS:
            limit, free, actual = _MOST_NS // 1_000_000, _FREE_NS // 1_000_000, spent // 1_000_000
            problem = f"the masks of this grammar take {actual} ms above {free} ms each, over the limit of {limit} ms"
            remedy = "Rewrite rules that match one text in several ways, and shorten counts"
            raise SchemaTooCostly(problem, self._location, remedy, "mask_ms", limit, actual)
