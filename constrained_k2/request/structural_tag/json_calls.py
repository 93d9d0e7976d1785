"""Reads structural tags of Kimi K2's calls, whose arguments are one JSON object each.

Source of the tags: ``get_kimi_structural_tag`` of xgrammar 0.2.8, and vLLM 0.32's ``vllm.parser.abstract_parser``,
which offers the response format as an alternative.
"""

from typing import Any

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
from constrained_k2.request.structural_tag.forms import (
    AnyText,
    JsonSchema,
    Optional,
    Or,
    Regex,
    Sequence,
    Tag,
    Tags,
    Text,
    TriggeredTags,
)
from constrained_k2.request.structural_tag.reading import DescribedTurn, ForeignTag, listed_calls

_DIGITS = r"\d+"
_CALL_PREFIX = f"{CALL_BEGIN}{KIMI_K2.call_id_prefix}"


def read_turn(form: Any) -> DescribedTurn:
    """Read the format of a tag; raises :class:`ForeignTag` if it is not one of Kimi K2."""
    match form:
        case Sequence((prefix, turn)) if _is_reasoning(prefix):
            return _turn(turn)._replace(thinking=True)
    return _turn(form)


def _is_reasoning(form: Any) -> bool:
    """True for the reasoning that may precede a turn, opened by the prompt or by the model."""
    block = form.content if isinstance(form, Optional) else form
    return (
        isinstance(block, Tag)
        and isinstance(block.content, AnyText)
        and block.begin in {"", THINK_BEGIN}
        and block.end == THINK_END
    )


def _turn(form: Any) -> DescribedTurn:
    match form:
        case Or((Sequence() as section, answer)):  # vLLM: a call, or an answer in the response format
            return _section(section)._replace(must_call=False, answer=answer)
        case TriggeredTags((trigger,), (Tag(begin, Tags() as calls, end),), at_least_one=False) if (
            trigger == begin == SECTION_BEGIN and end == SECTION_END
        ):
            return _calls(calls)._replace(must_call=False)
    return _section(form)


def _section(form: Any) -> DescribedTurn:
    """A mandatory section: calls of any of the functions, or one call of a named one."""
    match form:
        case Sequence((Text(begin), calls, Text(end))) if (begin, end) == (SECTION_BEGIN, SECTION_END):
            if isinstance(calls, Tag):
                return DescribedTurn((_call(calls),), parallel=False, must_call=True)
            if isinstance(calls, Tags):
                return _calls(calls)
    raise ForeignTag("the turn is not a section of tool calls")


def _calls(form: Tags) -> DescribedTurn:
    calls = tuple(map(_call, listed_calls(form)))
    return DescribedTurn(calls, parallel=not form.stop_after_first, must_call=True)


def _call(call: Tag) -> tuple[str, Any]:
    match call.content:
        case Sequence((Regex(index), Text(marker), JsonSchema(schema, style="json"))) if (
            call.begin.startswith(_CALL_PREFIX)
            and call.begin.endswith(":")
            and (index, marker, call.end) == (_DIGITS, ARGUMENT_BEGIN, CALL_END)
        ):
            return call.begin.removeprefix(_CALL_PREFIX).removesuffix(":"), schema
    raise ForeignTag("a call is not in Kimi K2's form")
