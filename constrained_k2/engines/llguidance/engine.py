"""Compiles schemas with LLGuidance; fallback grammars serve calls in which LLGuidance hits a limit.

A schema becomes a Lark grammar with keys in any order and exact bounds. The first fallback lowers ``maxLength`` for
strings with a pattern. The last one allows any JSON object, or any JSON value if the schema's type is not object.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Literal
from weakref import WeakValueDictionary, ref

import llguidance
import numpy as np

from constrained_k2.engines.llguidance.client_text import ClientTextGrammar
from constrained_k2.engines.llguidance.forced import forced_ids
from constrained_k2.engines.llguidance.grammar_text import (
    GrammarText,
    Patterns,
    answer_grammar,
    any_text,
    custom_tool_grammar,
    schema_grammar,
)
from constrained_k2.engines.llguidance.lexer_cost import CLIENT_LIMITS, EASED_LIMITS, LIMITS, lexer_bytes
from constrained_k2.engines.llguidance.mask_cache import LazyDfa, MaskCache
from constrained_k2.engines.llguidance.mask_threads import MaskThreads
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.refusal import COMPILE_ERRORS, RefusalKind, Refused, refusal
from constrained_k2.engines.llguidance.tokenizer import build_tokenizer
from constrained_k2.engines.llguidance.written.filter import WrittenFilter
from constrained_k2.engines.llguidance.written.items import NO_PATHS, ItemPaths
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.errors import InvalidRequest, UnsupportedSchema
from constrained_k2.formats.kimi_k3 import ARGUMENT, OPEN, SEPARATOR
from constrained_k2.grammar.lark.custom_tool import INPUT
from constrained_k2.grammar.plan.leaves import Effort
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.coverage import Coverage
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

# Bytes of a compiled grammar, without its lexer, for each character of its text: 20 to 80 were measured.
_COST_FACTOR = 40
_COST_FLOOR = 40_000
_MAX_DIGESTS = 4  # schemas of one shared grammar that the log names
_REMEDIES: dict[RefusalKind, str] = {"size": "Declare fewer properties, or split the tool"}
_logger = logging.getLogger(__name__)
_MEASURED_AFTER_NS = 4_000_000  # of lexer work, in which the lexer grows by 1 MB at most; measuring takes 0.1 ms


class LLGuidanceEngine:
    """Compiles schemas with LLGuidance. Implements :class:`~constrained_k2.engines.protocol.Engine`.

    The format's ``engine_stop`` is the engine's stop token, so masks allow it exactly when the arguments may end.
    """

    name: EngineName = "llguidance"
    clock = staticmethod(time.thread_time)

    def __init__(self, vocabulary: Vocabulary, threads: int | None = None, mask_cache_bytes: int = 64 << 20) -> None:
        if type(mask_cache_bytes) is not int or mask_cache_bytes < 0:
            raise InvalidRequest(f"got {mask_cache_bytes!r}", "mask_cache_bytes", "Use a number of bytes, 0 or more")
        self.mask_threads = MaskThreads(threads)
        self.tokenizer = build_tokenizer(vocabulary, vocabulary.format.engine_stop)
        self.mask_cache = MaskCache(vocabulary, mask_cache_bytes, self.tokenizer)
        opening = [vocabulary.special_tokens[OPEN]] if OPEN in vocabulary.special_tokens else []
        self._probed_ids: dict[ArgumentEncoding, list[list[int]]] = {
            "json": [vocabulary.encode(text) for text in ("", "{", '"')],
            "xtml": [[], opening + vocabulary.encode(f"{ARGUMENT} key="), vocabulary.encode('"')],
        }
        separator = [vocabulary.special_tokens[SEPARATOR]] if SEPARATOR in vocabulary.special_tokens else []
        self._before_text: dict[ArgumentEncoding | None, list[int]] = {
            None: [],
            "json": vocabulary.encode(f'{{"{INPUT}": "'),
            "xtml": opening + vocabulary.encode(f'{ARGUMENT} key="{INPUT}" type="string"') + separator,
        }
        self._patterns = Patterns(self.tokenizer, self.mask_cache.is_read)
        # The grammars in use, by text and exactness: schemas that differ only in their descriptions share one.
        self._compiled: WeakValueDictionary[tuple[str, Effort], LLGuidanceGrammar] = WeakValueDictionary()
        self._any_grammars: dict[tuple[ArgumentEncoding, bool], LLGuidanceGrammar] = {}
        self._making_any = threading.Lock()

    @property
    def cached_bytes(self) -> int:
        return self.mask_cache.spent

    def forget(self) -> None:
        self.mask_cache.clear()
        self._compiled.clear()
        self._any_grammars.clear()

    def compile(
        self, schema: str, undeclared_keys: UndeclaredKeys = "allow", encoding: ArgumentEncoding = "json"
    ) -> "LLGuidanceGrammar":
        document = json.loads(schema)
        grammar = self._compile(document, undeclared_keys, encoding)
        is_object = isinstance(document, dict) and document.get("type") == "object"
        grammar.make_any_fallback = partial(self._any, encoding, is_object=is_object)
        if grammar.effort == "exact":
            grammar.make_narrow_fallback = lambda: self._cheaper(
                json.loads(schema), undeclared_keys, encoding, "narrow"
            )
        return _named(grammar, schema)

    def _compile(
        self, document: Any, undeclared_keys: UndeclaredKeys, encoding: ArgumentEncoding
    ) -> "LLGuidanceGrammar":
        try:
            return self._probed(schema_grammar(document, self._patterns, undeclared_keys, encoding), encoding)
        except RecursionError:
            raise UnsupportedSchema("the schema is nested too deeply", "", "Flatten it", "", self.name) from None
        except Refused as error:
            efforts: tuple[Effort, ...] = ("narrow", "relaxed") if error.kind == "lexer" else ()
            eased = (self._cheaper(document, undeclared_keys, encoding, effort) for effort in efforts)
            if (grammar := next(filter(None, eased), None)) is not None:
                return grammar
            remedy = _REMEDIES.get(error.kind, "Remove or rewrite the named part, or leave the tool out")
            cause = f"LLGuidance has no grammar for this schema: {error.cause}"
            raise UnsupportedSchema(cause, "", remedy, "", self.name) from None

    def _cheaper(
        self, document: Any, undeclared_keys: UndeclaredKeys, encoding: ArgumentEncoding, effort: Effort
    ) -> "LLGuidanceGrammar | None":
        """A grammar whose lexer costs less; None if none compiles. It has no DFA, since few schemas need it."""
        with suppress(*COMPILE_ERRORS):
            source = schema_grammar(document, self._patterns, undeclared_keys, encoding, effort)
            return self._probed(replace(source, model=None, is_simple=False), encoding)
        return None

    def _any(self, encoding: ArgumentEncoding, *, is_object: bool) -> "LLGuidanceGrammar":
        """The last fallback: any JSON object (or value), shared by all schemas."""
        with self._making_any:
            found = self._any_grammars.get((encoding, is_object))
            if found is None:
                source = any_text(self._patterns, encoding, is_object=is_object)
                found = self._any_grammars[encoding, is_object] = self._probed(source, encoding)
        return found

    def compile_text(
        self, kind: Literal["regex", "lark"], text: str, encoding: ArgumentEncoding | None = None
    ) -> ClientTextGrammar:
        what = "regular expression" if kind == "regex" else "grammar"
        try:
            source = answer_grammar(kind, text) if encoding is None else custom_tool_grammar(kind, text, encoding)
            tokens = None if encoding == "xtml" else self.mask_cache.text_tokens
            grammar = ClientTextGrammar(self._probed(source, source.encoding), tokens)
            return self._tried(grammar, self._before_text[encoding])
        except Refused as error:
            problem = f"LLGuidance does not accept this {what}: {error.cause}"
            raise UnsupportedSchema(problem, "", f"Correct the {what}", "", self.name) from None

    def _tried(self, grammar: ClientTextGrammar, before: list[int]) -> ClientTextGrammar:
        """Compute the first mask of a client's grammar, so that a grammar that is too slow is refused here."""
        matcher = grammar.matcher("")
        if all(map(matcher.accept, before)):
            matcher.fill(np.zeros(words_per_row(len(self.mask_cache.classes)), np.int32))
            matcher.is_complete()
        return grammar

    def _probed(self, source: GrammarText, encoding: ArgumentEncoding = "json") -> "LLGuidanceGrammar":
        """Compile a grammar and compute its masks up to inside the first key: a few grammars fail only there."""
        shares_with = self._compiled.get((source.text, source.effort))
        grammar = LLGuidanceGrammar(self.tokenizer, source, self.mask_threads, self.mask_cache, shares_with)
        if shares_with is None and not source.is_simple:
            first = grammar.copy()
            for ids in self._probed_ids[encoding]:
                if first.try_consume_tokens(ids) == len(ids) and not first.is_error():
                    first.compute_bitmask()
            if first.is_error():
                raise refusal(first.get_error())
        grammar.measure()
        self._compiled.setdefault((source.text, source.effort), grammar)
        return grammar


