"""Proposes short texts that complete Kimi K3's XTML arguments; masks decide which are legal.

Required keys come first, each in a block (a tagged argument) with the type of its shortest value. Strings end as soon
as the mask allows.
"""

import json
from collections.abc import Iterable, Iterator
from math import inf

from constrained_k2.formats.kimi_k3 import ARGUMENT, BEFORE_KEY, BEFORE_TYPE, KEY_PIECES, TYPE_PIECES, escape, unescape
from constrained_k2.grammar.plan.nodes import Alternative, Plan, StringPlan, kind_of_alternative
from constrained_k2.schema.shapes import ListedValue
from constrained_k2.turn.completions.json_completions import (
    MAX_KEYS,
    OPENINGS,
    declared_keys,
    lengthened,
    missing_keys,
    name_of,
    next_pieces,
    open_alternatives,
    text_of,
    value_alternatives,
)
from constrained_k2.turn.completions.plan_values import PlanValues, values_of
from constrained_k2.turn.completions.string_suffixes import suffixes, suffixes_of_key
from constrained_k2.turn.cursors.json_cursor import MAX_TOKEN, JsonPart, spelled
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor, XtmlPart
from constrained_k2.turn.cursors.xtml_tags import TYPE_WORDS, rest_of_piece


def xtml_completions(cursor: XtmlCursor, plan: Plan) -> Iterator[str | int]:
    """Texts and marker ids that may come next and end the arguments soonest, best first. The cursor is unchanged."""
    values = values_of(plan)
    for piece in _pieces(cursor, values):
        if isinstance(piece, int) or cursor.part is not XtmlPart.VALUE or cursor.kind == "string":
            yield piece
        elif piece:
            yield lengthened(cursor, piece, lambda ahead: _pieces(ahead, values, known_only=True))


def _pieces(cursor: XtmlCursor, values: PlanValues, *, known_only: bool = False) -> Iterable[str | int]:
    """The next pieces to try, best first; with ``known_only``, at most one piece, which the schema demands."""
    place, inner = cursor.part, cursor.json
    if place is XtmlPart.BETWEEN:
        return (cursor.markers.call_begin,)
    if place is XtmlPart.END_TAG:
        return (ARGUMENT[len(cursor.tag) :] or cursor.markers.argument_begin,)
    if place is XtmlPart.TAG:
        return _rests_of_tag(cursor, values)
    if len(inner.frames) > 1:
        return next_pieces(inner, values, known_only=known_only)
    if cursor.kind != "string" and inner.expect is not JsonPart.VALUE:
        return (cursor.markers.call_end,)
    containers = open_alternatives(values, inner.frames)
    texts = _options(value_alternatives(values, inner.frames, containers[:1]), cursor.kind)
    constant = texts[0] if texts is not None and len(texts) == 1 else None
    if cursor.kind == "string":
        return _ends_of_text(cursor, constant, value_alternatives(values, inner.frames, containers))
    return (OPENINGS.get(cursor.kind, "") if constant is None else constant,)


def _options(found: list[Alternative], kind: str) -> list[str] | None:
    """All values of a type, as JSON, if the schema lists them; None if it allows values that it does not list."""
    of_type = [one for one in found if kind_of_alternative(one) == kind]
    texts = [text_of(one) for one in of_type if isinstance(one, ListedValue)]
    return texts if len(texts) == len(of_type) else None


def _ends_of_text(cursor: XtmlCursor, constant: str | None, found: list[Alternative]) -> Iterator[str | int]:
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
        yield from suffixes(begun, [one.shape for one in found if isinstance(one, StringPlan)])


def _rests_of_tag(cursor: XtmlCursor, values: PlanValues) -> Iterable[str | int]:
    """The suffixes of the tag's current piece."""
    tag = cursor.tag
    if len(tag) < len(BEFORE_KEY):
        return (rest_of_piece(tag, KEY_PIECES),)
    containers = open_alternatives(values, cursor.json.frames)
    begun, is_whole, after = tag[len(BEFORE_KEY) :].partition('"')
    if not is_whole:
        return _rests_of_key(begun, containers, set(cursor.members.keys), values)
    if len(after) < len(BEFORE_TYPE):
        return (rest_of_piece(after, TYPE_PIECES),)
    word = after[len(BEFORE_TYPE) :]
    if word.endswith('"'):
        return (cursor.markers.argument_begin,)
    key = unescape(begun)
    words = _type_words([one for one in containers for one in values.members(one, key)], values)
    return [each[len(word) :] or '"' for each in words if each.startswith(word)]


def _rests_of_key(begun: str, found: list[Alternative], written: set[str], values: PlanValues) -> Iterator[str]:
    """Suffixes of required keys, then of declared keys by their shortest value; else of an undeclared key."""
    keys = missing_keys(values, found, written)
    possible = [key for key in (*keys, *declared_keys(values, found, written)) if _in_tag(key).startswith(begun)]
    if not keys:
        possible.sort(key=lambda key: min(values.cost_of_member(one, name_of(key)) for one in found))
    yield from dict.fromkeys(_in_tag(key)[len(begun) :] or '"' for key in possible[:MAX_KEYS])
    if not possible:
        text = unescape(begun)
        others = (
            rest for rest in suffixes_of_key(text, values.key_patterns(found)) if spelled(text + rest) not in written
        )
        yield from dict.fromkeys(escape(rest) or '"' for rest in others)
    yield '"'


def _in_tag(key: str) -> str:
    """A key as a tag spells it; given as JSON without quotes."""
    return escape(name_of(key))


def _type_words(found: list[Alternative], values: PlanValues) -> list[str]:
    """The type words of a key's value, shortest value first; type words that the schema does not allow come last."""
    lengths: dict[str, float] = {}
    for one in found:
        word = kind_of_alternative(one)
        length = values.cost(one) - 2 * (word == "string")  # XTML writes strings without quotes
        lengths[word] = min(lengths.get(word, inf), length)
    return [*sorted(lengths, key=lambda word: lengths[word]), *(word for word in TYPE_WORDS if word not in lengths)]
