"""LLGuidance engine: compiles schemas and clients' grammars; simplifies schemas that cost too much.

A schema becomes a Lark grammar with keys in any order and exact bounds.
"""

import json
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np

from constrained_k2.engines.llguidance.client_text import ClientTextGrammar
from constrained_k2.engines.llguidance.fallbacks import Fallbacks
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.grammar_text import (
    GrammarText,
    Patterns,
    answer_grammar,
    any_text,
    custom_tool_grammar,
    schema_grammar,
)
from constrained_k2.engines.llguidance.mask_cache import MaskCache
from constrained_k2.engines.llguidance.mask_threads import MaskThreads
from constrained_k2.engines.llguidance.refusal import COMPILE_ERRORS, RefusalKind, Refused, refusal
from constrained_k2.engines.llguidance.tokenizer import build_tokenizer
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.errors import InvalidRequest, UnsupportedSchema
from constrained_k2.formats.kimi_k3 import ARGUMENT, OPEN, SEPARATOR
from constrained_k2.grammar.lark.custom_tool import INPUT
from constrained_k2.grammar.plan.leaves import Effort
from constrained_k2.request.spec import EngineName
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.vocabulary.bitmask import words_per_row
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_DIGESTS = 4  # schemas of one shared grammar that the log names
_REMEDIES: dict[RefusalKind, str] = {"size": "Declare fewer properties, or split the tool"}


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
    ) -> LLGuidanceGrammar:
        document = json.loads(schema)
        grammar = self._compile(document, undeclared_keys, encoding)
        is_object = isinstance(document, dict) and document.get("type") == "object"
        make_narrow = partial(self._narrow, schema, undeclared_keys, encoding)
        make_any = partial(self._any, encoding, is_object=is_object)
        grammar.fallbacks = Fallbacks(make_any, make_narrow if grammar.source.effort == "exact" else None)
        return _named(grammar, schema)

    def _compile(self, document: Any, undeclared_keys: UndeclaredKeys, encoding: ArgumentEncoding) -> LLGuidanceGrammar:
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

    def _narrow(
        self, schema: str, undeclared_keys: UndeclaredKeys, encoding: ArgumentEncoding
    ) -> LLGuidanceGrammar | None:
        """The first fallback; None if it does not compile."""
        return self._cheaper(json.loads(schema), undeclared_keys, encoding, "narrow")

    def _cheaper(
        self, document: Any, undeclared_keys: UndeclaredKeys, encoding: ArgumentEncoding, effort: Effort
    ) -> LLGuidanceGrammar | None:
        """A grammar whose lexer costs less; None if it does not compile. It has no DFA, since few schemas need it."""
        with suppress(*COMPILE_ERRORS):
            source = schema_grammar(document, self._patterns, undeclared_keys, encoding, effort)
            return self._probed(replace(source, model=None, is_simple=False), encoding)
        return None

    def _any(self, encoding: ArgumentEncoding, *, is_object: bool) -> LLGuidanceGrammar:
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

    def _probed(self, source: GrammarText, encoding: ArgumentEncoding = "json") -> LLGuidanceGrammar:
        """Compile a grammar. A few fail later: unless it is simple or shared, compute masks up to the first key."""
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


def _named(grammar: LLGuidanceGrammar, schema: str) -> LLGuidanceGrammar:
    """Record a schema's digest in its grammar's DFA, so that a log line can name the schema."""
    if grammar.dfa is not None and len(grammar.dfa.digests) < _MAX_DIGESTS:
        grammar.dfa.digests[sha256(schema.encode(errors="backslashreplace")).hexdigest()[:16]] = None
    return grammar
