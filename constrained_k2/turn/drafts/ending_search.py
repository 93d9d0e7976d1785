"""Searches for what ends a string, or an array that must contain an item: the engine tells which pieces it accepts.

In an array of strings that must contain one of ``[2, "low"]``, it finds ``,`` and ``"low"`` and ``]`` after ``["x"``.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from typing import Any, Protocol, Self, TypeVar

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.turn.drafts.endings import (
    beginnings,
    children,
    contained_beginnings,
    container_schemas,
    next_pieces,
    value_schemas,
)
from constrained_k2.turn.drafts.json_tracker import Expect, JsonTracker
from constrained_k2.turn.drafts.ways import Ways, ways_of
from constrained_k2.vocabulary.vocabulary import Vocabulary

_MAX_TRIES = 128  # pieces that one search tries, about 60 us each
_MAX_PIECES = 24  # of a way
_MAX_LENGTH = 512  # characters of a piece
FILLERS = ("-", "a", " ", "0", "A")
"""Characters that may stand between the other pieces of a string."""

Piece = str | int
"""A text, or a marker's id."""


class _Position(Protocol):
    def copy(self) -> Self:
        """An independent copy."""

    def feed(self, piece: Any, /) -> None:
        """Advance over the next characters, or over a marker's id."""


_Tracker = TypeVar("_Tracker", bound=_Position)


def search(
    tracker: _Tracker,
    goals: Iterable[Callable[[_Tracker], bool]],
    pieces: Callable[[_Tracker], Iterable[Piece]],
    matcher: Callable[[], ArgumentMatcher],
    vocabulary: Vocabulary,
) -> list[Piece]:
    """Return pieces that lead to the first goal that is found, few ones, and such as are named early; else none.

    The result depends on the position alone.

    Args:
        tracker: The position, which is left unchanged.
        goals: Each is true for the positions to reach.
        pieces: Names the pieces that may follow a position, the best first.
        matcher: Returns an engine's matcher at this position.
        vocabulary: That of the matcher.

    Raises:
        ConstrainedK2Error: The engine hit one of its limits. The matcher is lost then.
    """
    ways = (_way(tracker, goal, pieces, matcher(), vocabulary) for goal in goals)
    return next(filter(None, ways), [])


def _way(
    tracker: _Tracker,
    is_goal: Callable[[_Tracker], bool],
    pieces: Callable[[_Tracker], Iterable[Piece]],
    matcher: ArgumentMatcher,
    vocabulary: Vocabulary,
) -> list[Piece]:
    left: list[tuple[int, int, int, _Tracker, Iterator[Piece], list[Piece], list[int]]] = []
    heappush(left, (0, 0, 0, tracker, _distinct(pieces(tracker)), [], []))
    tries = 0
    while left and tries < _MAX_TRIES:
        cost, count, _, at, named, way, ids = heappop(left)
        for piece in named:
            tries += 1
            after = [*ids, piece] if isinstance(piece, int) else [*ids, *vocabulary.encode(piece)]
            if matcher.validate(after):
                ahead = at.copy()
                ahead.feed(piece)
                if is_goal(ahead):
                    return [*way, piece]
                if count < _MAX_PIECES:
                    following = ahead, _distinct(pieces(ahead)), [*way, piece], after
                    heappush(left, (cost + 1, count + 1, tries, *following))
                heappush(left, (cost + 1, count, tries, at, named, way, ids))  # the next piece costs one more
                break
    return []


def goals_of(tracker: JsonTracker, *, is_allowed: bool) -> Iterator[Callable[[JsonTracker], bool]]:
    """Yield the goals of a search where the pieces alone may never end a string or an array, the best first.

    A goal is the end of the outermost open array that must contain an item, or of a string that may not end yet.

    Args:
        tracker: The position.
        is_allowed: True if the mask allows the first piece to begin.
    """
    schemas: list[Any] = []
    document = _document(tracker)
    for depth, frame in enumerate(tracker.frames):
        schemas = children(schemas, tracker.frames[depth - 1], document) if depth else [document.root]
        if not frame.is_object and any("contains" in way for way in document.of(schemas)):
            is_end = depth == tracker.depth - 1 and tracker.expect in {Expect.AFTER, Expect.IN_SCALAR}
            if not (is_end and is_allowed):
                yield partial(_is_closed, depth)
            break
    if tracker.in_string and not is_allowed:
        yield _is_outside_string


def _is_closed(depth: int, tracker: JsonTracker) -> bool:
    return tracker.depth <= depth


def _is_outside_string(tracker: JsonTracker) -> bool:
    return not tracker.in_string


def searched_pieces(tracker: JsonTracker) -> Iterator[str]:
    """All pieces that a search tries, the best first."""
    yield from next_pieces(tracker)
    if tracker.in_string:
        yield from FILLERS
    elif tracker.expect in {Expect.VALUE, Expect.FIRST_ITEM}:
        document = _document(tracker)
        containers = container_schemas(tracker, document)
        yield from contained_beginnings(tracker, containers, document)
        yield from beginnings(document.of(value_schemas(tracker, document, containers)), document)


def _document(tracker: JsonTracker) -> Ways:
    return ways_of(tracker.frames[0].view.document if tracker.frames else tracker.value.document)


def _distinct(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces that are texts in UTF-8 of bounded length, or markers, each once."""
    seen: set[Piece] = {""}
    for piece in pieces:
        known = piece if isinstance(piece, int) else piece[:_MAX_LENGTH].encode(errors="ignore").decode()
        if known == piece and known not in seen:
            seen.add(known)
            yield known
