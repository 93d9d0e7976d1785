"""The causes that forbid a token, with advice: JSON Schema keywords, and a closed list of others."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Self

from constrained_k2.schema.keywords import KEYWORDS


class Cause(StrEnum):
    """A cause other than a keyword of JSON Schema; ``meaning`` says it in a sentence."""

    meaning: str

    UNKNOWN_KEY = "unknown key", "a key that the schema does not declare, if `undeclared_keys` forbids such keys"
    REPEATED_KEY = "repeated key", "a key that the object already has"
    SYNTAX = "syntax", "text that no arguments can contain, whatever their schema"
    BLANKS = "blanks", "more blanks than are allowed between the parts of JSON"
    MARKER_IN_STRING = "marker in a string", "a special token within a string or key"
    MARKER = "marker", "a special token, although none or only another one is allowed"
    END_OF_CALL = "end of the call", "the end of a call whose arguments are not complete"
    END_OF_TURN = "end of the turn", "the end of the turn, although something must come first"
    CALL_HEADER = "call header", "text that does not begin a call's header"
    UNDECLARED_NAME = "undeclared name", "a function that the request does not declare"
    INDEX = "index", "an index of the call other than the next one"
    CALL_REQUIRED = "call required", "text, or the end of the turn, although `tool_choice` demands a call"
    NO_CALLS = "no calls", "a call, although the request allows none"
    NO_MORE_CALLS = "no more calls", "another call than `parallel_tool_calls` or `max_calls` allows"
    REPEATED_CALL = "repeated call", "a call that the turn has already, if `repeated_calls` forbids repeated calls"
    NO_REASONING = "no reasoning", "reasoning, although the request does not ask for it"
    TEXT_BETWEEN_MARKERS = "text between markers", "text, although a special token must come"
    ANSWER_FORMAT = "answer format", "text that the requested response format does not allow"
    SPLIT = "split into tokens", "the only text that may follow, split into other tokens than the tokenizer's"
    THINKING_BUDGET = "thinking budget", "reasoning beyond its budget of tokens"
    TOKEN_LIMITS = "token limits", "the end of the token budget, or tokens that the request excludes"

    def __new__(cls, name: str, meaning: str) -> Self:
        """Make a string of the name."""
        cause = str.__new__(cls, name)
        cause._value_, cause.meaning = name, meaning
        return cause


OTHER_CAUSES: Mapping[str, str] = {cause.value: cause.meaning for cause in Cause}
"""Cause -> its meaning."""

APPLICATORS = frozenset({
    "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "properties",
    "patternProperties", "items", "prefixItems", "additionalItems",
})  # fmt: skip
"""Keywords that only apply subschemas: named only if no keyword of these subschemas is to blame."""

OPENS_OBJECTS = frozenset({"additionalProperties", "unevaluatedProperties"})
"""Keywords whose removal leaves undeclared keys to ``undeclared_keys``, which a test then sets to allow them."""

ASSERTIONS = KEYWORDS.keys() - APPLICATORS
"""Keywords that by themselves forbid values."""

_ADVICE_GROUPS: Mapping[tuple[str, ...], str] = {
    ("enum", "const"): "Add the wanted value to the enum, or say its members in the description.",
    ("type",): "Say the type in the description, with an example; or allow the wanted type too.",
    ("pattern", "format"): "Say the form in the description, with an example; or drop the keyword.",
    ("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        "Say the bound and the unit in the description, or widen the bound.",
    ("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"):
        "Say in the description how many items, and which, are expected; or widen the bound.",
    ("required", "minProperties", "dependentRequired", "dependencies", "dependentSchemas"):
        "Say in the description how to fill the key when the user names no value, or make it optional.",
    ("unknown key", "additionalProperties", "unevaluatedProperties", "propertyNames", "patternProperties",
     "properties", "maxProperties", "not"): "Declare the wanted key, or rename the declared one to it.",
    ("anyOf", "oneOf", "allOf", "if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef"):
        "Split the tool by its alternatives, or say in the description which one is due when.",
    ("items", "prefixItems", "additionalItems", "unevaluatedItems"):
        "Say in the description what an item is, with an example.",
    ("repeated key",): "Rename keys that are alike.",
    ("undeclared name",): "Rename the tool to the wanted name, or declare a tool of that name.",
    ("index", "call header"): "Nothing to do in the tools. Check the history's call ids with `constrained-k2 doctor`.",
    ("token limits",): "Raise the request's max_tokens, or exclude fewer tokens.",
    ("thinking budget",): "Raise the request's thinking budget.",
    ("call required",): 'Send tool_choice "auto" if an answer without a call is right.',
    ("no calls",): 'Send tool_choice "auto" if a call is right.',
    ("no more calls",): "Allow parallel_tool_calls, or more of max_calls, if more calls are right.",
    ("repeated call",): "Leave repeated_calls out if equal calls are right.",
    ("no reasoning",): "Allow thinking if reasoning is right.",
    ("answer format",): "Describe the response format in the prompt.",
    ("end of the call",): "Say in the description which keys are required, or make them optional.",
    ("end of the turn", "text between markers"): "Look at the answers: the model would end or go on elsewhere.",
    ("marker in a string", "marker", "syntax", "blanks", "split into tokens"):
        "Nothing to do in the tools: the constraint keeps the form.",
}  # fmt: skip
ADVICE: Mapping[str, str] = {cause: text for causes, text in _ADVICE_GROUPS.items() for cause in causes}
"""Keyword or cause -> what its author can do."""


def advice(keywords: Iterable[str]) -> str:
    """Return the advice to a tool's author for the first keyword or cause that has advice."""
    known = (ADVICE[each] for each in keywords if each in ADVICE)
    return next(known, "Compare what was wanted with the tool's description.")
