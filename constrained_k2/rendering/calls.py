"""Calls as the model writes them: the inverse of :func:`constrained_k2.parse_completion`."""

from collections.abc import Iterable

from constrained_k2.errors import InvalidRequest, MalformedCompletion
from constrained_k2.tools import ToolCall
from constrained_k2.vocabulary import Vocabulary


def render_tool_calls(calls: Iterable[ToolCall], vocabulary: Vocabulary) -> list[int]:
    """Write a tool-calls section.

    Args:
        calls: The calls, in order; their arguments are written as they are.
        vocabulary: The model's vocabulary.

    Returns:
        The section's token ids, from its first marker to its last, without a stop; empty for no calls. Special-token
        text inside arguments is encoded as plain text, so it parses back as what it was.

    Raises:
        MalformedCompletion: A call cannot be written: its name or index is not one the format has, or its arguments
            hold a lone surrogate.
    """
    markers = vocabulary.format
    ids: list[int] = []
    for number, call in enumerate(calls):
        try:
            header, arguments = vocabulary.encode(call.id), vocabulary.encode(call.arguments)
        except InvalidRequest as error:
            raise MalformedCompletion(error.problem, f"calls[{number}]", "Use a name and JSON text") from error
        ids += [markers.call_begin, *header, markers.argument_begin, *arguments, markers.call_end]
    return [markers.section_begin, *ids, markers.section_end] if ids else []
