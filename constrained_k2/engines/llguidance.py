"""LLGuidance as the engine: it matches grammars of ours, and those of its own JSON Schema compiler behind them."""

import json
import os
import time

import llguidance

from constrained_k2.engines.llguidance_grammar import LIMITS, GrammarText, Patterns, Refused, our_text, own_text
from constrained_k2.engines.llguidance_matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance_tokenizer import plain_tokenizer
from constrained_k2.engines.state_cache import StateCache
from constrained_k2.errors import InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.vocabulary import Vocabulary

_FIRST_STEPS = ("", "{", '"')
# What a compiled grammar with its lexer comes to hold: 340 KB in the mean once calls have been written with it (lexers
# grow as they are used), measured as the growth of a process over 2,000 requests that call 600 schemas of public tools
# with 1.2 KB of grammar text each, on the real vocabulary. The share of the text is a guess; the floor makes the mean.
_COST_FACTOR = 40
_COST_FLOOR = 320 << 10
_MOST_THREADS = 64


class LLGuidanceEngine:
    """Schemas compiled by LLGuidance.

    Args:
        vocabulary: The model's vocabulary. Its ``<|tool_call_end|>`` is made the engine's stop token, so the engine
            itself opens the exit when the JSON is complete.
        threads: How many threads fill the masks of a batch; None for as many as the process may use, up to eight.
        mask_cache_bytes: As :class:`constrained_k2.Compiler` takes it.

    Raises:
        InvalidRequest: The number of threads or bytes makes no sense.
    """

    name = "llguidance"
    clock = staticmethod(time.thread_time)

    def __init__(self, vocabulary: Vocabulary, threads: int | None = None, mask_cache_bytes: int = 64 << 20) -> None:
        if type(mask_cache_bytes) is not int or mask_cache_bytes < 0:
            raise InvalidRequest(
                f"a cache of {mask_cache_bytes!r} bytes makes no sense", "mask_cache_bytes", "Use 0 or more"
            )
        self.mask_threads = MaskThreads(threads)
        self.state_cache = StateCache(vocabulary, mask_cache_bytes)
        self.tokenizer = plain_tokenizer(vocabulary, vocabulary.format.call_end)
        self._first_steps = [vocabulary.encode(text) for text in _FIRST_STEPS]
        self._patterns = Patterns()

    @property
    def cached_bytes(self) -> int:
        """See :class:`~constrained_k2.engines.protocol.Engine`."""
        return self.state_cache.spent

    def forget(self) -> None:
        """See :class:`~constrained_k2.engines.protocol.Engine`."""
        self.state_cache.forget()

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
        grammar = LLGuidanceGrammar(self.tokenizer, source, self.mask_threads, self.state_cache)
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
        states: The states that its matchers share; None if they share none.
        plain: See :class:`~constrained_k2.engines.state_cache.StateCache`.
    """

    def __init__(
        self, tokenizer: llguidance.LLTokenizer, source: GrammarText, mask_threads: MaskThreads, cache: StateCache
    ) -> None:
        self.mask_threads = mask_threads
        self.states = None if source.plan is None else cache.states_of(source.plan)
        self.plain = cache.plain
        self.any_order = source.any_order
        self.coverage = source.coverage
        self._tokenizer = tokenizer
        self.text = source.text
        self._prototype = self._new()
        self.cost_bytes = _COST_FLOOR + _COST_FACTOR * len(source.text)

    def matcher(self, place: str) -> LLGuidanceMatcher:
        """See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`."""
        return LLGuidanceMatcher(self, place)

    def copy(self) -> llguidance.LLMatcher:
        """A copy of the prototype, at the start."""
        return self._prototype.deep_copy()

    def renew(self) -> llguidance.LLMatcher:
        """A matcher over a lexer of its own; later copies are made of that one."""
        renewed = self._new()
        if not renewed.is_error():
            self._prototype = renewed
        return renewed.deep_copy()

    def _new(self) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, self.text, log_level=0, limits=LIMITS)
