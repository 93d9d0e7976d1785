"""A schema as a grammar that LLGuidance takes: ours, or that of its own JSON Schema compiler."""

import json
from dataclasses import dataclass
from typing import Any

import llguidance

from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.grammar.lark import LarkWriter
from constrained_k2.grammar.patterns import Untranslatable, found_anywhere
from constrained_k2.grammar.plan import GrammarPlan
from constrained_k2.schema.coverage import Coverage, Status, coverage_of, keyword_uses
from constrained_k2.schema.deep_stack import check_is_awaited
from constrained_k2.schema.document import SchemaDocument
from constrained_k2.schema.normalize import Normalizer
from constrained_k2.schema.own_compilers import prepare

# All of LLGuidance's JSON options, so that nothing in a user's schema can steer the compiler ("x-guidance").
_JSON_OPTIONS: Any = {  # llguidance's JsonCompileOptions, a type that exists in its stubs only
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "coerce_one_of": False,
}
_PATTERNS_KEPT = 256
# Fewer symbols than by default, so that a schema of 100 bytes ("maxItems": 100000) is refused within 0.2 s instead of
# building for seconds; more alternatives at one place, since objects have thousands of optional properties.
LIMITS = llguidance.LLParserLimits(max_grammar_size=50_000, max_items_in_row=20_000, step_max_items=200_000)
_NOTHING = "NoExtensionBias"  # what LLGuidance says where not one token can come first
_LEAKY_FORMATS = frozenset({"date", "date-time", "time", "hostname"})


class Refused(Exception):
    """LLGuidance does not take this grammar; the message is its own."""


@dataclass(frozen=True, slots=True)
class GrammarText:
    """A grammar as LLGuidance takes it.

    Attributes:
        text: The grammar.
        coverage: What became of each keyword.
        plan: What its states depend on; None of LLGuidance's own.
    """

    text: str
    coverage: Coverage
    plan: GrammarPlan | None

    @property
    def any_order(self) -> bool:
        """Whether it is ours, with properties in any order."""
        return self.plan is not None


def our_text(document: Any, patterns: "Patterns") -> GrammarText:
    """The grammar of ours.

    Args:
        document: The decoded schema.
        patterns: What tells whether patterns match.

    Raises:
        UnsupportedSchema: The schema is wrong, or nothing satisfies it.
        SchemaTooCostly: It unfolds into too much.
    """
    normalizer = Normalizer(SchemaDocument(document), patterns.is_found)
    writer, root = LarkWriter(normalizer, patterns.has_match), frozenset({("#", True)})
    text = writer.write(root)
    coverage = coverage_of(normalizer.document, "llguidance", normalizer.notes)
    return GrammarText(llguidance.LLMatcher.grammar_from_lark(text), coverage, writer.plans.plan(root))


def own_text(document: Any) -> GrammarText:
    """The grammar of LLGuidance's own JSON Schema compiler: properties in the schema's order.

    Raises:
        Refused: It does not know a keyword, or would count wrongly.
    """
    known = SchemaDocument(document)
    try:
        schema = json.loads(json.dumps(document))
        prepare(schema)
        schema.pop("x-guidance", None)
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_OPTIONS)
    except (ValueError, UnsupportedSchema, SchemaTooCostly) as error:
        raise Refused(str(error)) from error
    return GrammarText(text, coverage_of(known, "llguidance", _own_notes(known)), plan=None)


def _own_notes(document: SchemaDocument) -> dict[str, tuple[Status, str]]:
    """What LLGuidance (1.7.6) itself relaxes: measured on the JSON-Schema-Test-Suite."""
    notes: dict[str, tuple[Status, str]] = {}
    for pointer in keyword_uses(document):
        parent, _, keyword = pointer.rpartition("/")
        schema = document.at(parent)
        if keyword == "format" and isinstance(schema["format"], str) and schema["format"] in _LEAKY_FORMATS:
            notes[pointer] = "relaxed", f"the engine lets some wrong values of {schema['format']!r} through"
        elif keyword == "properties" and schema.get("additionalProperties", True) is not False:
            notes[pointer] = "relaxed", "the engine lets a declared key come again, spelled with escapes"
        elif keyword in {"exclusiveMinimum", "exclusiveMaximum"}:
            notes[pointer] = "narrowed", "numbers within a millionth of the bound may not be written"
    return notes


def _reason(message: str) -> str:
    """The last line of an error of LLGuidance's, which says what the matter is."""
    return message.strip().splitlines()[-1].removeprefix("error: ")[:200] if message.strip() else "not supported"


class Patterns:
    """Whether a pattern is found in a text, by LLGuidance itself: no pattern makes it slow, as Python's can."""

    def __init__(self) -> None:
        self._tokenizer = llguidance.LLTokenizer("byte")
        self._matchers: dict[str, llguidance.LLMatcher] = {}
        self._has_matches: dict[str, bool] = {}

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

    def has_match(self, expression: str) -> bool:
        """Whether any text matches a terminal's expression; so it is taken to be where LLGuidance cannot tell."""
        known = self._has_matches.get(expression)
        if known is None:
            check_is_awaited()
            grammar = llguidance.LLMatcher.grammar_from_lark(f"start: SOME\nSOME: {expression}")
            matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
            if not matcher.is_error():
                matcher.compute_bitmask()
            known = not (matcher.is_error() and _NOTHING in matcher.get_error())
            if len(self._has_matches) >= _PATTERNS_KEPT:
                self._has_matches.clear()
            self._has_matches[expression] = known
        return known

    def _prepare(self, pattern: str) -> llguidance.LLMatcher:
        """A matcher of the JSON strings in which a pattern is found."""
        check_is_awaited()
        try:
            grammar = llguidance.LLMatcher.grammar_from_lark(f"start: FOUND\nFOUND: {found_anywhere(pattern)}")
        except Untranslatable:
            schema = {"type": "string", "pattern": pattern}
            grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_OPTIONS)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise UnsupportedSchema(
                f"the pattern {pattern[:80]!r}: {_reason(matcher.get_error())}",
                "",
                "Rewrite it without look-around and back-references",
                "pattern",
                "llguidance",
            )
        if len(self._matchers) >= _PATTERNS_KEPT:
            self._matchers.clear()
        self._matchers[pattern] = matcher
        return matcher
