"""LLGuidance as the engine: it matches grammars of ours, and those of its own JSON Schema compiler behind them."""

import json
import os
from collections.abc import Sequence

import llguidance
import numpy as np
import numpy.typing as npt

from constrained_k2.bitmask import BitmaskRows
from constrained_k2.engines.llguidance_grammar import LIMITS, GrammarText, Patterns, Refused, our_text, own_text
from constrained_k2.engines.llguidance_tokenizer import plain_tokenizer
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.vocabulary import Vocabulary

_FIRST_STEPS = ("", "{", '"')
# What a compiled grammar with its lexer comes to hold: 340 KB in the mean once calls have been written with it (lexers
# grow as they are used), measured as the growth of a process over 2,000 requests that call 600 schemas of public tools
# with 1.2 KB of grammar text each, on the real vocabulary. The share of the text is a guess; the floor makes the mean.
_COST_FACTOR = 40
_COST_FLOOR = 320 << 10
# Rows below which the batch stays on the calling thread. Measured on two cores: 16 rows take 0.25 ms on two threads and
# 0.16 ms on one; from 64 on there is no difference there but that the interpreter lock is let go once.
_ROWS_WORTH_A_THREAD = 64
_MOST_THREADS = 64


class LLGuidanceEngine:
    """Schemas compiled by LLGuidance.

    Args:
        vocabulary: The model's vocabulary. Its ``<|tool_call_end|>`` is made the engine's stop token, so the engine
            itself opens the exit when the JSON is complete.
        threads: How many threads fill the masks of a batch; None for as many as the process may use, up to eight.

    Raises:
        InvalidRequest: The number of threads makes no sense.
    """

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary, threads: int | None = None) -> None:
        self.mask_threads = MaskThreads(threads)
        self.tokenizer = plain_tokenizer(vocabulary, vocabulary.format.call_end)
        self._first_steps = [vocabulary.encode(text) for text in _FIRST_STEPS]
        self._patterns = Patterns()

    def compile(self, schema: str) -> "LLGuidanceGrammar":
        """See :class:`~constrained_k2.engines.protocol.Engine`.

        The grammar is ours (any property order), and keeps all it can of the schema. Where it would relax something
        or cost too much, and LLGuidance's own compiler keeps everything, the grammar is that one's.
        """
        document = json.loads(schema)
        ours: LLGuidanceGrammar | None = None
        try:
            ours = self._probed(our_text(document, self._patterns))
        except RecursionError:
            problem: Exception = UnsupportedSchema(
                "the schema is nested too deeply", "", "Flatten it", engine=self.name
            )
        except (SchemaTooCostly, Refused) as error:
            problem = error if isinstance(error, SchemaTooCostly) else _refusal(str(error))
        if ours is not None and not ours.coverage.relaxed:
            return ours
        try:
            own = self._probed(own_text(document))
        except Refused:
            own = None
        if own is not None and (ours is None or not own.coverage.relaxed):
            return own
        if ours is None:
            raise problem
        return ours

    def _probed(self, source: GrammarText) -> "LLGuidanceGrammar":
        """The grammar of a text, its first masks taken: a few fail only there.

        Raises:
            Refused: LLGuidance does not take it.
        """
        grammar = LLGuidanceGrammar(self.tokenizer, source, self.mask_threads)
        first = grammar.copy()
        for ids in self._first_steps:
            if first.try_consume_tokens(ids) == len(ids) and not first.is_error():
                first.compute_bitmask()
        if first.is_error():
            raise Refused(first.get_error())
        return grammar


class MaskThreads:
    """The threads that fill the masks of a batch, without the interpreter lock. Started when first needed.

    Args:
        count: How many; None for as many as the process may use, up to eight.

    Attributes:
        count: How many.

    Raises:
        InvalidRequest: The number makes no sense.
    """

    def __init__(self, count: int | None = None) -> None:
        if count is not None and (type(count) is not int or not 1 <= count <= _MOST_THREADS):
            raise InvalidRequest(f"{count!r} threads make no sense", "threads", f"Use 1 to {_MOST_THREADS}, or None")
        self.count = count or min(len(os.sched_getaffinity(0)), 8)
        self._executor: llguidance.LLExecutor | None = None
        self._owner = 0

    def executor(self) -> llguidance.LLExecutor:
        """LLGuidance's own thread pool, of this process: a fork has none of its parent's threads."""
        if self._executor is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._executor = llguidance.LLExecutor(self.count)
        return self._executor


def _refusal(message: str) -> UnsupportedSchema:
    first_line = message.strip().splitlines()[0] if message.strip() else "unknown error"
    return UnsupportedSchema(
        f"no grammar can be built for this schema: {first_line[:300]}",
        "",
        "Remove or rewrite what is named, or leave the tool out",
        engine=LLGuidanceEngine.name,
    )


