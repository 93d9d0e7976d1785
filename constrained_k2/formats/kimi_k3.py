"""Kimi K3's wire format, XTML: its special tokens, tags and attributes.

    <|open|>response<|sep|>TEXT<|close|>response<|sep|>
    <|open|>tools<|sep|>
      <|open|>call tool="get_weather" index="1"<|sep|>
        <|open|>argument key="city" type="string"<|sep|>Beijing<|close|>argument<|sep|>
      <|close|>call<|sep|>
    <|close|>tools<|sep|>
    <|close|>message<|sep|><|end_of_msg|>

Each joint is a tag: a special token, the tag's name as ordinary tokens, and ``<|sep|>``. Nothing stands between tags.

Sources: the fixtures of lablup/mlxcel (tests/fixtures/kimi_k3, made with the checkpoint's tokenizer) and of
sgl-project/sglang (experimental/sgl-router/src/tokenizer/testdata), both Apache-2.0.
"""

from collections.abc import Mapping

from constrained_k2.formats.kimi_k2 import BOS, EOS, EOT, MEDIA_MARKERS, PAD, UNK

OPEN, CLOSE, SEPARATOR, MESSAGE_END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"

MESSAGE, THINK, RESPONSE, TOOLS, CALL, ARGUMENT, JSON = (
    "message", "think", "response", "tools", "call", "argument", "json"
)  # fmt: skip
"""The names of the tags."""

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
"""The type of a decoded JSON value -> the ``type`` attribute of the argument that holds it."""


def escape(text: str) -> str:
    """The text of an attribute's value, as it stands between the quotes."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


def unescape(text: str) -> str:
    """The inverse of :func:`escape`."""
    return text.replace("&quot;", '"').replace("&amp;", "&")
