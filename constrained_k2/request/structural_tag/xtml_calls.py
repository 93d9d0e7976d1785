"""Reads structural tags of Kimi K3's calls, whose arguments are XTML blocks.

Sources of the tags: ``get_kimi_k3_structural_tag`` of vLLM 0.32 (Python) and of xgrammar 0.2.8, and vLLM's
rust/src/parser/src/unified/kimi_k3/structural_tag.rs. xgrammar's tag contains the schema. The tag of vLLM's Rust front
end has it in the alternative that writes the arguments as one ``json`` block. The tag of vLLM's Python front end
describes the arguments one by one, without the schema.
"""

from typing import Any

from constrained_k2.formats.kimi_k3 import (
    ARGUMENT,
    CALL,
    CLOSE,
    JSON,
    KIMI_K3,
    MESSAGE,
    OPEN,
    RESPONSE,
    SEPARATOR,
    THINK,
    TOOLS,
    unescape,
)
from constrained_k2.request.structural_tag.forms import (
    AnyText,
    JsonSchema,
    Optional,
    Or,
    Plus,
    Regex,
    Sequence,
    Star,
    Tag,
    Tags,
    Text,
)
from constrained_k2.request.structural_tag.reading import SPELLED_OUT, DescribedTurn, ForeignTag, listed_calls


def _opening(tag: str) -> str:
    return f"{OPEN}{tag}{SEPARATOR}"


def _closing(tag: str) -> str:
    return f"{CLOSE}{tag}{SEPARATOR}"


_DIGITS = frozenset({r"\d+", "[0-9]+", "[1-9][0-9]*"})
_CALL_PREFIX = f"{OPEN}{KIMI_K3.header_begin}"
_TURN_END = Text(_closing(MESSAGE))
_RESPONSE_BEGIN = Text(_opening(RESPONSE))
_JSON_BEGIN = f'{OPEN}{JSON} type="object"{SEPARATOR}'
_ANY_ARGUMENT = f"{OPEN}{ARGUMENT} "


def read_turn(form: Any) -> DescribedTurn:
    """Read the format of a tag; raises :class:`ForeignTag` if it is not one of Kimi K3."""
    match form:
        case Or((Sequence() as turn, answer)):  # vLLM: a call, or an answer in the response format
            read = _turn(turn)
            if not read.must_call:
                raise ForeignTag("an answer of a form is beside any text")
            return read._replace(must_call=False, answer=answer)
    return _turn(form)


def _turn(form: Any) -> DescribedTurn:
    """A response, calls, the end of the message; reasoning comes first if there is any."""
    match form:
        case Sequence((*prefix, calls, end)) if end in (_TURN_END, Optional(_TURN_END)):
            thinking = _is_reasoning(prefix[0]) if prefix else False
            if not _is_response(prefix[1:] if thinking else prefix):
                raise ForeignTag("the turn does not begin with a response")
            return _calls(calls)._replace(thinking=thinking)
    raise ForeignTag("the turn is not one of Kimi K3")


def _is_reasoning(form: Any) -> bool:
    block = form.content if isinstance(form, Optional) else form
    return _is_text(block, ("", _opening(THINK)), _closing(THINK))


def _is_response(forms: list[Any]) -> bool:
    """True for a response of any text, opened by the prompt or by the model."""
    *begin, text = forms or (None,)
    is_begun = not begin or begin in ([_RESPONSE_BEGIN], [Optional(_RESPONSE_BEGIN)])
    return is_begun and _is_text(text, ("", _opening(RESPONSE)), _closing(RESPONSE))


def _is_text(form: Any, begins: tuple[str, ...], end: str) -> bool:
    return isinstance(form, Tag) and isinstance(form.content, AnyText) and form.begin in begins and form.end == end


def _calls(form: Any) -> DescribedTurn:
    match form:
        case Optional(inner):
            return _calls(inner)._replace(must_call=False)
        case Tag(begin, calls, end) | Sequence((Text(begin), calls, Text(end))) if begin == _opening(
            TOOLS
        ) and end == _closing(TOOLS):
            if isinstance(calls, Tag):  # one call of a named function
                return DescribedTurn((_call(calls),), parallel=False, must_call=True)
            if isinstance(calls, Tags):
                made = tuple(map(_call, listed_calls(calls)))
                return DescribedTurn(made, parallel=not calls.stop_after_first, must_call=True)
    raise ForeignTag("the turn has no tool calls")


def _call(call: Tag) -> tuple[str, Any]:
    match call.content:
        case Sequence((Regex(index), Text(marker), arguments)) if (
            call.begin.startswith(_CALL_PREFIX)
            and call.begin.endswith(KIMI_K3.header_index)
            and index in _DIGITS
            and (marker, call.end) == (f"{KIMI_K3.header_end}{SEPARATOR}", _closing(CALL))
        ):
            name = call.begin.removeprefix(_CALL_PREFIX).removesuffix(KIMI_K3.header_index)
            return unescape(name), _schema(arguments)
    raise ForeignTag("a call is not in Kimi K3's form")


def _schema(arguments: Any) -> Any:
    match arguments:
        case JsonSchema(schema, style="kimi_k3_xml"):
            return schema
        case Or((_, Tag(begin, JsonSchema(schema, style="json"), end))) if (begin, end) == (
            _JSON_BEGIN,
            _closing(JSON),
        ):
            return schema
        case Star(Tag(begin)) if begin == _ANY_ARGUMENT:  # vLLM: arguments of any key, type and value
            return True
        case Star() | Plus():
            return SPELLED_OUT
    raise ForeignTag("the arguments are not in Kimi K3's form")
