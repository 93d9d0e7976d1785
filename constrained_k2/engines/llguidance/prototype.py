"""An LLGuidance matcher in a grammar's initial state; the matchers of all calls are copies of it.

Copies are cheap (10 us) but share one lexer, and some patterns exhaust a lexer's states after dozens of copies. Then a
new prototype is made. The prototype of a simple grammar is only made when a mask first needs LLGuidance.
"""

import threading

import llguidance

from constrained_k2.engines.llguidance.forced import forced_ids
from constrained_k2.engines.llguidance.grammar_text import GrammarText
from constrained_k2.engines.llguidance.lexer_cost import CLIENT_LIMITS, EASED_LIMITS, LIMITS, lexer_bytes


class Prototype:
    """The prototype of a grammar. ``shares_with`` is the prototype of a grammar with equal text: they share a lexer."""

    def __init__(
        self, tokenizer: llguidance.LLTokenizer, source: GrammarText, shares_with: "Prototype | None" = None
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self._limits = CLIENT_LIMITS if source.is_clients else LIMITS if source.effort == "exact" else EASED_LIMITS
        self._compiling = threading.Lock()
        self.matcher: llguidance.LLMatcher | None = None
        if not source.is_simple:
            self.matcher = self._new() if shares_with is None else shares_with.copy()

    @property
    def lexer_bytes(self) -> int:
        """The estimated memory of the lexer; 0 if LLGuidance has not compiled the grammar."""
        return 0 if self.matcher is None else lexer_bytes(self.matcher)

    def copy(self) -> llguidance.LLMatcher:
        """Return a copy of the matcher, at the start of the arguments."""
        if self.matcher is None:
            with self._compiling:
                self.matcher = self.matcher or self._new()
        return self.matcher.deep_copy()

    def renew(self) -> llguidance.LLMatcher:
        """Return a matcher with a new lexer, which later copies share unless LLGuidance fails to make it."""
        renewed = self._new()
        if not renewed.is_error():
            self.matcher = renewed
        return renewed.deep_copy()

    def forced_ids(self, matcher: llguidance.LLMatcher) -> list[int]:
        """Return the forced tokens in canonical tokenization; an empty list if the grammar may force a long text."""
        if self.source.has_long_texts:
            return []
        if not self.source.any_tokenization:
            return list(matcher.compute_ff_tokens())
        # A copy: with "no_forcing" (LLGuidance 1.7.6), a matcher's masks are wrong after it has looked ahead.
        return forced_ids(matcher.deep_copy().compute_ff_bytes(), self.tokenizer.tokenize_bytes)

    def _new(self) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self.tokenizer, self.source.text, log_level=0, limits=self._limits)
