"""The data read from a structural tag: the calls, reasoning and answer that a turn may contain."""

from typing import Any, NamedTuple

from constrained_k2.request.structural_tag.forms import Grammar, JsonSchema, Or, Regex, Tags, Text

SPELLED_OUT = object()
"""Replaces the schema of a function whose arguments a tag describes one by one, so that the schema is unknown."""


class ForeignTag(ValueError):
    """The tag was not built from a request that this package can reconstruct."""


class DescribedTurn(NamedTuple):
    """The turn that a tag describes."""

    calls: tuple[tuple[str, Any], ...]  # the name and schema of each function; True for any arguments
    parallel: bool  # more than one call is allowed
    must_call: bool
    thinking: bool = False
    answer: Any = None  # the response format


def listed_calls(form: Tags) -> tuple[Any, ...]:
    """The tags of a list of calls that is never empty."""
    if not form.at_least_one or not form.tags:
        raise ForeignTag("a section may be empty")
    return form.tags


def answer_body(form: Any) -> dict[str, Any]:
    """The response format as a request's ``response_format`` or ``structured_outputs``, as in vLLM; {} for None."""
    match form:
        case None:
            return {}
        case JsonSchema(schema, style="json"):
            return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        case Regex(pattern):
            return {"structured_outputs": {"regex": pattern}}
        case Grammar(grammar):
            return {"structured_outputs": {"grammar": grammar}}
        case Or(elements):
            texts = [element.value for element in elements if isinstance(element, Text)]
            if texts and len(texts) == len(elements):
                return {"structured_outputs": {"choice": texts}}
    raise ForeignTag("the answer has a form that no request asks for")
