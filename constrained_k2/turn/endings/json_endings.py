"""Texts that end a call's arguments soonest, by the grammar's shapes. The mask decides whether one may be written.

Values take their shortest alternative (``null`` of a linked list), objects get the required keys of the one that lacks
the least, arrays end, strings get the shortest rest that their patterns and lengths demand. Numbers, if no multiple is
demanded, literals and the values of enums are left to the model.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Protocol, Self, TypeVar

from constrained_k2.schema.shapes import Number, Shape, String, Value, kind_of_shape
from constrained_k2.turn.cursors.json_cursor import JsonCursor, JsonPart, OpenContainer, spelled, unspelled
from constrained_k2.turn.endings.shortest import ShortestValues, values_of
from constrained_k2.turn.endings.text_rests import MOST, rests, rests_of_key

_LENGTH = 24  # about the length of the longest tokens in endings
_MAX_PIECES = 12
MAX_KEYS = 8  # to try at one place
_MAX_ORDERED = 32  # keys
_MAX_BEGINNINGS = 32  # of values
_LARGEST = 10**24  # numerator of a number to write
_TELLING = 64  # keys of an object by which its shapes are told apart
_PATIENCE = 12  # members or items of a container
_FREE_ITEM = 4  # every so many items beyond the one that an array must contain are left to the model

OPENINGS: dict[str, str] = {"string": '"', "object": "{", "array": "[", "null": "null"}
_BEGINNINGS = OPENINGS | {"boolean": "true"}


def endings(cursor: JsonCursor) -> Iterator[str]:
    """Texts that may follow to end the arguments soonest, the best first. The cursor is left unchanged."""
    for piece in next_pieces(cursor):
        if piece:
            yield lengthened(cursor, piece, lambda ahead: next_pieces(ahead, known_only=True))


class Cursor(Protocol):
    """A position in a text, which can be followed ahead."""

    is_done: bool

    def copy(self) -> Self:
        """An independent copy."""

    def feed(self, text: str) -> None:
        """Advance over the next characters."""


_Tracker = TypeVar("_Tracker", bound=Cursor)


def lengthened(cursor: _Tracker, piece: str, demanded: Callable[[_Tracker], Iterable[str | int]]) -> str:
    """A piece with the text that follows it, as far as it is ``demanded``: none behind a marker's id."""
    ahead, text, first = cursor.copy(), piece, piece
    for _ in range(_MAX_PIECES):
        ahead.feed(piece)
        if ahead.is_done or len(text) >= _LENGTH:
            break
        # Append only what the schema demands: a text that is too short still works, a wrong one would be discarded.
        more = [piece for piece in demanded(ahead) if piece][:1]
        if not more or isinstance(more[0], int):
            break
        piece = more[0]
        text += piece
    return text[: max(_LENGTH, min(len(first), MOST))]


def document_of(cursor: JsonCursor) -> ShortestValues:
    """The values of the document that a cursor follows."""
    return values_of(cursor.frames[0].view.document if cursor.frames else cursor.value.document)


