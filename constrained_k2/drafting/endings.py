"""The characters by which a call's arguments come to their end soonest.

As a guess of what is likely (:mod:`.likely`) this is only one: the grammar says whether it may stand. What a value is
to be is left to the model where all there is to choose from is short: numbers, literals, and enums.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache

from constrained_k2.drafting.cursor import Cursor, Frame, Place

_CHARACTERS = 24  # about the longest tokens that endings are written with
_STEPS = 12


def endings(cursor: Cursor) -> Iterator[str]:
    """What may follow to end the arguments soonest, the better first.

    Args:
        cursor: Where the text stands; it is left as it is.

    Yields:
        Texts of some characters; none where nothing is known.
    """
    for piece in _pieces(cursor):
        if piece:
            yield _lengthened(cursor, piece)


def _lengthened(cursor: Cursor, piece: str) -> str:
    ahead, text = cursor.copy(), piece
    for _ in range(_STEPS):
        ahead.feed(piece)
        if ahead.is_done or len(text) >= _CHARACTERS:
            break
        # Only what the schema is known to demand: a shorter text is always found, for a wrong one the next to try is.
        piece = next(filter(None, _pieces(ahead, known_only=True)), "")
        if not piece:
            break
        text += piece
    return text[:_CHARACTERS]


def _pieces(cursor: Cursor, *, known_only: bool = False) -> Sequence[str]:
    """The next pieces that are worth trying, the better first; with ``known_only`` at most one that should be right."""
    place = cursor.place
    if place is Place.IN_STRING:
        return () if cursor.value.options else ('"',)
    if place is Place.COLON:
        return (":",)
    if place is Place.VALUE:
        return (_opening(cursor),)
    if place is Place.FIRST_ITEM:
        return ("]",) if known_only else ("]", _opening(cursor))
    if not cursor.frames:
        return ()
    frame = cursor.frames[-1]
    if not frame.is_object:
        return ("]",) if known_only else ("]", ",")
    key = _key_due(frame)
    if place is Place.IN_KEY:
        return (_rest_of_key(cursor.token, frame, known_only=known_only),)
    if place is Place.KEY:
        return (key,) if known_only or frame.view.properties else (key, '"')
    if place is Place.FIRST_KEY:
        pieces = ("}", key) if frame.view.properties else ("}", key, '"')
    else:
        pieces = ("}", "," + key)
    return pieces[bool(key) :][:1] if known_only else pieces


def _opening(cursor: Cursor) -> str:
    """How a value begins whose end can then be steered; empty where that is left to the model."""
    return "" if cursor.value.options else {"string": '"', "array": "[", "object": "{"}.get(cursor.value.kind, "")


def _key_due(frame: Frame) -> str:
    """The next required key that is not written, with its colon; empty if there is none."""
    written = set(frame.keys)
    return next((f'"{key}":' for key in map(_spelled, frame.view.required) if key not in written), "")


def _rest_of_key(prefix: str, frame: Frame, *, known_only: bool) -> str:
    """The rest of a key that has been begun: a required one, else any; else its end, where keys are free."""
    written = set(frame.keys)
    for key in map(_spelled, (*frame.view.required, *frame.view.properties)):
        if key.startswith(prefix) and key not in written:
            return f'{key[len(prefix) :]}":'
    return "" if known_only else '":'


@lru_cache(maxsize=4096)
def _spelled(key: str) -> str:
    """A key as it stands between its quotes, in the one spelling that grammars take it in."""
    return json.dumps(key, ensure_ascii=False)[1:-1]
