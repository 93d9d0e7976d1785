"""A grammar compiled by LLGuidance, with its DFA over tokens, uniqueness filter and fallbacks."""

from collections.abc import Callable
from functools import partial

import llguidance

from constrained_k2.engines.llguidance.fallbacks import Fallbacks
from constrained_k2.engines.llguidance.grammar_text import GrammarText
from constrained_k2.engines.llguidance.mask_cache import LazyDfa, MaskCache
from constrained_k2.engines.llguidance.mask_threads import MaskThreads
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.prototype import Prototype
from constrained_k2.engines.llguidance.uniqueness.filter import UniquenessFilter
from constrained_k2.engines.llguidance.uniqueness.items import NO_PATHS, ItemPaths
from constrained_k2.schema.coverage import Coverage

# Bytes of a compiled grammar, without its lexer, for each character of its text: 20 to 80 were measured.
_COST_FACTOR = 40
_COST_FLOOR = 40_000
_MEASURED_AFTER_NS = 4_000_000  # lexer work that adds 1 MB to the lexer at most; measuring takes 0.1 ms


class LLGuidanceGrammar:
    """One compiled schema, or client's grammar. Implements :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.

    ``shares_with`` is a grammar with the same text. This one shares its lexer. It shares its DFA if the DFA states of
    both depend on equal data (``states_by``).
    """

    def __init__(
        self,
        tokenizer: llguidance.LLTokenizer,
        source: GrammarText,
        mask_threads: MaskThreads,
        cache: MaskCache,
        shares_with: "LLGuidanceGrammar | None" = None,
    ) -> None:
        self.source = source
        self.coverage: Coverage = source.coverage
        self.mask_threads = mask_threads
        self.token_classes = cache.classes
        shared = None if shares_with is None else shares_with.prototype
        self.prototype: Prototype = Prototype(tokenizer, source, shared)
        self.fallbacks = Fallbacks()
        plan = source.plan
        # The data that DFA states depend on. It is not the whole plan, which also has the schema's order of keys.
        self.states_by = (source.model, source.direct, plan and (plan.item_paths, plan.has_open_keys))
        self.dfa: LazyDfa | None = None  # shared by all matchers of this grammar
        if source.model is not None:
            if shares_with is not None and shares_with.states_by == self.states_by:
                self.dfa = shares_with.dfa
            self.dfa = self.dfa or cache.dfa(source.model, source.direct)
        self._new_filter: Callable[[], UniquenessFilter] | None = None  # None: no key or item may be repeated anyway
        if plan is not None and (plan.has_open_keys or plan.item_paths):
            is_xml = source.encoding == "xtml"
            paths = ItemPaths(plan.item_paths, plan.root, is_xml=is_xml) if plan.item_paths else NO_PATHS
            self._new_filter = partial(UniquenessFilter, cache.token_effects(), paths, is_xml=is_xml, token=cache.token)
        self.on_growth: Callable[[int], None] = lambda _: None
        self._text_bytes = self.cost_bytes = _COST_FLOOR + _COST_FACTOR * len(source.text)
        self._unmeasured_ns = 0

    def note_work(self, nanoseconds: int) -> None:
        """Add up the time in which a matcher's lexer may have grown; re-estimate its memory now and then."""
        self._unmeasured_ns += nanoseconds
        if self._unmeasured_ns > _MEASURED_AFTER_NS:
            self.measure()

    def measure(self) -> None:
        """Re-estimate the grammar's memory and report it to ``on_growth`` (the cache's accounting)."""
        self._unmeasured_ns = 0
        text_grammar = self.source.text_grammar
        self.cost_bytes = self._text_bytes + self.prototype.lexer_bytes + self.fallbacks.cost_bytes
        self.cost_bytes += 0 if text_grammar is None else text_grammar.cost_bytes
        self.on_growth(self.cost_bytes)

    @property
    def text(self) -> str:
        """The Lark grammar that LLGuidance reads."""
        return self.source.text

    def matcher(self, location: str, *, may_relax: bool = False) -> LLGuidanceMatcher:
        uniqueness = None if self._new_filter is None else self._new_filter()
        return LLGuidanceMatcher(self, location, may_relax=may_relax, uniqueness=uniqueness)

    def copy(self) -> llguidance.LLMatcher:
        """Return a matcher of LLGuidance at the start of the arguments, which shares the prototype's lexer."""
        is_first = self.prototype.matcher is None
        copied = self.prototype.copy()
        if is_first:
            self.measure()
        return copied

    def renew(self) -> llguidance.LLMatcher:
        """Return a matcher with a new lexer, which later copies share too."""
        renewed = self.prototype.renew()
        self.measure()
        return renewed
