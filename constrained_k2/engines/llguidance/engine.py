"""The LLGuidance engine: our grammars first, those of its builtin JSON Schema compiler as the second choice."""

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal
from weakref import WeakValueDictionary

import llguidance

from constrained_k2.engines.llguidance.forced import forced_ids
from constrained_k2.engines.llguidance.grammar_text import (
    LIMITS,
    NEXT_BEST_LIMITS,
    GrammarText,
    Patterns,
    Refused,
    builtin_text,
    our_text,
    written_text,
)
from constrained_k2.engines.llguidance.keys_matcher import DistinctKeysMatcher
from constrained_k2.engines.llguidance.mask_cache import LazyDfa, MaskCache
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.engines.llguidance.next_best import NextBest
from constrained_k2.engines.llguidance.unique_matcher import UniqueItemsMatcher
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest, SchemaTooCostly, UnsupportedSchema
from constrained_k2.formats.kimi_k3 import ARGUMENT, OPEN, SEPARATOR
from constrained_k2.grammar.lark.writer import Effort
from constrained_k2.schema.coverage import Coverage
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.vocabulary.tokenizer_files import SPLIT_PATTERN, TiktokenEncoder
from constrained_k2.vocabulary.vocabulary import Vocabulary

# Memory of a compiled grammar with its lexer, which grows with use: 340 KB on average, measured as the growth of a
# process over 2,000 requests that call 600 schemas of public tools with 1.2 KB of grammar text each, on the real
# vocabulary. The share of the text is a guess; the floor adjusts it to the average.
_COST_FACTOR = 40
_COST_FLOOR = 320 << 10
_MAX_THREADS = 64
# Groups of tokens that LLGuidance allows at once, where they are parts of what a terminal goes on with: blanks, names,
# and the characters of JSON strings. Unlike LLGuidance's own, these lack what "." of ECMA-262 does not match.
_JSON_CHARACTER = r'[^"\\\x00-\x1F\x7F\u{2028}\u{2029}]'
_JSON_SLICES = [r"[\x20\x0A\x0D\x09]+", "[A-Za-z0-9_]{1,10}"]
_JSON_SLICES += [_JSON_CHARACTER + count for count in ("{1,10}", "{1,30}", "+")]
# The same for strings without escapes, beside LLGuidance's own: half the time of a mask if their length is limited.
_RAW_SLICES = ["(?s:.{1,10})", "(?s:.{1,30})"]
# The same for the keys of XML attributes, which hold no plain ampersand: a twentieth of the time. These groups are
# parts of those for JSON strings, and come before them: a group is used at once only if all of it is allowed.
_ATTRIBUTE_SLICES = [rf'[^"&\\\x00-\x1F\x7F]{count}' for count in ("{1,10}", "{1,30}", "+")]


