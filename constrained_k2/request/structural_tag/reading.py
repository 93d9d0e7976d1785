"""The result of reading a tag: what a turn may hold."""

from typing import Any, NamedTuple

from constrained_k2.request.structural_tag.forms import Grammar, JsonSchema, Or, Regex, Tags, Text

SPELLED_OUT = object()
"""Stands for the schema of arguments that a tag describes one by one, so that their schema is unknown."""


class ForeignTag(ValueError):
    """The tag was not built from a request that this package can reconstruct."""


class DescribedTurn(NamedTuple):
    """The turn that a tag describes."""

    calls: tuple[tuple[str, Any], ...]  # of these functions: name and schema; True for any arguments
    parallel: bool  # more than one call is allowed
    must_call: bool
    thinking: bool = False
    answer: Any = None  # the form of the answer


def listed_calls(form: Tags) -> tuple[Any, ...]:
    """The tags of a list of calls that is never empty."""
    if not form.at_least_one or not form.tags:
        raise ForeignTag("a section may be empty")
    return form.tags


def answer_body(form: Any) -> dict[str, Any]:
    """The form of an answer, as vLLM writes a request's ``response_format`` or ``structured_outputs``; {} for None."""
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