class LLGuidanceGrammar:
    """One compiled schema.

    Copies of a prepared matcher are cheap (10 us) but share one lexer, and some patterns exhaust a lexer's states
    after dozens of copies; then a new prototype is built (see :meth:`renew`).

    Attributes:
        text: What LLGuidance was given.
        any_order: Whether it is a grammar of ours, in which properties come in any order.
        coverage: See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.
        cost_bytes: See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.
        mask_threads: The engine's.
    """

    def __init__(self, tokenizer: llguidance.LLTokenizer, source: GrammarText, mask_threads: MaskThreads) -> None:
        self.mask_threads = mask_threads
        self.any_order = source.any_order
        self.coverage = source.coverage
        self._tokenizer = tokenizer
        self.text = source.text
        self._prototype = self._new()
        self.cost_bytes = _COST_FLOOR + _COST_FACTOR * len(source.text)

    def matcher(self, place: str) -> "LLGuidanceMatcher":
        """See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`."""
        return LLGuidanceMatcher(self, place, self.copy(), [])

    def copy(self) -> llguidance.LLMatcher:
        """A copy of the prototype, at the start."""
        return self._prototype.deep_copy()

    def renew(self) -> llguidance.LLMatcher:
        """A matcher over a lexer of its own; later copies are made of that one."""
        self._prototype = self._new()
        return self.copy()

    def _new(self) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, self.text, log_level=0, limits=LIMITS)


class LLGuidanceMatcher:
    """One call's arguments. An error of the shared lexer is answered once by a new one, with the tokens replayed."""

    __slots__ = ("_grammar", "_ids", "_matcher", "_place")

    def __init__(self, grammar: LLGuidanceGrammar, place: str, matcher: llguidance.LLMatcher, ids: list[int]) -> None:
        self._grammar = grammar
        self._place = place
        self._matcher = matcher
        self._ids = ids

    def fill(self, row: npt.NDArray[np.int32], address: int = 0) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        address = address or row.ctypes.data
        self._matcher.unsafe_compute_mask_ptr(address, row.nbytes)
        if self._matcher.is_error():
            self._rebuild()
            self._matcher.unsafe_compute_mask_ptr(address, row.nbytes)
            self._raise_on_error()

    @staticmethod
    def fill_batch(
        batch: Sequence[tuple["LLGuidanceMatcher", int]], rows: BitmaskRows
    ) -> list[tuple[int, ConstrainedK2Error]]:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

        LLGuidance's executor lets go of the interpreter lock once for the whole batch. A mask at a time would once a
        row, and would each time have to wait for any other thread that runs Python then.
        """
        threads = batch[0][0]._grammar.mask_threads  # noqa: SLF001 - of the same class
        if threads.count > 1 and len(batch) >= _ROWS_WORTH_A_THREAD:
            pairs = [(matcher._matcher, row) for matcher, row in batch]  # noqa: SLF001
            threads.executor().unsafe_compute_mask_ptr(pairs, rows.address, rows.row_bytes, len(rows))
            batch = [pair for pair in batch if pair[0]._matcher.is_error()]  # noqa: SLF001
        failed: list[tuple[int, ConstrainedK2Error]] = []
        for matcher, row in batch:
            try:
                matcher.fill(rows[row], rows.address + row * rows.row_bytes)
            except ConstrainedK2Error as error:
                failed.append((row, error))
        return failed

    def forced_tokens(self) -> list[int]:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`.

        A limit that the engine hits here it hits at the next mask too, where it is handled.
        """
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced

    def accept(self, token_id: int) -> bool:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        taken = self._matcher.try_consume_tokens([token_id])
        if not taken and (self._matcher.is_error() or self._is_allowed(token_id)):
            self._rebuild()
            taken = self._matcher.try_consume_tokens([token_id])
            self._raise_on_error()
        if taken:
            self._ids.append(token_id)
        return bool(taken)

    def rollback(self, count: int) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        if count:
            del self._ids[-count:]
            if self._matcher.is_error() or not self._matcher.rollback(count):
                self._rebuild()

    def is_complete(self) -> bool:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        return self._matcher.is_accepting()

    def fork(self) -> "LLGuidanceMatcher":
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        return LLGuidanceMatcher(self._grammar, self._place, self._matcher.deep_copy(), self._ids.copy())

    def _is_allowed(self, token_id: int) -> bool:
        """Whether the mask allows a token: a lexer that is full may refuse one without saying so."""
        mask = self._matcher.compute_bitmask()
        return self._matcher.is_error() or bool(mask[token_id // 8] >> (token_id % 8) & 1)

    def _rebuild(self) -> None:
        self._matcher = self._grammar.renew()
        self._matcher.try_consume_tokens(self._ids)
        self._raise_on_error()

    def _raise_on_error(self) -> None:
        if self._matcher.is_error():
            raise SchemaTooCostly(
                f"the engine gave up on the arguments: {self._matcher.get_error().strip()[:300]}",
                self._place,
                "Simplify the schema's patterns, or split objects with very many properties",
                budget="llguidance",
            )
