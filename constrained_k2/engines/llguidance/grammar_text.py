"""Writes Lark text of schemas and clients' grammars; matches schema patterns with LLGuidance."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import llguidance
from llguidance._lib import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from constrained_k2.engines.llguidance.direct.rules import DirectModel, direct_model
from constrained_k2.engines.llguidance.lexer_cost import LIMITS, MAX_GRAMMAR_SIZE, lexer_bytes
from constrained_k2.engines.llguidance.refusal import Refused, grammar_of, has_no_text
from constrained_k2.engines.llguidance.simple import is_simple
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.grammar.lark.custom_tool import custom_tool_text
from constrained_k2.grammar.lark.printer import print_plan
from constrained_k2.grammar.lark.terminals import NO_FORCING, alone
from constrained_k2.grammar.lark.text_grammar import TextGrammar, text_grammar
from constrained_k2.grammar.patterns.characters import Untranslatable
from constrained_k2.grammar.patterns.translation import found_anywhere
from constrained_k2.grammar.plan.leaves import Effort
from constrained_k2.grammar.plan.nodes import Plan
from constrained_k2.grammar.plan.planner import plan_schema
from constrained_k2.grammar.plan.planning import Planning
from constrained_k2.grammar.state_model import StateModel, state_model
from constrained_k2.schema.coverage import Coverage, KeywordUse, coverage_of
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.no_instances import write_some
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.shapes import Node
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.threads.interruptible import check_deadline

_ROOT: Node = frozenset({("#", True)})
_MAX_PATTERNS = 256
_PATTERN_BYTES, _BYTES_PER_CHARACTER = 16 << 20, 1000  # max memory of all lexers; estimate per character matched
_PROBED_TOKENS = 4
_MAX_TEXTS = 2048  # max cached results of pattern searches
_MAX_MEMBERS = MAX_GRAMMAR_SIZE // 2  # a JSON member takes 3 symbols or more (1.7.6), so LLGuidance would refuse more
# The strings, comments and regular expressions of a Lark grammar, in which "<" refers to no token.
_LARK_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\])+/", re.DOTALL)
_OPTIONS = re.compile(r"^%llguidance[ \t]*\{[^}\n]*\}", re.MULTILINE)  # no effect on matches
_MAX_EBNF = 1 << 16  # max characters to convert: a megabyte takes a second


@dataclass(frozen=True, slots=True)
class GrammarText:
    """A grammar for LLGuidance."""

    text: str  # Lark
    coverage: Coverage
    plan: Plan | None = None  # None if this package did not write it from a schema
    model: StateModel | None = None  # None if the grammar gets no DFA
    encoding: ArgumentEncoding = "json"
    has_long_texts: bool = False  # True if LLGuidance might force text of unlimited length
    is_clients: bool = False  # True if a client wrote it
    effort: Effort = "exact"
    direct: DirectModel | None = None  # for masks without LLGuidance; JSON only
    text_grammar: TextGrammar | None = None  # the rules of a client's grammar, to complete its text
    is_simple: bool = False  # True if it certainly compiles and no mask brings LLGuidance to a limit

    @property
    def any_tokenization(self) -> bool:
        """True if masks allow any tokenization of a forced text."""
        return self.encoding == "xtml" or self.has_long_texts


def schema_grammar(
    document: Any,
    patterns: "Patterns",
    undeclared_keys: UndeclaredKeys = "allow",
    encoding: ArgumentEncoding = "json",
    effort: Effort = "exact",
) -> GrammarText:
    """Write this package's grammar of a decoded schema."""

    def write(normalizer: Normalizer) -> GrammarText:
        planning = Planning(normalizer, patterns.has_match, patterns.can_begin, undeclared_keys, effort)
        plan = plan_schema(planning, _ROOT, is_xtml=encoding == "xtml")
        if encoding == "json" and plan.member_count > _MAX_MEMBERS:
            raise Refused(f"grammar size (number of symbols) too big: {plan.member_count} members", "size")
        lark = print_plan(plan)
        return GrammarText(
            grammar_of(lark),
            coverage_of(normalizer.document, "llguidance", normalizer.notes.found),
            plan,
            state_model(plan),
            encoding,
            has_long_texts=plan.has_long_texts,
            effort=effort,
            direct=None if plan.is_xtml or plan.has_long_texts else direct_model(plan),
            is_simple=is_simple(plan, lark, patterns.is_read),
        )

    return write_some(SchemaDocument(document), patterns.is_found, write)


def any_text(patterns: "Patterns", encoding: ArgumentEncoding, *, is_object: bool) -> GrammarText:
    """Write the grammar of any JSON object, or of any JSON value. It gets no DFA, since few calls reach it."""
    source = schema_grammar({"type": "object"} if is_object else {}, patterns, "allow", encoding)
    kind = "object" if is_object else "value"
    reason = f"LLGuidance failed while it wrote with the schema's grammar: any JSON {kind} is allowed"
    coverage = Coverage("llguidance", relaxed=(KeywordUse("#", reason),))
    return replace(source, coverage=coverage, model=None, is_simple=False)