def next_pieces(cursor: JsonCursor, *, known_only: bool = False) -> Iterable[str]:
    """The next pieces to try, the best first; with ``known_only`` at most one, which the schema demands."""
    expect = cursor.expect
    if expect is JsonPart.COLON:
        return (":",)
    document = document_of(cursor)
    containers = open_shapes(document, cursor.frames)
    if expect in {JsonPart.VALUE, JsonPart.FIRST_ITEM, JsonPart.IN_STRING}:
        found = value_shapes(document, cursor.frames, containers)
        constant = _constant(document, cursor.frames, containers[:1])
        if expect is JsonPart.IN_STRING:
            ends = _ends_of_string(cursor.token, found, known_only=known_only)
            if constant.startswith(f'"{cursor.token}'):
                rest = (constant[1 + len(cursor.token) :],)
                return rest if known_only else chain(rest, ends)
            return ends
        opening = constant or _opening(found)
        contained = _beginnings(_contained(document, cursor.frames, containers))
        if expect is JsonPart.VALUE:
            if contained and cursor.frames[-1].commas % _FREE_ITEM == 0:
                return ()  # an item of another kind is demanded as well
            return (opening,) if known_only else (*contained, opening)
        tried = [*contained, "]"] if _contained(document, cursor.frames, containers[:1]) else ["]", *contained]
        return tried[:1] if known_only else (*tried, opening)
    if not cursor.frames:
        return ()
    number = _rests_of_number(document, cursor, containers)
    if not cursor.frames[-1].is_object:
        return ("]",) if known_only else ("]", *number, ",")
    written = set(cursor.frames[-1].keys)
    keys = missing_keys(document, containers, written)
    others = [key for key in declared_keys(document, containers, written) if key not in keys]
    keys, others = _by_refusal(keys, written), _by_refusal(others, written)
    demanded = next(iter(keys), "")
    if expect is JsonPart.IN_KEY:
        possible = [key for key in (*keys, *others) if key.startswith(cursor.token)]
        ends = [f'{key[len(cursor.token) :]}":' for key in possible][:MAX_KEYS]
        return ends[:1] if known_only else ends or _rests_of_key(document, cursor.token, containers, written)
    separator = "" if expect in {JsonPart.KEY, JsonPart.FIRST_KEY} else ","
    if known_only:
        return (f'{separator}"{demanded}":',) if demanded else () if expect is JsonPart.KEY else ("}",)
    tried = [f'{separator}"{key}":' for key in [*keys, *others][:MAX_KEYS]] or [f'{separator}"']
    if expect is JsonPart.KEY:
        return tried
    return ["}", *number, *tried]


def open_shapes(document: ShortestValues, frames: list[OpenContainer]) -> list[Shape]:
    """The shapes that the innermost open container has, or else the whole text, the one of the shortest value first.

    Shapes contradicted by the keys and scalars already written are dropped. If all are (as under a pattern), none is.
    """
    found = document.shapes()
    for number, frame in enumerate(frames):
        found = value_shapes(document, frames[:number], found)
        found = [shape for shape in found if _fits(document, shape, frame)] or found
    return found


def value_shapes(document: ShortestValues, frames: list[OpenContainer], containers: list[Shape]) -> list[Shape]:
    """The shapes of the value that comes next or is being written, in the order of those of its container.

    After some members or items another shape of the container comes first: the mask may refuse to end the first one.
    """
    if not (frames and containers):
        return containers
    frame = frames[-1]
    turned = frame.commas // _PATIENCE % len(containers)
    containers = [*containers[turned:], *containers[:turned]]
    if frame.is_object:
        name = name_of(frame.keys[-1]) if frame.keys else ""
        several = [document.members(shape, name) for shape in containers]
    else:
        several = [document.items(shape, frame.commas) for shape in containers]
    return list(dict.fromkeys(chain.from_iterable(several)))


def _fits(document: ShortestValues, shape: Shape, frame: OpenContainer) -> bool:
    if kind_of_shape(shape) != ("object" if frame.is_object else "array"):
        return False
    told = frame.keys[:_TELLING]
    return all(document.may_have(shape, name_of(key), frame.scalars.get(key, "")) for key in told)


def name_of(key: str) -> str:
    """A key, from its JSON without quotes."""
    text = unspelled(key)
    return key if text is None else text


def _constant(document: ShortestValues, frames: list[OpenContainer], shortest: list[Shape]) -> str:
    """The only value, as JSON, in the container of the shortest value: it chooses that one; empty if there are more."""
    found = _contained(document, frames, shortest) or value_shapes(document, frames, shortest)
    return text_of(found[0]) if len(found) == 1 and isinstance(found[0], Value) else ""


def text_of(value: Value) -> str:
    """A value as JSON, in the only spelling that the grammars accept."""
    return json.dumps(value.value, ensure_ascii=False)


def _opening(found: list[Shape]) -> str:
    """The beginning of the shortest value; empty where the model is to choose."""
    if not found:
        return ""
    if isinstance(found[0], Value):
        return '"' if all(isinstance(shape, Value) and shape.value_kind == "string" for shape in found) else ""
    return multiple_of(found[0]) if isinstance(found[0], Number) else OPENINGS.get(kind_of_shape(found[0]), "")


