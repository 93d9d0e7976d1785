"""LLGuidance as the engine: it matches grammars of ours, and those of its own JSON Schema compiler behind them."""

import json
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.grammar.lark import CannotWrite, LarkWriter
from constrained_k2.schema.coverage import Coverage, coverage_of
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.screen import check_open_counts
from constrained_k2.tokenizer_files import SPLIT_PATTERN, TiktokenEncoder
from constrained_k2.vocabulary import Vocabulary

# All of LLGuidance's JSON options, so that nothing in a user's schema can steer the compiler ("x-guidance").
_JSON_OPTIONS: Any = {  # llguidance's JsonCompileOptions, a type that exists in its stubs only
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "coerce_one_of": False,
}
_PATTERNS_KEPT = 256
_FIRST_STEPS = ("", "{", '"')
# Fewer symbols than by default, so that a schema of 100 bytes ("maxItems": 100000) is refused within 0.2 s instead of
# building for seconds; more alternatives at one place, since objects have thousands of optional properties.
_LIMITS = llguidance.LLParserLimits(max_grammar_size=50_000, max_items_in_row=20_000, step_max_items=200_000)
# What a compiled grammar with its lexer holds: 207 KB in the mean over 258 public tools with 1.2 KB of grammar text
# each, on the real vocabulary. The share of the text is a guess; the floor makes the mean come out.
_COST_FACTOR = 40
_COST_FLOOR = 160 << 10


class LLGuidanceEngine:
    """Schemas compiled by LLGuidance.

    Args:
        vocabulary: The model's vocabulary. Its ``<|tool_call_end|>`` is made the engine's stop token, so the engine
            itself opens the exit when the JSON is complete.
    """

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokenizer = _tokenizer(vocabulary)
        self._encode = vocabulary.encode
        self._patterns = _Patterns()

    def compile(self, schema: str) -> "LLGuidanceGrammar":
        """See :class:`~constrained_k2.engines.protocol.Engine`.

        The grammar is ours wherever it can be exact: any property order, every keyword kept. A schema of which ours
        would keep too little is given to LLGuidance's own compiler, which refuses what it does not know.
        """
        document = json.loads(schema)
        try:
            return self._probed(self._exact_grammar(document))
        except (CannotWrite, SchemaTooCostly, RecursionError):
            own = self._own_grammar(document)
        try:
            return self._probed(own)
        except CannotWrite as error:
            raise self._refusal(str(error)) from error

    def _exact_grammar(self, document: Any) -> "LLGuidanceGrammar":
        """The grammar of ours.

        Raises:
            CannotWrite: It would not be exact.
            UnsupportedSchema: The schema is wrong, or nothing satisfies it.
            SchemaTooCostly: It has too many alternatives.
        """
        normalizer = Normalizer(SchemaDocument(document), self._patterns.is_found)
        text = LarkWriter(normalizer).write(frozenset({("#", True)}))
        coverage = coverage_of(normalizer.document, self.name, normalizer.notes)
        if coverage.relaxed:
            raise CannotWrite(f"{coverage.relaxed[0].pointer} would not be kept")
        return LLGuidanceGrammar(self.tokenizer, llguidance.LLMatcher.grammar_from_lark(text), coverage, any_order=True)

    def _own_grammar(self, document: Any) -> "LLGuidanceGrammar":
        """The grammar of LLGuidance's own JSON Schema compiler: properties in the schema's order."""
        check_open_counts(document)
        if isinstance(document, dict):
            document.pop("x-guidance", None)
        try:
            text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(document), overrides=_JSON_OPTIONS)
        except ValueError as error:
            raise self._refusal(str(error)) from error
        coverage = coverage_of(SchemaDocument(document), self.name, {})
        return LLGuidanceGrammar(self.tokenizer, text, coverage, any_order=False)

    def _probed(self, grammar: "LLGuidanceGrammar") -> "LLGuidanceGrammar":
        """The grammar, its first masks taken: a few fail only there.

        Raises:
            CannotWrite: LLGuidance does not take it.
        """
        first = grammar.copy()
        for text in _FIRST_STEPS:
            if first.try_consume_tokens(self._encode(text)) and not first.is_error():
                first.compute_bitmask()
        if first.is_error():
            raise CannotWrite(first.get_error())
        return grammar

    def _refusal(self, message: str) -> UnsupportedSchema:
        first_line = message.strip().splitlines()[0] if message.strip() else "unknown error"
        return UnsupportedSchema(
            f"no grammar can be built for this schema: {first_line[:300]}",
            "",
            "Remove or rewrite what is named, or leave the tool out",
            engine=self.name,
        )


