"""Converts message contents of any API to the text and parts that all of Kimi's chat templates accept."""

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json
from constrained_k2.request.values import object_at

# Part type -> the field that holds its text: chat completions, responses, and vLLM's own.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
MEDIA_PARTS = frozenset(
    {
        *("image", "image_url", "input_image", "image_pil", "image_embeds"),
        *("video", "video_url", "video_embeds", "video_chunk", "vision_chunk"),
        *("audio", "audio_url", "input_audio", "audio_embeds", "prompt_embeds"),
        *("file", "input_file", "document"),
    }
)
REASONING_PARTS = frozenset({"thinking", "reasoning", "reasoning_text", "redacted_thinking"})
"""Types of parts with reasoning: of Anthropic, Mistral and LangChain, and of OpenAI's responses."""

_REASONING_TEXTS = ("thinking", "reasoning", "text", "content", "summary")
_BILLING_HEADER = "x-anthropic-billing-header"
_MAX_MIME_TYPE = 127  # characters
_TOO_DEEP = "is nested too deeply"

PAYLOADS = MEDIA_PARTS | {"data", "type", "url", "uuid"}
"""Keys of a part whose values are images and other media: templates write placeholders, never these values."""


def text_of(content: object, role: str, location: str, *, calls: bool) -> Any:
    """Convert a message's content to a form that all of Kimi's templates accept.

    Texts are joined as vLLM joins them: in a tool result by line breaks, elsewhere without a separator.

    Returns:
        A string; None if it was None beside ``calls``; a list of parts if some are not text, with neighbouring texts
        joined (a special token could be split between them). A tool's JSON value becomes its text.
    """
    if isinstance(content, str):
        return _without_billing_header(content) if role == "system" else content
    if content is None:
        return None if calls else ""
    if role == "tool" and _is_data(content):  # the result as JSON rather than parts
        return _json(content, location)
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"must be a string or an array of parts, not {kind_of_json(content)}", location)
    texts = [_part_text(part, role, f"{location}[{number}]") for number, part in enumerate(content)]
    if role == "system":
        texts = [text and _without_billing_header(text) for text in texts]
    known = [text for text in texts if text is not None]
    if len(known) == len(texts):
        return ("\n" if role == "tool" else "").join(known)
    parts: list[Any] = []
    for is_text, run in groupby(zip(texts, content, strict=True), key=lambda pair: pair[0] is not None):
        if is_text:
            parts.append({"type": "text", "text": "".join(text or "" for text, _ in run)})
        else:
            parts += [part for _, part in run]
    return parts


def is_reasoning(part: object) -> bool:
    """True for a part of an assistant's content that is reasoning."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in REASONING_PARTS


def is_inline_media(part: object) -> bool:
    """True for media with its bytes in ``data``, such as MCP's images and audio. vLLM accepts no such part."""
    if not isinstance(part, Mapping) or not isinstance(part.get("data"), str):
        return False
    kind = part.get("type")
    return isinstance(kind, str) and kind in MEDIA_PARTS and kind not in part


def reasoning_text(value: object, location: str) -> str:
    """The text of reasoning: of a string, a part, or an array of these. Encrypted reasoning has none."""
    try:
        return _reasoning_text(value)
    except RecursionError as error:
        raise InvalidRequest(_TOO_DEEP, location) from error


def _reasoning_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "".join(map(_reasoning_text, value))
    if isinstance(value, Mapping):
        return next(filter(None, (_reasoning_text(value.get(key)) for key in _REASONING_TEXTS)), "")
    return ""


def _is_data(content: object) -> bool:
    return isinstance(content, Mapping | int | float) or (
        isinstance(content, list | tuple)
        and not all(isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in content)
    )


def _json(value: object, location: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", location) from error


def _part_text(part: object, role: str, location: str) -> str | None:
    """The text of a part; None for media."""
    if isinstance(part, str):
        return part
    fields = object_at(location, part)
    kind = fields.get("type")
    if kind is None:
        kind = "text" if "text" in fields else next(filter(MEDIA_PARTS.__contains__, fields), None)
    if not isinstance(kind, str):
        raise _unknown_part(kind, location)
    if role == "tool" and is_inline_media(fields):
        return _placeholder(kind, fields.get("mimeType"))
    if kind in MEDIA_PARTS:
        return None
    if kind in REASONING_PARTS:
        return reasoning_text(fields, location)
    if kind == "tool_reference":  # Anthropic's tool search: a tool's name
        text = fields.get("name") or fields.get("tool_name")
    elif kind in _TEXT_PARTS:
        text = fields.get(_TEXT_PARTS[kind])
    elif role == "tool":  # such as a part of an MCP result
        return _json(part, location)
    else:
        raise _unknown_part(kind, location)
    if not isinstance(text, str | None):
        raise InvalidRequest(
            f"must be a string, not {kind_of_json(text)}", f"{location}.{_TEXT_PARTS.get(kind, 'name')}"
        )
    return text or ""


def _placeholder(kind: str, mime_type: object) -> str:
    is_short = isinstance(mime_type, str) and len(mime_type) <= _MAX_MIME_TYPE
    return f"[{kind}: {mime_type}]" if is_short else f"[{kind}]"


def _unknown_part(kind: object, location: str) -> InvalidRequest:
    return InvalidRequest(f"unknown part type {excerpt(kind)}", f"{location}.type", "Send text parts")


def _without_billing_header(text: str) -> str:
    """Leave out the first line that Claude Code puts before a system prompt, as vLLM does: it changes every time."""
    return text.partition("\n")[2] if text.startswith(_BILLING_HEADER) else text
