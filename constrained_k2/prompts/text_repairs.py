"""Records every change to a request, cleans its texts, and turns contents that are only text into strings."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from constrained_k2.errors import InvalidRequest, excerpt, kind_of_json, old_name_of
from constrained_k2.prompts.special_text import SpecialTexts
from constrained_k2.request.values import object_at

Kind = Literal[
    "call id", "result id", "call inserted", "content", "special token", "surrogate", "tool", "role", "shape", "prompt"
]

# Part type -> the field that holds its text: chat completions, responses, and vLLM's own.
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA_PARTS = frozenset(
    {
        *("image", "image_url", "input_image", "image_pil", "image_embeds"),
        *("video", "video_url", "video_embeds", "video_chunk", "vision_chunk"),
        *("audio_url", "input_audio", "audio_embeds", "prompt_embeds", "file"),
    }
)

_LONG_LOCATION = 300  # characters
_SURROGATE = re.compile("[\ud800-\udfff]")  # lone ones, which UTF-8 cannot encode

PAYLOADS = _MEDIA_PARTS | {"data", "type", "url", "uuid"}
"""Keys of a part that hold images and other media: templates write placeholders, never these values."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One change to a request; for a special token, ``before`` is the token alone."""

    location: str  # path to the value in the body as it was given, such as messages[3].tool_call_id
    kind: Kind
    before: Any  # None if there was no value
    after: Any  # None if there is none
    place = old_name_of("location")


class TextRepairs:
    """The changes to one request, given the special tokens of the tokenizer."""

    def __init__(self, specials: SpecialTexts) -> None:
        self.repairs: list[Repair] = []
        self._specials = specials

    def change(self, location: str, kind: Kind, *, before: Any, after: Any) -> Any:
        """Record a change, and return the new value."""
        self.repairs.append(Repair(location, kind, before, after))
        return after

    def clean(self, value: Any, location: str, keep: frozenset[str] = frozenset()) -> Any:
        """Break special tokens, except those in ``keep``, and replace lone surrogates in a JSON value."""
        try:
            return self._clean(value, location, keep)
        except RecursionError as error:
            raise InvalidRequest("is nested too deeply", location) from error

    def clean_bracketed(self, text: str, location: str) -> str:
        """Change a text that is a special token between ``<`` and ``>``."""
        return self._neutralize(f"<{text}>", location)[1:-1]

    def _clean(self, value: Any, location: str, keep: frozenset[str]) -> Any:
        if isinstance(value, str):
            whole = value if value.isascii() else _SURROGATE.sub("\ufffd", value)
            if whole != value:
                self.change(location, "surrogate", before=ascii(value[:80]), after=whole[:80])
            return self._neutralize(whole, location, keep)
        if isinstance(value, Mapping):
            return {
                self._clean(str(key), f"{location} key", keep): self._clean(item, within(location, f".{key}"), keep)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._clean(item, within(location, f"[{number}]"), keep) for number, item in enumerate(value)]
        return value

    def _neutralize(self, text: str, location: str, keep: frozenset[str] = frozenset()) -> str:
        text, broken = self._specials.neutralize(text, keep=keep)
        for marker in broken:
            self.change(location, "special token", before=marker, after=self._specials.neutralize(marker)[0])
        return text


def within(location: str, step: str) -> str:
    """The location of a value inside another one. Long ones are cut: one is made for each value of a hostile body."""
    return location if len(location) > _LONG_LOCATION else location + step[:_LONG_LOCATION]


def text_of(content: object, role: str, location: str, *, calls: bool) -> Any:
    """Convert a content to what all of Kimi's templates accept.

    Returns:
        A string; None if it was None beside ``calls``; a list of parts if some are not text, with neighbouring texts
        joined (a special token could be split between them). A tool's JSON value becomes its text.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return None if calls else ""
    if role == "tool" and _is_data(content):  # the result as JSON rather than parts
        try:
            return json.dumps(content, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"cannot be written as JSON: {error}", location) from error
    if not isinstance(content, list | tuple):
        raise InvalidRequest(f"must be a string or an array of parts, not {kind_of_json(content)}", location)
    parts: list[Any] = []
    texts = [_part_text(part, f"{location}[{number}]") for number, part in enumerate(content)]
    for is_text, run in groupby(zip(texts, content, strict=True), key=lambda pair: pair[0] is not None):
        if is_text:
            parts.append({"type": "text", "text": "".join(text or "" for text, _ in run)})
        else:
            parts += [part for _, part in run]
    return "".join(filter(None, texts)) if None not in texts else parts


def _is_data(content: object) -> bool:
    return isinstance(content, Mapping) or (
        isinstance(content, list | tuple)
        and not all(isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in content)
    )


def _part_text(part: object, location: str) -> str | None:
    if isinstance(part, str):
        return part
    fields = object_at(location, part)
    kind = fields.get("type")
    if isinstance(kind, str) and kind in _MEDIA_PARTS | {"tool_reference"}:
        return None
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise InvalidRequest(f"unknown part type {excerpt(kind)}", f"{location}.type", "Send text parts")
    text = fields.get(_TEXT_PARTS[kind])
    if not isinstance(text, str | None):
        raise InvalidRequest(f"must be a string, not {kind_of_json(text)}", f"{location}.{_TEXT_PARTS[kind]}")
    return text or ""
