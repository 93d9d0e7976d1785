"""Advice for a tool's author, by the schema keyword or other cause that forbade the model's tokens."""

from collections.abc import Iterable, Mapping

_GROUPS: Mapping[tuple[str, ...], str] = {
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
ADVICE: Mapping[str, str] = {cause: text for causes, text in _GROUPS.items() for cause in causes}
"""Keyword or cause -> what its author can do."""

_DEFAULT = "Compare what was wanted with the tool's description."


def advice(keywords: Iterable[str]) -> str:
    """The advice for the first of these keywords for which there is advice."""
    return next((ADVICE[each] for each in keywords if each in ADVICE), _DEFAULT)