def _named(grammar: "LLGuidanceGrammar", schema: str) -> "LLGuidanceGrammar":
    """Record a schema's digest in its grammar's DFA, so that a log line can name the schema."""
    if grammar.dfa is not None and len(grammar.dfa.digests) < _MAX_DIGESTS:
        grammar.dfa.digests[sha256(schema.encode(errors="backslashreplace")).hexdigest()[:16]] = None
    return grammar


class LLGuidanceGrammar:
    """One compiled schema. Implements :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.

    ``shares_with`` is a grammar with the same text. This one shares its lexer, unless it is simple and thus not yet
    compiled. It shares its DFA if the DFA states of both depend on equal data (``states_by``).

    Copies of a prepared matcher are cheap (10 us) but share one lexer, and some patterns exhaust a lexer's states
    after dozens of copies. Then :meth:`renew` builds a new prototype.
    """

    def __init__(
        self,
        tokenizer: llguidance.LLTokenizer,
        source: GrammarText,
        mask_threads: MaskThreads,
        cache: MaskCache,
        shares_with: "LLGuidanceGrammar | None" = None,
    ) -> None:
        self.mask_threads = mask_threads
        plan = self.plan = source.plan
        # The data that DFA states depend on. It is not the whole plan, which also has the schema's order of keys.
        self.states_by = (source.model, source.direct, plan and (plan.item_paths, plan.has_open_keys))
        self.dfa: LazyDfa | None = None  # shared by all matchers of this grammar
        if source.model is not None:
            shared = None if shares_with is None or shares_with.states_by != self.states_by else shares_with.dfa
            self.dfa = shared or cache.dfa(source.model, source.direct)
        self.token_classes = cache.classes
        self.any_tokenization = source.any_tokenization
        self.text_grammar = source.text_grammar
        self._is_xml = source.encoding == "xtml"
        self._source = source
        self.effort: Effort = source.effort
        self._limits = CLIENT_LIMITS if source.is_clients else LIMITS if source.effort == "exact" else EASED_LIMITS
        self._coverage: Coverage | None = None  # None: the source's coverage
        # Build the fallback grammars when first needed.
        self.make_narrow_fallback: Callable[[], LLGuidanceGrammar | None] | None = None
        self.make_any_fallback: Callable[[], LLGuidanceGrammar] | None = None
        self._narrow: LLGuidanceGrammar | None = None
        self._has_failed = False
        self.token = cache.token
        self._paths = NO_PATHS
        if plan is not None and plan.item_paths:
            self._paths = ItemPaths(plan.item_paths, plan.root, is_xml=self._is_xml)
        is_compared = plan is not None and (plan.has_open_keys or bool(plan.item_paths))
        self._written_tokens = cache.written_tokens() if is_compared else None
        self._tokenizer = tokenizer
        self._reading = threading.Lock()
        # A simple grammar is compiled when a mask first needs LLGuidance.
        self._prototype = None if source.is_simple else self._new() if shares_with is None else shares_with.copy()
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
        prototype = self._prototype
        self.cost_bytes = self._text_bytes + (0 if prototype is None else lexer_bytes(prototype))
        self.cost_bytes += 0 if self._narrow is None else self._narrow.cost_bytes
        self.cost_bytes += 0 if self.text_grammar is None else self.text_grammar.cost_bytes
        self.on_growth(self.cost_bytes)

    def following(self, *, may_relax: bool) -> "Iterator[LLGuidanceGrammar]":
        """Yield the fallback grammars, most exact first.

        ``may_relax``: False for a strict tool, which gets no fallback that allows more than its schema.
        """
        with self._reading:
            if self.make_narrow_fallback is not None:
                self._narrow, self.make_narrow_fallback = self.make_narrow_fallback(), None
                if self._narrow is not None:
                    owner = ref(self)
                    self._narrow.make_any_fallback = self.make_any_fallback
                    self._narrow.on_growth = lambda _: None if (found := owner()) is None else found.measure()
                    self.measure()
        if self._narrow is not None:
            yield self._narrow
        if may_relax and self.make_any_fallback is not None:
            yield self.make_any_fallback()

    def log_failure(self, location: str, problem: str, following: "LLGuidanceGrammar") -> None:
        """Log, once, that a call continues with the fallback ``following``."""
        if not self._has_failed:
            self._has_failed = True
            how = "without long strings that have patterns" if following is self._narrow else "as any JSON"
            _logger.warning("%s: LLGuidance failed in a call's arguments, which go on %s: %s", location, how, problem)

    @property
    def text(self) -> str:
        """The grammar as LLGuidance reads it: JSON around Lark or a schema."""
        return self._source.text

    @property
    def coverage(self) -> Coverage:
        """The coverage of each keyword of the schema."""
        return self._coverage or self._source.coverage

    @coverage.setter
    def coverage(self, coverage: Coverage) -> None:
        self._coverage = coverage

    def matcher(self, location: str, *, may_relax: bool = False) -> LLGuidanceMatcher:
        tokens, written = self._written_tokens, None
        if tokens is not None:
            written = WrittenFilter(tokens, self._paths, is_xml=self._is_xml, token=self.token)
        return LLGuidanceMatcher(self, location, may_relax=may_relax, written=written)

    def copy(self) -> llguidance.LLMatcher:
        """Return a copy of the prototype, at the start of the arguments."""
        if self._prototype is None:
            with self._reading:
                self._prototype = self._prototype or self._new()
            self.measure()
        return self._prototype.deep_copy()

    def renew(self) -> llguidance.LLMatcher:
        """Return a matcher with a new lexer, which becomes the prototype of later copies."""
        renewed = self._new()
        if not renewed.is_error():
            self._prototype = renewed
            self.measure()
        return renewed.deep_copy()

    def forced_ids(self, matcher: llguidance.LLMatcher) -> list[int]:
        """Return the forced tokens in canonical tokenization; an empty list if the grammar may force a long text."""
        if self._source.has_long_texts:
            return []
        if not self.any_tokenization:
            return list(matcher.compute_ff_tokens())
        # A copy: with "no_forcing" (LLGuidance 1.7.6), a matcher's masks are wrong after it has looked ahead.
        return forced_ids(matcher.deep_copy().compute_ff_bytes(), self._tokenizer.tokenize_bytes)

    def _new(self) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, self.text, log_level=0, limits=self._limits)
