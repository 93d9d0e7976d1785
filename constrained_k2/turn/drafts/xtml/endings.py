"""Pieces that end a call's arguments soonest, by its schema: markers and texts. The mask decides whether one is legal.

Blocks of required keys come first, with the type of the shortest value. Strings end as soon as they may.
"""

import json
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from constrained_k2.formats.kimi_k3 import ARGUMENT, escape, unescape
from constrained_k2.turn.drafts.endings import (
    MAX_KEYS,
    container_schemas,
    declared_keys,
    lengthened,
    missing_keys,
    next_pieces,
    possible_ways,
    property_schemas,
    value_schemas,
)
from constrained_k2.turn.drafts.guesses import spelled
from constrained_k2.turn.drafts.json_tracker import MAX_TOKEN, Expect
from constrained_k2.turn.drafts.text_rests import rests, rests_of_key
from constrained_k2.turn.drafts.ways import Way, Ways, kinds, options, ways_of
from constrained_k2.turn.drafts.xtml.tags import (
    BEFORE_KEY,
    BEFORE_TYPE,
    KEY_PIECES,
    TYPE_PIECES,
    TYPE_WORDS,
    kind_of_option,
    rest_of_piece,
    type_word,
)
from constrained_k2.turn.drafts.xtml.tracker import Place, XtmlTracker

_OPENINGS = {"object": "{", "array": "[", "null": "null"}


def xtml_endings(tracker: XtmlTracker) -> Iterator[str | int]:
    """Texts and markers' ids that may follow, the best first. The tracker is left unchanged."""
    for piece in _pieces(tracker):
        if isinstance(piece, int) or tracker.place is not Place.VALUE or tracker.kind == "string":
            yield piece
        elif piece:
            yield lengthened(tracker, piece, lambda ahead: _pieces(ahead, known_only=True))


def _pieces(tracker: XtmlTracker, *, known_only: bool = False) -> Iterable[str | int]:
    """The next pieces to try, the best first; with ``known_only`` at most one, which the schema demands."""
    place, inner = tracker.place, tracker.json
    if place is Place.BETWEEN:
        return (tracker.markers.call_begin,)
    if place is Place.END_TAG:
        return (ARGUMENT[len(tracker.tag) :] or tracker.markers.argument_begin,)
    document = ways_of(tracker.members.view.document)
    if place is Place.TAG:
        return _rests_of_tag(tracker, document)
    if len(inner.frames) > 1:
        return next_pieces(inner, known_only=known_only)
    if tracker.kind != "string" and inner.expect is not Expect.VALUE:
        return (tracker.markers.call_end,)
    values = value_schemas(inner, document, container_schemas(inner, document))
    texts = _options(document.of(values[:1]), tracker.kind)
    constant = texts[0] if texts is not None and len(texts) == 1 else None
    if tracker.kind == "string":
        return _ends_of_text(tracker, constant, document.of(values))
    return (_OPENINGS.get(tracker.kind, "") if constant is None else constant,)


def _options(found: list[Way], kind: str) -> list[str] | None:
    """The values of a type, as JSON, where all ways list them; None if one does not."""
    texts: dict[str, None] = {}
    for way in found:
        listed = options(way)
        if listed:
            texts.update(dict.fromkeys(text for text in listed if kind_of_option(text) == kind))
        elif not kinds(way) or kind in map(type_word, kinds(way)):
            return None
    return list(texts)


def _ends_of_text(tracker: XtmlTracker, constant: str | None, found: list[Way]) -> Iterator[str | int]:
    begun, end = tracker.json.token, tracker.markers.call_end
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
        yield from rests(begun, found)


def _rests_of_tag(tracker: XtmlTracker, document: Ways) -> Iterable[str | int]:
    """The rests of the piece of the tag that is being written."""
    tag = tracker.tag
    if len(tag) < len(BEFORE_KEY):
        return (rest_of_piece(tag, KEY_PIECES),)
    frame = tracker.members
    found = possible_ways(document.of([document.root]), frame)
    begun, is_whole, after = tag[len(BEFORE_KEY) :].partition('"')
    if not is_whole:
        return _rests_of_key(begun, found, set(frame.keys), document)
    if len(after) < len(BEFORE_TYPE):
        return (rest_of_piece(after, TYPE_PIECES),)
    word = after[len(BEFORE_TYPE) :]
    if word.endswith('"'):
        return (tracker.markers.argument_begin,)
    words = _type_words(property_schemas(found, spelled(unescape(begun))), document)
    return [each[len(word) :] or '"' for each in words if each.startswith(word)]


def _rests_of_key(begun: str, found: list[Way], written: set[str], document: Ways) -> Iterator[str]:
    """The rests of keys: required ones, then declared ones with the shortest value; else another key, and its end."""
    keys = missing_keys(found, written, document)
    possible = [key for key in (*keys, *declared_keys(found, written)) if _in_tag(key).startswith(begun)]
    if not keys:
        possible.sort(key=lambda key: min(map(document.shortest, property_schemas(found, key)), default=0))
    yield from dict.fromkeys(_in_tag(key)[len(begun) :] or '"' for key in possible[:MAX_KEYS])
    if not possible:
        text = unescape(begun)
        others = (rest for rest in rests_of_key(text, found) if spelled(text + rest) not in written)
        yield from dict.fromkeys(escape(rest) or '"' for rest in others)
    yield '"'


def _in_tag(key: str) -> str:
    """A key as a tag spells it, from its JSON without quotes."""
    return escape(json.loads(f'"{key}"') if "\\" in key else key)


def _type_words(schemas: list[Any], document: Ways) -> list[str]:
    """The type words of a key's values, that of the shortest value first; words that no schema names come last."""
    lengths: dict[str, float] = {}
    for way in document.of(schemas):
        texts = [(kind_of_option(text), len(text)) for text in options(way)]
        for kind, length in texts or document.lengths(way).items():
            word = type_word(kind)
            lengths[word] = min(lengths.get(word, inf), length - 2 * (word == "string"))  # a string has no quotes here
    return [*sorted(lengths, key=lambda word: lengths[word]), *(word for word in TYPE_WORDS if word not in lengths)]