def _contained(document: ShortestValues, frames: list[OpenContainer], containers: list[Shape]) -> list[Shape]:
    """The shapes of the items that an open array must contain."""
    if not frames or frames[-1].is_object:
        return []
    return [one for shape in containers for one in document.contained(shape, frames[-1].commas)]


def _beginnings(shapes: list[Shape]) -> list[str]:
    """The beginnings of values, or whole ones: all that are listed, and one of each type."""
    return [text for text in dict.fromkeys(map(_beginning, shapes)) if text][:_MAX_BEGINNINGS]


def _beginning(shape: Shape) -> str:
    if isinstance(shape, Value):
        return text_of(shape)
    return multiple_of(shape, Fraction(1)) if isinstance(shape, Number) else _BEGINNINGS[shape.kind]


def multiple_of(number: Number, unit: Fraction = Fraction(0)) -> str:
    """A short multiple within the bounds, as JSON; empty if none is demanded or found. ``unit`` is the default."""
    if not (number.multiple or unit):
        return ""
    low, high = number.low, number.high
    found = low if low is not None and low > 0 else high if high is not None and high < 0 else Fraction(0)
    if max(abs(found.numerator), found.denominator) > _LARGEST:
        return ""
    text = f"{Decimal(found.numerator) / found.denominator:f}"
    return text if Fraction(text) == found else ""


def _rests_of_number(document: ShortestValues, cursor: JsonCursor, containers: list[Shape]) -> list[str]:
    """The rests of multiples that the number being written may become."""
    if cursor.expect is not JsonPart.IN_SCALAR:
        return []
    found = value_shapes(document, cursor.frames, containers)
    texts = [multiple_of(shape) for shape in found if isinstance(shape, Number)]
    return [rest for text in texts if text.startswith(cursor.token) and (rest := text[len(cursor.token) :])]


def _ends_of_string(begun: str, found: list[Shape], *, known_only: bool) -> Iterable[str]:
    free = [shape for shape in found if isinstance(shape, String)]
    texts = [text_of(shape) for shape in found if isinstance(shape, Value)]
    ends = dict.fromkeys(text[1 + len(begun) :] for text in texts if text.startswith(f'"{begun}'))
    if ends and not free:
        yield from ends if len(ends) == 1 and begun else ()
        return
    yield '"'
    if not known_only:
        yield from ends
    if not known_only and (text := unspelled(begun)) is not None:
        yield from (spelled(rest) for rest in rests(text, free))


def missing_keys(document: ShortestValues, found: list[Shape], written: set[str]) -> list[str]:
    """The required keys that are missing, of the shape that lacks the least first; empty if the object may end."""
    lacking: list[tuple[float, list[str]]] = []
    for shape in found:
        missing = document.missing(shape, written)
        length = sum(len(key) + 4 + document.length_of_member(shape, key) for key in missing)
        lacking.append((length, missing))
    lacking.sort(key=lambda entry: entry[0])
    if not lacking or not lacking[0][1]:
        return []
    return list(dict.fromkeys(spelled(key) for _, missing in lacking for key in missing))


def declared_keys(document: ShortestValues, found: list[Shape], written: set[str]) -> list[str]:
    """The declared keys that are missing."""
    keys = dict.fromkeys(spelled(key) for shape in found for key in document.declared(shape))
    return [key for key in keys if key not in written]


def _by_refusal(keys: list[str], written: set[str]) -> list[str]:
    """Keys in their order, but last those that others extend: these went on where the mask refused the key's end."""
    several = keys[:_MAX_ORDERED]
    return [*sorted(several, key=lambda key: any(other.startswith(key) for other in written)), *keys[_MAX_ORDERED:]]


def _rests_of_key(document: ShortestValues, begun: str, found: list[Shape], written: set[str]) -> Iterator[str]:
    """The rests of a key that begins as no declared one does."""
    text = unspelled(begun)
    found_rests = () if text is None else rests_of_key(text, document.key_patterns(found))
    others = [begun + spelled(rest) for rest in found_rests]
    yield from (f'{key[len(begun) :]}":' for key in others if key not in written)
    yield '":'
    yield from (key[len(begun) :] for key in others if key in written)
