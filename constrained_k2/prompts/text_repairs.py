"""Records every repair of a request, and breaks special tokens and lone surrogates in its texts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from constrained_k2.errors import InvalidRequest
from constrained_k2.prompts.special_text import SpecialTexts

Kind = Literal[
    "call id",
    "result id",
    "call inserted",
    "content",
    "reasoning",
    "special token",
    "surrogate",
    "tool",
    "role",
    "shape",
    "prompt",
]

_LONG_LOCATION = 300  # characters
_SURROGATE = re.compile("[\ud800-\udfff]")  # lone ones, which UTF-8 cannot encode


@dataclass(frozen=True, slots=True)
class Repair:
    """One change to a request; for a special token, ``before`` is the token alone."""

    location: str  # path to the value in the body as it was given, such as messages[3].tool_call_id
    kind: Kind
    before: Any  # None if there was no value
    after: Any  # None if there is none


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