class LLGuidanceEngine:
    """Compiles schemas with LLGuidance. Implements :class:`~constrained_k2.engines.protocol.Engine`.

    The format's ``engine_stop`` is the engine's stop token, so masks allow it exactly when the arguments may end.
    """

    name = "llguidance"
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
        self._patterns = Patterns(self.tokenizer, self.mask_cache.is_read)
        # The grammars in use, by their text and effort: schemas that differ in their descriptions alone share one.
        self._compiled: WeakValueDictionary[tuple[str, Effort], LLGuidanceGrammar] = WeakValueDictionary()

    @property
    def cached_bytes(self) -> int:
        return self.mask_cache.spent

    def forget(self) -> None:
        self.mask_cache.clear()
        self._compiled.clear()

    def compile(
        self, schema: str, undeclared_keys: UndeclaredKeys = "allow", encoding: ArgumentEncoding = "json"
    ) -> "LLGuidanceGrammar":
        """Compile a schema into our own grammar, or into LLGuidance's builtin one.

        Our own grammar allows any property order. The builtin one is used if ours fails, or if ours relaxes a keyword
        and the builtin one relaxes none. It writes JSON alone.
        """
        document = json.loads(schema)
        ours: LLGuidanceGrammar | None = None
        try:
            source = our_text(document, self._patterns, undeclared_keys, encoding)
            ours = self._probed(source, encoding)
            ours.next_best = NextBest(partial(self._eased, schema, undeclared_keys, encoding))
            if encoding == "xtml" or not source.is_well_formed or not ours.coverage.relaxed:
                return ours
        except RecursionError:
            problem: UnsupportedSchema | SchemaTooCostly = UnsupportedSchema(
                "the schema is nested too deeply", "", "Flatten it", "", self.name
            )
        except SchemaTooCostly as error:
            problem = error
        except Refused as error:
            remedy = "Remove or rewrite the named part, or leave the tool out"
            cause = (str(error).strip().splitlines() or ["unknown error"])[0][:300]
            cause = f"LLGuidance has no grammar for this schema: {cause}"
            problem = UnsupportedSchema(cause, "", remedy, "", self.name)
        if encoding == "json":
            reason = problem.problem if ours is None else _relaxed_by(ours.coverage)
            with suppress(Refused):
                return self._probed(builtin_text(document, reason, if_exact=ours is not None))
        if ours is not None:
            return ours
        if "fuel" in str(problem) or "lexer" in str(problem):  # LLGuidance's limits on regular expressions
            efforts: tuple[Effort, ...] = ("narrow", "relaxed")
            for effort in efforts:
                with suppress(ConstrainedK2Error, Refused, RecursionError):
                    return self._eased(schema, undeclared_keys, encoding, effort)
        raise problem

    def _eased(
        self, schema: str, undeclared_keys: UndeclaredKeys, encoding: ArgumentEncoding, effort: Effort
    ) -> "LLGuidanceGrammar":
        """Compile our own grammar with less effort. Its states are not cached: few calls get there."""
        source = our_text(json.loads(schema), self._patterns, undeclared_keys, encoding, effort)
        return self._probed(replace(source, model=None, is_simple=False), encoding)

    def compile_text(self, kind: Literal["regex", "lark"], text: str) -> "LLGuidanceGrammar":
        what = "regular expression" if kind == "regex" else "grammar"
        try:
            return self._probed(written_text(kind, text))
        except Refused as error:
            cause = (str(error).strip().splitlines() or ["unknown error"])[0][:300]
            problem = f"LLGuidance does not accept this {what}: {cause}"
            raise UnsupportedSchema(problem, "", f"Correct the {what}", "", self.name) from None

    def _probed(self, source: GrammarText, encoding: ArgumentEncoding = "json") -> "LLGuidanceGrammar":
        """Compile a grammar and compute its first masks, up to within the first key: a few grammars fail only then."""
        key = (source.text, source.effort)
        twin = self._compiled.get(key)
        grammar = LLGuidanceGrammar(self.tokenizer, source, self.mask_threads, self.mask_cache, twin)
        if twin is None and not source.is_simple:
            first = grammar.copy()
            for ids in self._probed_ids[encoding]:
                if first.try_consume_tokens(ids) == len(ids) and not first.is_error():
                    first.compute_bitmask()
            if first.is_error():
                raise Refused(first.get_error())
        self._compiled.setdefault(key, grammar)
        return grammar


def _relaxed_by(coverage: Coverage) -> str:
    """Return the first keyword that a grammar relaxes, as the reason to use another one."""
    use = coverage.relaxed[0]
    return f"ours relaxes {use.pointer}: {use.reason}"


class MaskThreads:
    """Threads that compute a batch's masks without the interpreter lock; by default one for each CPU, at most eight."""

    def __init__(self, count: int | None = None) -> None:
        if count is not None and (type(count) is not int or not 1 <= count <= _MAX_THREADS):
            raise InvalidRequest(f"got {count!r}", "threads", f"Use 1 to {_MAX_THREADS}, or None for the CPUs")
        self.count = count or min(len(os.sched_getaffinity(0)), 8)
        self._executor: llguidance.LLExecutor | None = None
        self._owner = 0

    def executor(self) -> llguidance.LLExecutor:
        """Return LLGuidance's thread pool of this process: a forked process has none of its parent's threads."""
        if self._executor is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._executor = llguidance.LLExecutor(self.count)
        return self._executor


