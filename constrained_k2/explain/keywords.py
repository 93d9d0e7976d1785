"""Names the causes that forbid a token: JSON Schema keywords, and a closed list of other causes."""

from constrained_k2.schema.keywords import KEYWORDS

UNKNOWN_KEY = "unknown key"
REPEATED_KEY = "repeated key"
SYNTAX = "syntax"
BLANKS = "blanks"
MARKER_IN_STRING = "marker in a string"
MARKER = "marker"
END_OF_CALL = "end of the call"
END_OF_TURN = "end of the turn"
CALL_HEADER = "call header"
UNDECLARED_NAME = "undeclared name"
INDEX = "index"
CALL_REQUIRED = "call required"
NO_CALLS = "no calls"
NO_MORE_CALLS = "no more calls"
REPEATED_CALL = "repeated call"
NO_REASONING = "no reasoning"
TEXT_BETWEEN_MARKERS = "text between markers"
ANSWER_FORMAT = "answer format"
SPLIT = "split into tokens"
THINKING_BUDGET = "thinking budget"
TOKEN_LIMITS = "token limits"  # noqa: S105 - tokens of a vocabulary

OTHER_CAUSES = {
    UNKNOWN_KEY: "a key that the schema does not declare, where `undeclared_keys` forbids those",
    REPEATED_KEY: "a key that the object already holds",
    SYNTAX: "text that no arguments can hold, whatever their schema",
    BLANKS: "more blanks than are allowed between the parts of JSON",
    MARKER_IN_STRING: "a special token within a string or key",
    MARKER: "a special token where none, or another one, may stand",
    END_OF_CALL: "the end of a call whose arguments are not complete",
    END_OF_TURN: "the end of the turn where something must come first",
    CALL_HEADER: "text that does not begin a call's header",
    UNDECLARED_NAME: "a function that the request does not declare",
    INDEX: "another index of the call than the next",
    CALL_REQUIRED: "text, or the end of the turn, where `tool_choice` demands a call",
    NO_CALLS: "a call where the request allows none",
    NO_MORE_CALLS: "another call than `parallel_tool_calls` or `max_calls` allows",
    REPEATED_CALL: "a call that the turn holds already, where `repeated_calls` forbids those",
    NO_REASONING: "reasoning where the request does not ask for it",
    TEXT_BETWEEN_MARKERS: "text where a special token must come",
    ANSWER_FORMAT: "text that is not of the form that the request asks for",
    SPLIT: "the only text that may follow, split into other tokens than the tokenizer's",
    THINKING_BUDGET: "reasoning beyond its budget of tokens",
    TOKEN_LIMITS: "the end of the token budget, or tokens that the request excludes",
}
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
