"""Pieces that end a call's arguments soonest, by its schema: markers and texts. The mask decides whether one is legal.

Blocks of required keys come first, with the type of the shortest value. Strings end as soon as they may.
"""

import json
from collections.abc import Iterable, Iterator
from math import inf

from constrained_k2.formats.kimi_k3 import ARGUMENT, BEFORE_KEY, BEFORE_TYPE, KEY_PIECES, TYPE_PIECES, escape, unescape
from constrained_k2.schema.shapes import Shape, String, Value, kind_of_shape
from constrained_k2.turn.cursors.json_cursor import MAX_TOKEN, JsonPart, spelled
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor, XtmlPart
from constrained_k2.turn.cursors.xtml_tags import TYPE_WORDS, rest_of_piece
from constrained_k2.turn.endings.json_endings import (
    MAX_KEYS,
    OPENINGS,
    declared_keys,
    document_of,
    lengthened,
    missing_keys,
    name_of,
    next_pieces,
    open_shapes,
    text_of,
    value_shapes,
)
from constrained_k2.turn.endings.shortest import ShortestValues
from constrained_k2.turn.endings.text_rests import rests, rests_of_key


def xtml_endings(cursor: XtmlCursor) -> Iterator[str | int]:
    """Texts and markers' ids that may follow, the best first. The cursor is left unchanged."""
    for piece in _pieces(cursor):
        if isinstance(piece, int) or cursor.part is not XtmlPart.VALUE or cursor.kind == "string":
            yield piece
        elif piece:
            yield lengthened(cursor, piece, lambda ahead: _pieces(ahead, known_only=True))


def _pieces(cursor: XtmlCursor, *, known_only: bool = False) -> Iterable[str | int]:
    """The next pieces to try, the best first; with ``known_only`` at most one, which the schema demands."""
    place, inner = cursor.part, cursor.json
    if place is XtmlPart.BETWEEN:
        return (cursor.markers.call_begin,)
    if place is XtmlPart.END_TAG:
        return (ARGUMENT[len(cursor.tag) :] or cursor.markers.argument_begin,)
    document = document_of(inner)
    if place is XtmlPart.TAG:
        return _rests_of_tag(cursor, document)
    if len(inner.frames) > 1:
        return next_pieces(inner, known_only=known_only)
    if cursor.kind != "string" and inner.expect is not JsonPart.VALUE:
        return (cursor.markers.call_end,)
    containers = open_shapes(document, inner.frames)
    texts = _options(value_shapes(document, inner.frames, containers[:1]), cursor.kind)
    constant = texts[0] if texts is not None and len(texts) == 1 else None
    if cursor.kind == "string":
        return _ends_of_text(cursor, constant, value_shapes(document, inner.frames, containers))
    return (OPENINGS.get(cursor.kind, "") if constant is None else constant,)


def _options(found: list[Shape], kind: str) -> list[str] | None:
    """The values of a type, as JSON, if they are listed; None if others are possible."""
    of_type = [shape for shape in found if kind_of_shape(shape) == kind]
    texts = [text_of(shape) for shape in of_type if isinstance(shape, Value)]
    return texts if len(texts) == len(of_type) else None


def _ends_of_text(cursor: XtmlCursor, constant: str | None, found: list[Shape]) -> Iterator[str | int]:
    begun, end = cursor.json.token, cursor.markers.call_end
    if constant is not None and (text := json.loads(constant)).startswith(begun):
        yield text[len(begun) :] or end
        return
    texts = _options(found, "string")
    if texts:
        ends = {text[len(begun) :] for text in map(json.loads, texts) if text.startswith(begun)}
        rest = ends.pop() if len(ends) == 1 else ""
        yield rest if begun and rest else end
        return
    yield end
    if len(begun) < MAX_TOKEN:
        yield from rests(begun, [shape for shape in found if isinstance(shape, String)])


def _rests_of_tag(cursor: XtmlCursor, document: ShortestValues) -> Iterable[str | int]:
    """The rests of the piece of the tag that is being written."""
    tag = cursor.tag
    if len(tag) < len(BEFORE_KEY):
        return (rest_of_piece(tag, KEY_PIECES),)
    containers = open_shapes(document, cursor.json.frames)
    begun, is_whole, after = tag[len(BEFORE_KEY) :].partition('"')
    if not is_whole:
        return _rests_of_key(begun, containers, set(cursor.members.keys), document)
    if len(after) < len(BEFORE_TYPE):
        return (rest_of_piece(after, TYPE_PIECES),)
    word = after[len(BEFORE_TYPE) :]
    if word.endswith('"'):
        return (cursor.markers.argument_begin,)
    key = unescape(begun)
    words = _type_words([one for shape in containers for one in document.members(shape, key)], document)
    return [each[len(word) :] or '"' for each in words if each.startswith(word)]


def _rests_of_key(begun: str, found: list[Shape], written: set[str], document: ShortestValues) -> Iterator[str]:
    """The rests of keys: required ones, then declared ones with the shortest value; else another key, and its end."""
    keys = missing_keys(document, found, written)
    possible = [key for key in (*keys, *declared_keys(document, found, written)) if _in_tag(key).startswith(begun)]
    if not keys:
        possible.sort(key=lambda key: min(document.length_of_member(shape, name_of(key)) for shape in found))
    yield from dict.fromkeys(_in_tag(key)[len(begun) :] or '"' for key in possible[:MAX_KEYS])
    if not possible:
        text = unescape(begun)
        others = (
            rest for rest in rests_of_key(text, document.key_patterns(found)) if spelled(text + rest) not in written
        )
        yield from dict.fromkeys(escape(rest) or '"' for rest in others)
    yield '"'


def _in_tag(key: str) -> str:
    """A key as a tag spells it, from its JSON without quotes."""
    return escape(name_of(key))


def _type_words(found: list[Shape], document: ShortestValues) -> list[str]:
    """The type words of a key's values, that of the shortest value first; words that no schema names come last."""
    lengths: dict[str, float] = {}
    for shape in found:
        word = kind_of_shape(shape)
        length = document.length(shape) - 2 * (word == "string")  # a string has no quotes here
        lengths[word] = min(lengths.get(word, inf), length)
    return [*sorted(lengths, key=lambda word: lengths[word]), *(word for word in TYPE_WORDS if word not in lengths)]