def answer_grammar(kind: Literal["regex", "lark"], text: str) -> GrammarText:
    """Return the grammar of an answer that a request restricts by a regular expression or a Lark grammar.

    Raises:
        Refused: LLGuidance rejects it, or it refers to special tokens, which no answer may contain.
    """
    if kind == "lark":
        text = _lark(text)
    try:
        lark = f"start: /{regex_to_lark(text, '')}/" if kind == "regex" else text
    except UnicodeEncodeError as error:  # a lone surrogate
        raise Refused(str(error)) from error
    rules = text_grammar(kind, _OPTIONS.sub("", text) if kind == "lark" else text)
    return replace(_clients(f"{NO_FORCING}\n{lark}", "json"), text_grammar=rules)


def custom_tool_grammar(kind: Literal["regex", "lark"], text: str, encoding: ArgumentEncoding) -> GrammarText:
    """Return the grammar of a custom tool's arguments; raises as :func:`custom_tool_text`, or :class:`Refused`."""
    return replace(_clients(custom_tool_text(kind, text, encoding), encoding), text_grammar=text_grammar(kind, text))


def _clients(lark: str, encoding: ArgumentEncoding) -> GrammarText:
    coverage = Coverage("llguidance")
    return GrammarText(grammar_of(lark), coverage, encoding=encoding, has_long_texts=True, is_clients=True)


def _lark(text: str) -> str:
    """Return a grammar as Lark; xgrammar's EBNF is converted."""
    outside = _LARK_TEXT.sub("", text)
    if "::=" in outside:
        if len(text) > _MAX_EBNF:
            raise Refused(f"an EBNF grammar has at most {_MAX_EBNF} characters; write it as Lark")
        try:
            return gbnf_to_lark(text)
        except Exception as error:  # LLGuidance's converter raises plain exceptions
            raise Refused(f"as EBNF: {error}") from error
    if "<" in outside:
        raise Refused("it refers to a token by <…>; only text can be written in an answer")
    return text


class Patterns:
    """Matches patterns with LLGuidance: unlike Python's ``re``, no pattern makes it slow."""

    def __init__(
        self, tokenizer: llguidance.LLTokenizer | None = None, is_read: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.is_read = is_read  # returns True if LLGuidance compiles a terminal of strings
        self._tokenizer = llguidance.LLTokenizer("byte", slices=[])  # no masks of strings: slices would cost time
        self._writing = tokenizer or self._tokenizer
        self._matchers: dict[str, llguidance.LLMatcher] = {}
        self._matcher_bytes = 0  # estimated memory of the matchers' lexers
        self.has_match = lru_cache(_MAX_PATTERNS)(self._has_match)
        self.can_begin = lru_cache(_MAX_PATTERNS)(self._can_begin)
        self.is_found = lru_cache(_MAX_TEXTS)(self._is_found)

    def _is_found(self, pattern: str, text: str) -> bool:
        """Return True if a text contains a match."""
        spelled = list(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        for matchers in (self._matchers, {}):  # copies share a lexer: if this pattern has exhausted it, use a new one
            copy = (matchers.get(pattern) or self._prepare(pattern)).deep_copy()
            taken = copy.try_consume_tokens(spelled)
            self._matcher_bytes += _BYTES_PER_CHARACTER * taken
            if not copy.is_error():
                return taken == len(spelled) and copy.is_accepting()
        problem = f"LLGuidance cannot match the pattern {pattern[:80]!r} against {text[:40]!r}"
        raise SchemaTooCostly(problem, "", "Simplify the pattern")

    def _has_match(self, expression: str) -> bool:
        """Return True if some text matches a terminal's expression, or if LLGuidance cannot decide that."""
        check_deadline()
        matcher = llguidance.LLMatcher(self._tokenizer, grammar_of(alone(expression)), log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return not has_no_text(matcher)

    def _can_begin(self, expression: str, opening: str, *, is_long: bool) -> bool:
        """Return True if the masks after an opening, and after a few more tokens, stay within LLGuidance's limits."""
        check_deadline()
        header = f"{NO_FORCING}\n" if is_long else ""
        grammar = grammar_of(header + alone(expression))
        matcher = llguidance.LLMatcher(self._writing, grammar, log_level=0, limits=LIMITS)
        ids = list(self._writing.tokenize_str(opening))
        for _ in range(_PROBED_TOKENS):
            if matcher.is_error() or matcher.try_consume_tokens(ids) < len(ids) or matcher.is_stopped():
                break
            mask = matcher.compute_bitmask()
            ids = [next((8 * place + f"{byte:08b}"[::-1].index("1") for place, byte in enumerate(mask) if byte), 0)]
        return not matcher.is_error()

    def _prepare(self, pattern: str) -> llguidance.LLMatcher:
        """Build a matcher of the JSON strings that contain a match of a pattern."""
        check_deadline()
        try:
            grammar = grammar_of(f"start: FOUND\nFOUND: {found_anywhere(pattern)}")
        except Untranslatable as error:
            raise _unsupported(pattern, str(error)) from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            cause = (matcher.get_error().strip().splitlines() or ["not supported"])[-1]
            raise _unsupported(pattern, cause.removeprefix("error: ")[:200])
        if len(self._matchers) >= _MAX_PATTERNS or self._matcher_bytes > _PATTERN_BYTES:
            self._matchers.clear()
            self._matcher_bytes = 0
        self._matchers[pattern] = matcher
        self._matcher_bytes += lexer_bytes(matcher)
        return matcher


def _unsupported(pattern: str, reason: str) -> UnsupportedSchema:
    problem, remedy = f"the pattern {pattern[:80]!r}: {reason}", "Rewrite it without lookaround and back-references"
    return UnsupportedSchema(problem, "", remedy, "pattern", "llguidance")
