"""What is changed in a request, one by one, and the mending that every text of it gets."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from constrained_k2.errors import InvalidRequest
from constrained_k2.rendering.content import PAYLOADS
from constrained_k2.rendering.special_text import SpecialTexts, without_surrogates

Kind = Literal[
    "call id", "result id", "call inserted", "content", "special token", "surrogate", "tool", "role", "shape", "prompt"
]


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that was changed in a request.

    Attributes:
        place: The path to it in the body as it was given (``messages[3].tool_call_id``).
        kind: What it is about.
        before: What stood there; None for nothing. Of a special token, the token alone.
        after: What stands there now; None for nothing.
    """

    place: str
    kind: Kind
    before: Any
    after: Any


class Mending:
    """One repair under way.

    Args:
        specials: The special tokens of the tokenizer.

    Attributes:
        repairs: What was changed so far.
    """

    def __init__(self, specials: SpecialTexts) -> None:
        self.repairs: list[Repair] = []
        self._specials = specials

    def note(self, place: str, kind: Kind, *, before: Any, after: Any) -> None:
        """Note a change."""
        self.repairs.append(Repair(place, kind, before, after))

    def clean(self, value: Any, place: str, keep: frozenset[str] = frozenset()) -> Any:
        """JSON whose texts, keys included, hold no special token and no lone surrogate.

        Raises:
            InvalidRequest: It is nested too deeply.
        """
        try:
            return self._cleaned(value, place, keep)
        except RecursionError as error:
            raise InvalidRequest("is nested too deeply", place) from error

    def clean_bracketed(self, text: str, place: str) -> str:
        """A text that is no special token between ``<`` and ``>`` either."""
        whole, broken = self._specials.neutralize(f"<{text}>")
        for marker in broken:
            self.note(place, "special token", before=marker, after=self._specials.neutralize(marker)[0])
        return whole[1:-1]

    def clean_parts(self, parts: Iterable[Any], place: str, keep: frozenset[str]) -> list[Any]:
        """The parts of a content; what is not shown as text (images, addresses, embeddings) stays the very same.

        Raises:
            InvalidRequest: One is nested too deeply.
        """
        return [
            {
                key: value if key in PAYLOADS else self.clean(value, f"{place}[{number}].{key}", keep)
                for key, value in part.items()
            }
            for number, part in enumerate(parts)
        ]

    def _cleaned(self, value: Any, place: str, keep: frozenset[str]) -> Any:
        if isinstance(value, str):
            whole = without_surrogates(value)
            if whole != value:
                self.note(place, "surrogate", before=ascii(value[:80]), after=whole[:80])
            text, broken = self._specials.neutralize(whole, keep=keep)
            for marker in broken:
                self.note(place, "special token", before=marker, after=self._specials.neutralize(marker)[0])
            return text
        if isinstance(value, Mapping):
            return {
                self._cleaned(str(key), f"{place} key", keep): self._cleaned(item, f"{place}.{key}", keep)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._cleaned(item, f"{place}[{number}]", keep) for number, item in enumerate(value)]
        return value


def as_json(repairs: Iterable[Repair]) -> list[dict[str, Any]]:
    """Repairs as JSON values."""
    return [
        json.loads(json.dumps({"place": r.place, "kind": r.kind, "before": r.before, "after": r.after}, default=str))
        for r in repairs
    ]
