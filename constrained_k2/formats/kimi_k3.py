"""Kimi K3's wire format, XTML: its special tokens, tags and attributes.

    <|open|>response<|sep|>TEXT<|close|>response<|sep|>
    <|open|>tools<|sep|>
      <|open|>call tool="get_weather" index="1"<|sep|>
        <|open|>argument key="city" type="string"<|sep|>Beijing<|close|>argument<|sep|>
      <|close|>call<|sep|>
    <|close|>tools<|sep|>
    <|close|>message<|sep|><|end_of_msg|>

Transitions are tags: a special token, the tag's name as ordinary tokens, and ``<|sep|>``. No blanks separate tags.

Sources: the fixtures of lablup/mlxcel (tests/fixtures/kimi_k3, made with the checkpoint's tokenizer) and of
sgl-project/sglang (experimental/sgl-router/src/tokenizer/testdata), both Apache-2.0.
"""

import re
from collections.abc import Mapping

from constrained_k2.formats.base import WireFormat
from constrained_k2.formats.kimi_k2 import (
    BASE_SIZE,
    BOS,
    CALL_ID_PREFIX,
    EOS,
    EOT,
    MEDIA_MARKERS,
    NAMED_SPECIAL,
    PAD,
    UNK,
)
from constrained_k2.formats.phases import Need, Phase, Transition

OPEN, CLOSE, SEPARATOR, MESSAGE_END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"

MESSAGE, THINK, RESPONSE, TOOLS, CALL, ARGUMENT, JSON = (
    "message", "think", "response", "tools", "call", "argument", "json"
)  # fmt: skip
"""The names of the tags."""
KEY_PIECES, TYPE_PIECES = (ARGUMENT, " key", '="'), (" type", '="')
"""An argument's tag before its key, and between the quote that ends the key and its type, as it is tokenized."""
BEFORE_KEY, BEFORE_TYPE = "".join(KEY_PIECES), "".join(TYPE_PIECES)

SPECIAL_TOKENS: Mapping[int, str] = {
    **dict(enumerate((BOS, EOS, MESSAGE_END, OPEN, CLOSE, SEPARATOR, "[start_header_id]", "[end_header_id]"))),
    9: EOT,
    **dict(enumerate(MEDIA_MARKERS, 18)),
    65: "<osagent_mode>",
    **dict(enumerate((UNK, PAD), 254)),
}
"""Offset from the last ordinary token -> text; those between are reserved."""

VALUE_TYPES: Mapping[type, str] = {
    str: "string", bool: "boolean", int: "number", float: "number", type(None): "null", list: "array", dict: "object"
}  # fmt: skip
"""The type of a decoded JSON value -> the ``type`` attribute of an argument with this value."""


def escape(text: str) -> str:
    """The text of an attribute's value, as it is written between the quotes."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


def unescape(text: str) -> str:
    """The inverse of :func:`escape`."""
    return text.replace("&quot;", '"').replace("&amp;", "&")


MARKER_TEXTS: Mapping[str, str] = {
    "section_begin": OPEN,
    "section_end": CLOSE,
    "call_begin": OPEN,
    "argument_begin": SEPARATOR,
    "call_end": CLOSE,
    "think_end": CLOSE,
    "turn_end": MESSAGE_END,
    "text_end": EOS,
}
"""Field of :class:`WireFormat` -> the special token that the transition begins with, or is; see :data:`TRANSITIONS`."""


def _opening(tag: str) -> tuple[str | bytes, ...]:
    return ("call_begin", tag.encode(), "argument_begin")


def _closing(tag: str) -> tuple[str | bytes, ...]:
    return ("call_end", tag.encode(), "argument_begin")


_END = (*_closing(MESSAGE), "turn_end")
_TEXT = (
    Transition(_closing(RESPONSE), Phase.RESPONDED, Need.PLAIN),
    Transition((*_closing(RESPONSE), *_opening(TOOLS)), Phase.SECTION, Need.FORM | Need.CALL),
)

TRANSITIONS: Mapping[Phase, tuple[Transition, ...]] = {
    Phase.START: _TEXT,
    Phase.REASONING: (Transition((*_closing(THINK), *_opening(RESPONSE)), Phase.TEXT),),
    Phase.TEXT: _TEXT,
    Phase.ANSWER: (Transition((*_closing(RESPONSE), *_END), Phase.DONE, Need.FORM),),
    Phase.RESPONDED: (Transition(_opening(TOOLS), Phase.SECTION, Need.CALL), Transition(_END, Phase.DONE, Need.FREE)),
    Phase.SECTION: (Transition(("call_begin",), Phase.CALL_ID),),
    Phase.CALL_ID: (
        Transition(("argument_begin",), Phase.ARGUMENTS),
        Transition(_closing(TOOLS), Phase.CLOSED, Need.DECLINING),
    ),
    Phase.ARGUMENTS: (Transition(_closing(CALL), Phase.BETWEEN),),
    Phase.BETWEEN: (
        Transition(_closing(TOOLS), Phase.CLOSED),
        Transition(("call_begin",), Phase.CALL_ID, Need.SEVERAL_CALLS),
    ),
    Phase.REPEATED: (Transition(_closing(TOOLS), Phase.CLOSED),),
    Phase.CLOSED: (Transition(_END, Phase.DONE),),
}
"""The transitions from each phase. The response is always written, even if it is empty: calls follow its end."""

KIMI_K3 = WireFormat(
    name="Kimi K3",
    marker_texts=MARKER_TEXTS,
    optional_markers=frozenset(),
    special_texts=frozenset(SPECIAL_TOKENS.values()),
    special_pattern=NAMED_SPECIAL,  # the rule of all formats, since requests are read before the format is known
    transitions=TRANSITIONS,
    reasoning_opening=_opening(THINK),
    text_opening=_opening(RESPONSE),
    call_id_prefix=CALL_ID_PREFIX,
    header_begin=f'{CALL} tool="',
    header_index='" index="',
    header_end='"',
    header_pieces=re.compile(rf'^{CALL}| tool(?==)| index(?==)|="|"|[^"]+'),
    escape_name=escape,
    first_index=1,
    counts_dialog=False,
    argument_encoding="xtml",
    argument_fields=("call_begin", "call_end", "argument_begin"),
).located_in({text: BASE_SIZE + offset for offset, text in SPECIAL_TOKENS.items()})
"""The format in Kimi K3's vocabulary, which has no token of its own for the opening of reasoning."""

IMAGE_PLACEHOLDER = "<|kimi_image_placeholder|>"
"""Ordinary text that takes the place of an image until its size is known."""

MEDIA_BEGIN, MEDIA_CONTENT, MEDIA_END, MEDIA_PAD = MEDIA_MARKERS

SPECIAL_SHAPE = r"<\|[^|<>]{1,64}\|>|<osagent_mode>|\[(?:[A-Z]{3}|(?:start|end)_header_id)\]"
"""Regular expression of everything that looks like a special token; two matches never overlap."""
