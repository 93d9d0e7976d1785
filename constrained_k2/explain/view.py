"""The data of an explained turn for display: all tokens, the overridden tokens, and their causes."""

import json
from collections import Counter
from typing import NamedTuple

import msgspec

MAX_SHOWN = 60  # characters of a text in a table


class Site(NamedTuple):
    """The phase, function and path at which a token is forbidden, with the reasons."""

    phase: str  # of the turn, a name of :class:`constrained_k2.turn.phases.Phase` in lower case
    tool: str  # the function that is called; empty outside of calls and of names not yet complete
    # JSON pointer (RFC 6901) into the arguments, or into an answer with a response format, to the value that is being
    # written, or to the object or array whose next key, comma or end is due; None outside of both.
    pointer: str | None
    # The schema's keywords that forbid the token: it is legal without them. Or one of
    # :data:`constrained_k2.explain.keywords.OTHER_CAUSES`. Empty if none was found within the limits.
    keywords: tuple[str, ...]


class WantedToken(msgspec.Struct, frozen=True):
    """A token that the mask forbade: the likeliest (overridden), or one that sampling might have chosen (contested).

    The fields from ``phase`` to ``keywords`` are its :class:`Site`. ``written`` and the probabilities (temperature 1,
    before the mask) are None if the turn itself contains the forbidden token. ``forbidden`` is the probability of all
    forbidden tokens among those that the server gave.
    """

    position: int
    phase: str
    tool: str
    pointer: str | None
    keywords: tuple[str, ...]
    wanted: str
    written: str | None
    probability: float | None
    forbidden: float | None

    @property
    def place(self) -> str:
        """The pointer, or the phase outside of arguments and answers."""
        if self.pointer is None:
            return self.phase
        return self.pointer or ("(arguments)" if self.tool else "(answer)")


class Token(msgspec.Struct, frozen=True):
    """A token of the turn, with the number of tokens that the mask allowed there, if known."""

    text: str
    allowed: int | None = None

    @property
    def is_forced(self) -> bool:
        """True if no other token was allowed."""
        return self.allowed == 1


class Alternative(msgspec.Struct, frozen=True):
    """A token that the model could have written, with its probability before the mask."""

    text: str
    probability: float


class TurnView(msgspec.Struct, frozen=True):
    """A turn, as far as it is known.

    ``chances`` has, for each call that was begun, the lowest probability of a declared name at any token of its name,
    if the server gives probabilities.
    """

    tokens: list[Token]
    overrides: list[WantedToken]
    overrides_count: int
    contested: list[WantedToken] = []
    examined_rows: int | None = None
    alternatives: list[list[Alternative]] = []
    chances: list[float] = []

    @property
    def forced(self) -> int:
        """The number of forced tokens."""
        return sum(token.is_forced for token in self.tokens)

    def summary(self) -> str:
        """The counts in one line."""
        parts = [f"{self.overrides_count} overridden"]
        if self.examined_rows is not None:
            parts[0] += f" of {self.examined_rows} examined"
        if any(token.allowed is not None for token in self.tokens):
            parts.append(f"{self.forced} of {len(self.tokens)} tokens forced")
        if self.contested:
            parts.append(f"{len(self.contested)} contested")
        if len(self.overrides) < self.overrides_count:
            parts.append(f"the {len(self.overrides)} most probable ones are shown")
        return "; ".join(parts)


class PlaceRow(msgspec.Struct, frozen=True):
    """The overridden and contested tokens at one path by the same keywords."""

    tool: str
    place: str
    keywords: str
    overridden: int
    contested: int
    change: str  # the most frequent change
    probability: float | None  # the highest probability of a wanted token
    forbidden: float | None  # the highest total probability of forbidden tokens


def by_place(view: TurnView) -> list[PlaceRow]:
    """Group the tokens by path and keywords: groups with the most overridden tokens first, contested-only ones last."""
    groups: dict[tuple[str, str, str], list[WantedToken]] = {}
    for each in [*view.overrides, *view.contested]:
        groups.setdefault((each.tool, each.place, ", ".join(each.keywords)), []).append(each)
    overridden = {each.position for each in view.overrides}
    rows = [
        PlaceRow(
            *key,
            sum(each.position in overridden for each in group),
            sum(each.position not in overridden for each in group),
            Counter(map(change, group)).most_common(1)[0][0],
            max((each.probability for each in group if each.probability is not None), default=None),
            max((each.forbidden for each in group if each.forbidden is not None), default=None),
        )
        for key, group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.overridden, -(row.probability or 0.0)))


def change(override: WantedToken) -> str:
    """The wanted and the written token."""
    return f"{_quoted(override.wanted)} → {'refused' if override.written is None else _quoted(override.written)}"


def percent(probability: float | None) -> str:
    """A probability for people; empty if it is not known."""
    if probability is None:
        return ""
    return f"{probability:.0%}" if probability <= 0.99 else f"{probability:.1%}"


def visible(text: str, line_feed: str = "↵\n") -> str:
    """A text in which characters that steer a terminal or reorder text are escaped; line feeds stay line breaks."""
    return "".join(
        character if character.isprintable() else line_feed if character == "\n" else repr(character)[1:-1]
        for character in text
    )


def printable(text: str, limit: int = 160) -> str:
    """The start of a text, as :func:`visible` in one line."""
    return visible(text if len(text) <= limit else f"{text[:limit]}…", "\\n")


def _quoted(text: str) -> str:
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return visible(json.dumps(cut, ensure_ascii=False))
