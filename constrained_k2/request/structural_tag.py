"""Reads xgrammar's structural tag of Kimi K2's tool calls back into the request that it was built from.

vLLM's Python and Rust front ends build this tag for their ``kimi_k2`` tool parser, and so does any gateway that calls
``xgrammar.get_model_structural_tag("kimi", …)``: it holds every function's name and schema, and whether text, several
calls or reasoning are allowed. Source of the form: ``get_kimi_structural_tag`` of xgrammar 0.2.8, and vLLM 0.32's
``vllm.parser.abstract_parser``, which offers the form of an answer as an alternative.

A tag is read whole or not at all: a tag that differs in any part allows other answers.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.kimi_k2 import (
    ARGUMENT_BEGIN,
    CALL_BEGIN,
    CALL_END,
    KIMI_K2,
    SECTION_BEGIN,
    SECTION_END,
    THINK_BEGIN,
    THINK_END,
)


class _Format(msgspec.Struct, tag_field="type", forbid_unknown_fields=True):
    """One of xgrammar's formats, with the fields and defaults of ``xgrammar.structural_tag``."""

    def __post_init__(self) -> None:
        """Refuse to leave text out, except for special tokens, which a turn has at their places only."""
        if not KIMI_K2.special_texts.issuperset(getattr(self, "excludes", ())):
            raise ValueError("text is excluded")


class _JsonSchema(_Format, tag="json_schema"):
    json_schema: bool | dict[str, Any]
    style: Literal["json"] = "json"
    any_order: bool = False
    max_whitespace_cnt: int | None = None
    excludes: tuple[str, ...] = ()


class _Regex(_Format, tag="regex"):
    pattern: str


class _Text(_Format, tag="const_string"):
    value: str


class _AnyText(_Format, tag="any_text"):
    excludes: tuple[str, ...] = ()
    max_tokens: None = None
    max_chars: None = None


class _Grammar(_Format, tag="grammar"):
    grammar: str


class _Tag(_Format, tag="tag"):
    begin: str
    content: "_AnyFormat"
    end: str


class _Sequence(_Format, tag="sequence"):
    elements: "tuple[_AnyFormat, ...]"


class _Or(_Format, tag="or"):
    elements: "tuple[_AnyFormat, ...]"


class _Optional(_Format, tag="optional"):
    content: "_AnyFormat"


class _Tags(_Format, tag="tags_with_separator"):
    tags: tuple[_Tag, ...]
    separator: Literal[""] = ""
    at_least_one: bool = False
    stop_after_first: bool = False


class _TriggeredTags(_Format, tag="triggered_tags"):
    triggers: tuple[str, ...]
    tags: tuple[_Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: tuple[str, ...] = ()


_AnyFormat = (
    _JsonSchema | _Regex | _Text | _AnyText | _Grammar | _Tag | _Sequence | _Or | _Optional | _Tags | _TriggeredTags
)


class _StructuralTag(msgspec.Struct, tag_field="type", tag="structural_tag", forbid_unknown_fields=True):
    format: _AnyFormat


_DIGITS = r"\d+"
_CALL_PREFIX = f"{CALL_BEGIN}{KIMI_K2.call_id_prefix}"


def read_structural_tag(tag: str | Mapping[str, Any]) -> dict[str, Any]:
    """The request body of a structural tag of Kimi K2's calls, for :meth:`ToolCallSpec.from_openai`.

    The body has ``tools``, ``tool_choice``, ``parallel_tool_calls``, and, where the tag says so, ``thinking`` and the
    form of the answer. A function whose arguments the tag leaves free has no ``parameters``.

    Raises:
        InvalidRequest: The tag has another form, or parts that no request leads to.
    """
    try:
        # Not by msgspec's decoder, which rounds integers of more than 64 bits in schemas.
        read = msgspec.convert(json.loads(tag) if isinstance(tag, str) else tag, _StructuralTag)
    except (ValueError, RecursionError) as error:  # msgspec's and json's are ValueErrors
        raise _foreign(str(error)) from error
    match read.format:
        case _Sequence((prefix, turn)) if _is_reasoning(prefix):
            return _turn(turn) | {"thinking": True}
    return _turn(read.format)


def _is_reasoning(form: Any) -> bool:
    """True for the reasoning that may precede a turn, begun by the prompt or by the model."""
    block = form.content if isinstance(form, _Optional) else form
    return (
        isinstance(block, _Tag)
        and isinstance(block.content, _AnyText)
        and block.begin in {"", THINK_BEGIN}
        and block.end == THINK_END
    )


def _turn(form: Any) -> dict[str, Any]:
    match form:
        case _Or((_Sequence() as section, answer)):  # vLLM: a call, or an answer of the form that the request asks for
            return _section(section) | {"tool_choice": "auto"} | _answer(answer)
        case _TriggeredTags((trigger,), (_Tag(begin, _Tags() as calls, end),), at_least_one=False) if (
            trigger == begin == SECTION_BEGIN and end == SECTION_END
        ):
            return _calls(calls) | {"tool_choice": "auto"}
    return _section(form) | {"tool_choice": "required"}


def _section(form: Any) -> dict[str, Any]:
    """A section that must be written: of any of the functions, or one call of a named one."""
    match form:
        case _Sequence((_Text(begin), calls, _Text(end))) if (begin, end) == (SECTION_BEGIN, SECTION_END):
            if isinstance(calls, _Tag):
                return {"tools": [_tool(calls)], "parallel_tool_calls": False}
            if isinstance(calls, _Tags):
                return _calls(calls)
    raise _foreign("the turn is not a section of tool calls")


def _calls(form: _Tags) -> dict[str, Any]:
    if not form.at_least_one or not form.tags:
        raise _foreign("a section may be empty")
    return {"tools": [_tool(call) for call in form.tags], "parallel_tool_calls": not form.stop_after_first}


def _tool(call: _Tag) -> dict[str, Any]:
    match call.content:
        case _Sequence((_Regex(index), _Text(marker), _JsonSchema(schema))) if (
            call.begin.startswith(_CALL_PREFIX)
            and call.begin.endswith(":")
            and (index, marker, call.end) == (_DIGITS, ARGUMENT_BEGIN, CALL_END)
        ):
            function = {"name": call.begin.removeprefix(_CALL_PREFIX).removesuffix(":")}
            return {"type": "function", "function": function if schema is True else function | {"parameters": schema}}
    raise _foreign("a call is not in Kimi K2's form")


def _answer(form: Any) -> dict[str, Any]:
    """The form of the answer, as vLLM writes a request's ``response_format`` or ``structured_outputs``."""
    match form:
        case _JsonSchema(schema):
            return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        case _Regex(pattern):
            return {"structured_outputs": {"regex": pattern}}
        case _Grammar(grammar):
            return {"structured_outputs": {"grammar": grammar}}
        case _Or(elements):
            texts = [element.value for element in elements if isinstance(element, _Text)]
            if texts and len(texts) == len(elements):
                return {"structured_outputs": {"choice": texts}}
    raise _foreign("the answer has a form that no request asks for")


def _foreign(problem: str) -> InvalidRequest:
    return InvalidRequest(f"is not Kimi K2's: {problem[:200]}", "structured_outputs.structural_tag")