class _Patterns:
    """Whether a pattern is found in a text, by LLGuidance itself: no pattern makes it slow, as Python's can."""

    def __init__(self) -> None:
        self._tokenizer = llguidance.LLTokenizer("byte")
        self._matchers: dict[str, llguidance.LLMatcher] = {}

    def is_found(self, pattern: str, text: str) -> bool:
        """See there.

        Raises:
            UnsupportedSchema: The pattern is none that LLGuidance knows.
            SchemaTooCostly: The pattern exhausts LLGuidance's lexer on this text.
        """
        spelled = list(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        matcher = self._matchers.get(pattern) or self._prepare(pattern)
        copy = matcher.deep_copy()
        taken = copy.try_consume_tokens(spelled)
        if copy.is_error():  # copies share one lexer, and this pattern has filled it: begin with a new one
            copy = self._prepare(pattern).deep_copy()
            taken = copy.try_consume_tokens(spelled)
        if copy.is_error():
            raise SchemaTooCostly(
                f"the engine cannot tell whether {pattern[:80]!r} is in {text[:40]!r}", "", "Simplify the pattern"
            )
        return taken == len(spelled) and copy.is_accepting()

    def _prepare(self, pattern: str) -> llguidance.LLMatcher:
        """A matcher of the JSON strings in which a pattern is found."""
        schema = {"type": "string", "pattern": pattern}
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_OPTIONS)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise UnsupportedSchema(
                f"the pattern {pattern[:80]!r} is not supported: {matcher.get_error().strip()[:200]}",
                "",
                "Rewrite it without look-around and back-references",
                "pattern",
                "llguidance",
            )
        if len(self._matchers) >= _PATTERNS_KEPT:
            self._matchers.clear()
        self._matchers[pattern] = matcher
        return matcher


class LLGuidanceGrammar:
    """One compiled schema.

    Copies of a prepared matcher are cheap (10 us) but share one lexer, and some patterns exhaust a lexer's states
    after dozens of copies; then a new prototype is built (see :meth:`renew`).

    Attributes:
        any_order: Whether it is a grammar of ours, in which properties come in any order.
        coverage: See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.
        cost_bytes: See :class:`~constrained_k2.engines.protocol.ArgumentGrammar`.
    """

    def __init__(self, tokenizer: llguidance.LLTokenizer, text: str, coverage: Coverage, *, any_order: bool) -> None:
        self.any_order = any_order
        self.coverage = coverage
        self._tokenizer = tokenizer
        self._text = text
        self._prototype = self._new()
        self.cost_bytes = _COST_FLOOR + _COST_FACTOR * len(text)

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
        return llguidance.LLMatcher(self._tokenizer, self._text, log_level=0, limits=_LIMITS)


class LLGuidanceMatcher:
    """One call's arguments. An error of the shared lexer is answered once by a new one, with the tokens replayed."""

    __slots__ = ("_grammar", "_ids", "_matcher", "_place")

    def __init__(self, grammar: LLGuidanceGrammar, place: str, matcher: llguidance.LLMatcher, ids: list[int]) -> None:
        self._grammar = grammar
        self._place = place
        self._matcher = matcher
        self._ids = ids

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            self._rebuild()
            self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            self._raise_on_error()

    def accept(self, token_id: int) -> bool:
        """See :class:`~constrained_k2.engines.protocol.ArgumentMatcher`."""
        taken = self._matcher.try_consume_tokens([token_id])
        if not taken and self._matcher.is_error():
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


def _tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """The vocabulary as LLGuidance takes it; special tokens are no text to it."""
    encoder = vocabulary.encoder
    slices = llguidance.LLTokenizer.json_slices()
    if isinstance(encoder, TiktokenEncoder):
        native: llguidance.LLTokenizer = llguidance.LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]
            encoder=encoder.ranks,
            special_tokens=vocabulary.special_tokens,
            pattern=SPLIT_PATTERN,
            eos_token=vocabulary.format.call_end,
            n_vocab=vocabulary.size,
            slices=slices,
        )
        return native
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_WrappedVocabulary(vocabulary)), n_vocab=vocabulary.size, slices=slices
    )


class _WrappedVocabulary:
    """What :class:`llguidance.TokenizerWrapper` reads of a tokenizer."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.format.call_end
        self.special_token_ids = list(vocabulary.unordinary_ids)
        self.tokens = [
            vocabulary.ordinary_bytes(token_id) or b"\xff<special_%d>" % token_id for token_id in range(vocabulary.size)
        ]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
