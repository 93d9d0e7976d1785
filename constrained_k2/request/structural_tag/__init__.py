"""Reads tools, tool choice and response format from an xgrammar structural tag of Kimi's tool calls.

vLLM's Python and Rust front ends build such a tag for their Kimi tool parsers, and so does any gateway that calls
``xgrammar.get_model_structural_tag``. It contains every function's name, and says if text, several calls or reasoning
are allowed. A tag is read whole or refused, since a tag that differs in any part allows other answers.
"""

from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.request.structural_tag import json_calls, xtml_calls
from constrained_k2.request.structural_tag.forms import decode, excluded_texts
from constrained_k2.request.structural_tag.reading import SPELLED_OUT, ForeignTag, answer_body

__all__ = ["read_structural_tag"]

_LOCATION = "structured_outputs.structural_tag"
_READERS = {"json": json_calls.read_turn, "xtml": xtml_calls.read_turn}


def read_structural_tag(
    tag: str | Mapping[str, Any],
    wire_format: WireFormat = KIMI_K2,
    declared: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The request body that a structural tag was built from, for :meth:`ToolCallSpec.from_openai`.

    The body has ``tools``, ``tool_choice``, ``parallel_tool_calls``, and, if the tag says so, ``thinking`` and the
    response format. A function whose arguments the tag leaves free has no ``parameters``.

    Args:
        tag: The tag, as JSON text or decoded.
        wire_format: The format that the model writes.
        declared: Function -> its ``parameters`` and ``strict``, if known from elsewhere. They are needed for functions
            whose arguments the tag leaves free, or describes without their schema.

    Raises:
        InvalidRequest: The tag was not built from a request that this package can reconstruct, or a schema is unknown.
    """
    try:
        form = decode(tag)
        if foreign := next((text for text in excluded_texts(form) if not _is_marker(text, wire_format)), None):
            raise ForeignTag(f"the text {foreign!r} is excluded")
        turn = _READERS[wire_format.argument_encoding](form)
        answer = answer_body(turn.answer)
    except (ValueError, RecursionError) as error:  # msgspec's and json's are ValueErrors
        raise InvalidRequest(f"is not {wire_format.name}'s: {str(error)[:200]}", _LOCATION) from error
    body: dict[str, Any] = {
        "tools": [_tool(name, schema, (declared or {}).get(name)) for name, schema in turn.calls],
        "tool_choice": "required" if turn.must_call else "auto",
        "parallel_tool_calls": turn.parallel,
    }
    return body | answer | ({"thinking": True} if turn.thinking else {})


def _is_marker(text: str, wire_format: WireFormat) -> bool:
    """True for a text that begins with a special token, which free text cannot contain anyway."""
    return text.startswith(tuple(wire_format.special_texts))


def _tool(name: str, schema: Any, declared: Mapping[str, Any] | None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if schema is SPELLED_OUT or schema is True:
        if declared is not None:
            function |= declared
        elif schema is SPELLED_OUT:
            problem = f"the tag spells out the arguments of {name!r} without their schema"
            raise InvalidRequest(problem, _LOCATION, "Set adopt: 'prompt', so that it is read from the prompt")
    else:
        function["parameters"] = schema
    return {"type": "function", "function": function}