class LLGuidanceGrammar:
    """One compiled schema. Implements :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.

    ``twin`` is a grammar of the same text and effort, whose lexer and masks it shares.

    Copies of a prepared matcher are cheap (10 us) but share one lexer, and some patterns exhaust a lexer's states
    after dozens of copies. Then :meth:`renew` builds a new prototype.
    """

    def __init__(
        self,
        tokenizer: llguidance.LLTokenizer,
        source: GrammarText,
        mask_threads: MaskThreads,
        cache: MaskCache,
        twin: "LLGuidanceGrammar | None" = None,
    ) -> None:
        self.mask_threads = mask_threads
        self.states_by = (
            source.model,
            source.direct,
            source.places,
            source.has_open_keys,
        )  # what the states of a text depend on
        self.dfa: LazyDfa | None = None  # shared by its matchers
        if twin is not None and twin.states_by == self.states_by:
            self.dfa = twin.dfa
        elif source.model is not None:
            self.dfa = cache.dfa(source.model, source.direct)
        self.token_classes = cache.classes
        self.allows_any_split = source.allows_any_split
        self.any_order = (
            source.model is not None or source.allows_any_split or source.effort != "exact"
        )  # properties may come in any order in our own grammars only
        self.text, self.coverage = source.text, source.coverage
        self.effort: Effort = source.effort
        self.next_best: NextBest | None = None  # where this grammar fails
        self.token = cache.token
        self._tracker = None if source.places is None else cache.tracker(source.places, is_xml=source.allows_any_split)
        self._key_tokens = cache.key_tokens() if source.has_open_keys or source.places is not None else None
        self._tokenizer = tokenizer
        self._reading = threading.Lock()
        # A simple grammar is read when a mask needs LLGuidance.
        self._prototype = None if source.is_simple else self._new() if twin is None else twin.copy()
        self.cost_bytes = _COST_FLOOR + _COST_FACTOR * len(source.text)

    def matcher(self, location: str, *, may_relax: bool = False) -> LLGuidanceMatcher:
        if self._key_tokens is None:
            return LLGuidanceMatcher(self, location, may_relax=may_relax)
        if self._tracker is None:
            return DistinctKeysMatcher(self, location, self._key_tokens, may_relax=may_relax)
        return UniqueItemsMatcher(self, location, self._key_tokens, self._tracker, may_relax=may_relax)

    def copy(self) -> llguidance.LLMatcher:
        """Return a copy of the prototype, at the start of the arguments."""
        with self._reading:
            self._prototype = self._prototype or self._new()
        return self._prototype.deep_copy()

    def renew(self) -> llguidance.LLMatcher:
        """Return a matcher with a new lexer, which becomes the prototype of later copies."""
        renewed = self._new()
        if not renewed.is_error():
            self._prototype = renewed
        return renewed.deep_copy()

    def forced_ids(self, matcher: llguidance.LLMatcher) -> list[int]:
        """Return tokens that every continuation begins with, in one of their splits if any is allowed."""
        if not self.allows_any_split:
            return list(matcher.compute_ff_tokens())
        # A copy: with "no_forcing" (LLGuidance 1.7.6), a matcher's masks are wrong after it has looked ahead.
        return forced_ids(matcher.deep_copy().compute_ff_bytes(), self._tokenizer.tokenize_bytes)

    def _new(self) -> llguidance.LLMatcher:
        limits = LIMITS if self.effort == "exact" else NEXT_BEST_LIMITS
        return llguidance.LLMatcher(self._tokenizer, self.text, log_level=0, limits=limits)


def build_tokenizer(vocabulary: Vocabulary, stop_id: int) -> llguidance.LLTokenizer:
    """Return LLGuidance's tokenizer of a vocabulary. Special tokens are never text; ``stop_id`` is the stop token."""
    encoder = vocabulary.encoder
    slices = _JSON_SLICES
    if SEPARATOR in vocabulary.special_tokens:
        slices = [*_ATTRIBUTE_SLICES, *llguidance.LLTokenizer.json_slices(), *_RAW_SLICES]
    if not isinstance(encoder, TiktokenEncoder):
        wrapper = llguidance.TokenizerWrapper(WrappedVocabulary(vocabulary, stop_id))
        return llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.size, slices=slices)
    native: llguidance.LLTokenizer = llguidance.LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]
        encoder=encoder.ranks,
        special_tokens=vocabulary.special_tokens,
        pattern=SPLIT_PATTERN,
        eos_token=stop_id,
        n_vocab=vocabulary.size,
        slices=slices,
    )
    return native


class WrappedVocabulary:
    """The interface that :class:`llguidance.TokenizerWrapper` reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, stop_id: int) -> None:
        self.eos_token_id = stop_id
        self.special_token_ids = list(vocabulary.unordinary_ids)
        self.tokens = [
            vocabulary.ordinary_bytes(token_id)
            or b"\xff" + (vocabulary.special_text(token_id) or f"<hole_{token_id}>").encode()
            for token_id in range(vocabulary.size)
        ]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
