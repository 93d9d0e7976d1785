"""Proposes short texts that complete JSON arguments or answers; masks decide which are legal.

It proposes the shortest allowed value (``null`` in a linked list), the missing required keys of an object, the end of
an array, and the shortest suffix that a string's pattern and length demand. If an object has several alternatives, the
one with the shortest missing text comes first. Numbers without ``multipleOf``, booleans and choices among enum values
are left to the model.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Protocol, Self, TypeVar

from constrained_k2.grammar.plan.nodes import Alternative, NumberPlan, Plan, StringPlan, kind_of_alternative
from constrained_k2.schema.shapes import ListedValue, Number
from constrained_k2.turn.completions.plan_values import PlanValues, values_of
from constrained_k2.turn.completions.string_suffixes import MOST, suffixes, suffixes_of_key
from constrained_k2.turn.cursors.json_cursor import JsonCursor, JsonPart, OpenContainer, spelled, unspelled

_LENGTH = 24  # characters, about as many as the longest token of a completion has
_MAX_PIECES = 12
MAX_KEYS = 8  # max keys to try next
_MAX_ORDERED = 32  # max keys
_MAX_BEGINNINGS = 32  # max prefixes of values
_LARGEST = 10**24  # max numerator of a number to write
_TELLING = 64  # max keys of an object that are compared with its alternatives
_PATIENCE = 12  # after this many members or items, another alternative of the container is tried
_FREE_ITEM = 4  # while an array lacks an item that it must contain, every fourth item is left to the model

OPENINGS: dict[str, str] = {"string": '"', "object": "{", "array": "[", "null": "null"}
_BEGINNINGS = OPENINGS | {"boolean": "true"}


def json_completions(cursor: JsonCursor, plan: Plan) -> Iterator[str]:
    """Texts that may come next and end the arguments soonest, best first. The cursor is left unchanged."""
    values = values_of(plan)
    for piece in next_pieces(cursor, values):
        if piece:
            yield lengthened(cursor, piece, lambda ahead: next_pieces(ahead, values, known_only=True))


class Cursor(Protocol):
    """A parser state in a text. A copy of it can be fed texts that may follow."""

    is_done: bool

    def copy(self) -> Self:
        """An independent copy."""

    def feed(self, text: str) -> None:
        """Advance over the next characters."""


_Tracker = TypeVar("_Tracker", bound=Cursor)


def lengthened(cursor: _Tracker, piece: str, demanded: Callable[[_Tracker], Iterable[str | int]]) -> str:
    """A piece and the text that must follow it, which ``demanded`` returns, up to the next marker."""
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


def next_pieces(cursor: JsonCursor, values: PlanValues, *, known_only: bool = False) -> Iterable[str]:
    """The next pieces to try, best first; with ``known_only``, at most one piece, which the schema demands."""
    expect = cursor.expect
    if expect is JsonPart.COLON:
        return (":",)
    containers = open_alternatives(values, cursor.frames)
    if expect in {JsonPart.VALUE, JsonPart.FIRST_ITEM, JsonPart.IN_STRING}:
        found = value_alternatives(values, cursor.frames, containers)
        constant = _constant(values, cursor.frames, containers[:1])
        if expect is JsonPart.IN_STRING:
            ends = _ends_of_string(cursor.token, found, known_only=known_only)
            if constant.startswith(f'"{cursor.token}'):
                rest = (constant[1 + len(cursor.token) :],)
                return rest if known_only else chain(rest, ends)
            return ends
        opening = constant or _opening(found)
        contained = _beginnings(_contained(values, cursor.frames, containers))
        if expect is JsonPart.VALUE:
            if contained and cursor.frames[-1].commas % _FREE_ITEM == 0:
                return ()  # left to the model, which may also have to write an item of another kind
            return (opening,) if known_only else (*contained, opening)
        tried = [*contained, "]"] if _contained(values, cursor.frames, containers[:1]) else ["]", *contained]
        return tried[:1] if known_only else (*tried, opening)
    if not cursor.frames:
        return ()
    number = _rests_of_number(values, cursor, containers)
    if not cursor.frames[-1].is_object:
        return ("]",) if known_only else ("]", *number, ",")
    written = set(cursor.frames[-1].keys)
    keys = missing_keys(values, containers, written)
    others = [key for key in declared_keys(values, containers, written) if key not in keys]
    keys, others = _by_refusal(keys, written), _by_refusal(others, written)
    demanded = next(iter(keys), "")
    if expect is JsonPart.IN_KEY:
        possible = [key for key in (*keys, *others) if key.startswith(cursor.token)]
        ends = [f'{key[len(cursor.token) :]}":' for key in possible][:MAX_KEYS]
        return ends[:1] if known_only else ends or _rests_of_key(values, cursor.token, containers, written)
    separator = "" if expect in {JsonPart.KEY, JsonPart.FIRST_KEY} else ","
    if known_only:
        return (f'{separator}"{demanded}":',) if demanded else () if expect is JsonPart.KEY else ("}",)
    tried = [f'{separator}"{key}":' for key in [*keys, *others][:MAX_KEYS]] or [f'{separator}"']
    if expect is JsonPart.KEY:
        return tried
    return ["}", *number, *tried]


def open_alternatives(values: PlanValues, frames: list[OpenContainer]) -> list[Alternative]:
    """The alternatives of the innermost open container, else of the whole text, shortest first.

    Alternatives that the keys and scalars already written contradict are dropped. If all would be dropped (as under a
    pattern), none is.
    """
    found = values.roots()
    for number, frame in enumerate(frames):
        found = value_alternatives(values, frames[:number], found)
        found = [one for one in found if _fits(values, one, frame)] or found
    return found


def value_alternatives(
    values: PlanValues, frames: list[OpenContainer], containers: list[Alternative]
) -> list[Alternative]:
    """The alternatives of the next or current value, starting with the container's first alternative.

    After some members or items, another alternative of the container comes first, since the mask may forbid the end
    that the first alternative leads to.
    """
    if not (frames and containers):
        return containers
    frame = frames[-1]
    turned = frame.commas // _PATIENCE % len(containers)
    containers = [*containers[turned:], *containers[:turned]]
    if frame.is_object:
        name = name_of(frame.keys[-1]) if frame.keys else ""
        several = [values.members(one, name) for one in containers]
    else:
        several = [values.items(one, frame.commas) for one in containers]
    return _distinct(chain.from_iterable(several))


def _distinct(alternatives: Iterable[Alternative]) -> list[Alternative]:
    """Drop duplicates: constants are compared by value, others by identity, since large objects compare slowly."""
    return list({one if isinstance(one, ListedValue) else id(one): one for one in alternatives}.values())


def _fits(values: PlanValues, one: Alternative, frame: OpenContainer) -> bool:
    if kind_of_alternative(one) != ("object" if frame.is_object else "array"):
        return False
    told = frame.keys[:_TELLING]
    return all(values.may_have(one, name_of(key), frame.scalars.get(key, "")) for key in told)


def name_of(key: str) -> str:
    """A key, from its JSON without quotes."""
    text = unspelled(key)
    return key if text is None else text


def _constant(values: PlanValues, frames: list[OpenContainer], shortest: list[Alternative]) -> str:
    """The value's JSON if the container's shortest alternative allows only one constant here; else empty."""
    found = _contained(values, frames, shortest) or value_alternatives(values, frames, shortest)
    return text_of(found[0]) if len(found) == 1 and isinstance(found[0], ListedValue) else ""


def text_of(value: ListedValue) -> str:
    """A value as JSON, in the only spelling that the grammars accept."""
    return json.dumps(value.value, ensure_ascii=False)


def _opening(found: list[Alternative]) -> str:
    """A prefix of the shortest value; empty if the choice is left to the model."""
    if not found:
        return ""
    if isinstance(found[0], ListedValue):
        return '"' if all(isinstance(one, ListedValue) and one.value_kind == "string" for one in found) else ""
    return (
        nearest_zero(found[0].shape)
        if isinstance(found[0], NumberPlan)
        else OPENINGS.get(kind_of_alternative(found[0]), "")
    )


def _contained(values: PlanValues, frames: list[OpenContainer], containers: list[Alternative]) -> list[Alternative]:
    """The alternatives of the items that an open array must contain."""
    if not frames or frames[-1].is_object:
        return []
    return [one for one in containers for one in values.contained(one, frames[-1].commas)]


def _beginnings(alternatives: list[Alternative]) -> list[str]:
    """Prefixes of values, or whole ones: all constants, and one for each type."""
    return [text for text in dict.fromkeys(map(_beginning, alternatives)) if text][:_MAX_BEGINNINGS]


def _beginning(one: Alternative) -> str:
    if isinstance(one, ListedValue):
        return text_of(one)
    return (
        nearest_zero(one.shape, multiples_only=False)
        if isinstance(one, NumberPlan)
        else _BEGINNINGS[kind_of_alternative(one)]
    )


def nearest_zero(number: Number, *, multiples_only: bool = True) -> str:
    """The number nearest zero within the bounds, as JSON; empty without ``multipleOf`` if ``multiples_only``."""
    if multiples_only and not number.multiple:
        return ""
    low, high = number.low, number.high
    found = low if low is not None and low > 0 else high if high is not None and high < 0 else Fraction(0)
    if max(abs(found.numerator), found.denominator) > _LARGEST:
        return ""
    text = f"{Decimal(found.numerator) / found.denominator:f}"
    return text if Fraction(text) == found else ""


def _rests_of_number(values: PlanValues, cursor: JsonCursor, containers: list[Alternative]) -> list[str]:
    """The suffixes that complete the current number to a multiple that the schema demands."""
    if cursor.expect is not JsonPart.IN_SCALAR:
        return []
    found = value_alternatives(values, cursor.frames, containers)
    texts = [nearest_zero(one.shape) for one in found if isinstance(one, NumberPlan)]
    return [rest for text in texts if text.startswith(cursor.token) and (rest := text[len(cursor.token) :])]


def _ends_of_string(begun: str, found: list[Alternative], *, known_only: bool) -> Iterable[str]:
    free = [one.shape for one in found if isinstance(one, StringPlan)]
    texts = [text_of(one) for one in found if isinstance(one, ListedValue)]
    ends = dict.fromkeys(text[1 + len(begun) :] for text in texts if text.startswith(f'"{begun}'))
    if ends and not free:
        yield from ends if len(ends) == 1 and begun else ()
        return
    yield '"'
    if not known_only:
        yield from ends
    if not known_only and (text := unspelled(begun)) is not None:
        yield from (spelled(rest) for rest in suffixes(text, free))


def missing_keys(values: PlanValues, found: list[Alternative], written: set[str]) -> list[str]:
    """The missing required keys, alternatives with less missing text first; empty if the object may end."""
    lacking: list[tuple[float, list[str]]] = []
    for one in found:
        missing = values.missing(one, written)
        length = sum(len(key) + 4 + values.cost_of_member(one, key) for key in missing)
        lacking.append((length, missing))
    lacking.sort(key=lambda entry: entry[0])
    if not lacking or not lacking[0][1]:
        return []
    return list(dict.fromkeys(spelled(key) for _, missing in lacking for key in missing))


def declared_keys(values: PlanValues, found: list[Alternative], written: set[str]) -> list[str]:
    """The declared keys that the object does not have yet."""
    keys = dict.fromkeys(spelled(key) for one in found for key in values.declared(one))
    return [key for key in keys if key not in written]


def _by_refusal(keys: list[str], written: set[str]) -> list[str]:
    """Move keys that are prefixes of written keys to the end: the mask seems to forbid ending these keys."""
    several = keys[:_MAX_ORDERED]
    return [*sorted(several, key=lambda key: any(other.startswith(key) for other in written)), *keys[_MAX_ORDERED:]]


def _rests_of_key(values: PlanValues, begun: str, found: list[Alternative], written: set[str]) -> Iterator[str]:
    """The suffixes of a key whose prefix no declared key has."""
    text = unspelled(begun)
    found_rests = () if text is None else suffixes_of_key(text, values.key_patterns(found))
    others = [begun + spelled(rest) for rest in found_rests]
    yield from (f'{key[len(begun) :]}":' for key in others if key not in written)
    yield '":'
    yield from (key[len(begun) :] for key in others if key in written)
