"""A message's content as the text that it is, wherever it is text alone."""

import json
from collections.abc import Mapping
from typing import Any

from constrained_k2.errors import InvalidRequest, kind_of_json

# Part type -> the field that holds its text: chat completions, responses, and vLLM's own.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OTHER_PARTS = frozenset(
    {
        *("image", "image_url", "input_image", "image_pil", "image_embeds"),
        *("video", "video_url", "video_embeds", "video_chunk", "vision_chunk"),
        *("audio_url", "input_audio", "audio_embeds", "prompt_embeds", "tool_reference", "file"),
    }
)

PAYLOADS = (_OTHER_PARTS - {"tool_reference"}) | {"data", "type", "url", "uuid"}
"""Keys of a part under which an image and the like stand: templates write placeholders, and never these values."""


def text_of(content: object, role: str, place: str, *, calls: bool) -> Any:
    """The content as Kimi's templates all take it.

    Args:
        content: As the client sent it.
        role: Whose it is. A tool's may be any JSON object, which becomes its text.
        place: Where it stands.
        calls: Whether calls stand beside it: then it may be None.

    Returns:
        A string; None where it was None beside calls; a list of parts where some are no text, with neighbouring texts
        made one (a special token could be spelled across them).

    Raises:
        InvalidRequest: It is nothing that a message can hold.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return None if calls else ""
    if role == "tool" and _is_data(content):
        try:
            return json.dumps(content, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"cannot be written as JSON: {error}", place) from error
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"must be a string or an array of parts, not {kind_of_json(content)}", place)
    parts: list[Any] = []
    texts: list[str] = []  # that wait to be joined
    for number, part in enumerate(content):
        text = _part_text(part, f"{place}[{number}]")
        if text is not None:
            texts.append(text)
            continue
        _add_text(parts, texts)
        parts.append(part)
    if not parts:
        return "".join(texts)
    _add_text(parts, texts)
    return parts


def _is_data(content: object) -> bool:
    """Whether a tool's content is its result as JSON rather than parts."""
    if isinstance(content, Mapping):
        return True
    return isinstance(content, list | tuple) and not all(
        isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in content
    )


def _add_text(parts: list[Any], texts: list[str]) -> None:
    if texts:
        parts.append({"type": "text", "text": "".join(texts)})
        texts.clear()


def _part_text(part: object, place: str) -> str | None:
    """The text of a part; None of one that is no text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"must be an object, not {kind_of_json(part)}", place)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _OTHER_PARTS:
        return None
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise InvalidRequest(f"the part type {str(kind)[:40]!r} is not known", f"{place}.type", "Send text parts")
    text = part.get(_TEXT_PARTS[kind])
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InvalidRequest(f"must be a string, not {kind_of_json(text)}", f"{place}.{_TEXT_PARTS[kind]}")
    return text
