"""Guesses of what follows in a call's XTML arguments, for draft tokens.

Likely are blocks of the required keys in the prompt's order, with the type word of their schema, and the call's end
after the last of them. Inside values of other types than string the guesses are those of JSON.
"""

import json
from collections.abc import Sequence

from constrained_k2.formats.kimi_k3 import ARGUMENT, escape
from constrained_k2.turn.drafts.encoding import encoded_after
from constrained_k2.turn.drafts.guesses import beginning, next_piece, rest_of_option, spelled, value_piece
from constrained_k2.turn.drafts.json_tracker import MAX_TOKEN, Expect
from constrained_k2.turn.drafts.prompt_values import PromptValues
from constrained_k2.turn.drafts.schema_view import SchemaView
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
from constrained_k2.vocabulary.vocabulary import Vocabulary

_STEPS = 64
_OPENINGS = {"object": "{", "array": "[", "null": "null"}
_LITERALS = ("true", "false", "null")


def likely_tokens(
    tracker: XtmlTracker, vocabulary: Vocabulary, limit: int, values: PromptValues | None = None, written: str = ""
) -> list[int]:
    """Guess roughly ``limit`` tokens that follow; empty if unknown. The tracker is left unchanged."""
    ahead, ids, value = tracker.copy(), list[int](), ""
    begun = written if ahead.place is Place.VALUE else ""
    for _ in range(_STEPS):
        piece = _next(ahead) or (_value_piece(ahead, values, written) if values else "")
        if not piece or len(ids) >= limit:
            break
        if isinstance(piece, str) and ahead.place is Place.VALUE:
            value += piece  # one text, however many pieces it is guessed in
            written += piece
        else:
            ids += _encoded(begun, value, vocabulary)
            ids += [piece] if isinstance(piece, int) else vocabulary.encode(piece)
            begun = value = ""
        if piece == ahead.markers.call_end and ahead.place is Place.BETWEEN:
            break
        ahead.feed(piece)
    return ids + _encoded(begun, value, vocabulary)


def _encoded(begun: str, text: str, vocabulary: Vocabulary) -> list[int]:
    return encoded_after(begun, text.encode(errors="ignore").decode(), vocabulary)


def _value_piece(tracker: XtmlTracker, values: PromptValues, written: str) -> str | int:
    """The rest of a value by the prompt, or the marker that ends it; empty if unknown."""
    inner, end = tracker.json, tracker.markers.call_end
    if tracker.place is not Place.VALUE:
        return ""
    if len(inner.frames) > 1:
        return value_piece(inner, values, written)
    if tracker.kind == "string":
        if not inner.token:
            return values.string(inner.frames[0].keys[-1], inner.value, written)
        begun = inner.token if len(inner.token) < MAX_TOKEN else written
        text, ends = values.rest_of_string(begun, written)
        return text or (end if ends else "")
    if tracker.kind != "number" or inner.value.options:
        return ""
    if inner.expect is Expect.VALUE:
        return values.number(inner.frames[0].keys[-1], written)
    text, ends = values.rest_of_number(inner.token)
    return text or (end if ends else "")


def _next(tracker: XtmlTracker) -> str | int:
    """The next marker, or a text: in a tag the rest of a piece; empty if unknown."""
    markers, place = tracker.markers, tracker.place
    if place is Place.END_TAG:
        return ARGUMENT[len(tracker.tag) :] or markers.argument_begin
    if place is Place.TAG:
        return _rest_of_tag(tracker)
    if place is Place.VALUE:
        return _rest_of_value(tracker)
    if _missing(tracker):
        return markers.call_begin
    return markers.call_end if tracker.members.keys or not tracker.members.view.properties else ""


def _missing(tracker: XtmlTracker) -> list[str]:
    """The required keys that are missing, in the prompt's order."""
    written = set(tracker.members.keys)
    return [key for key in tracker.members.view.required if spelled(key) not in written]


def _rest_of_tag(tracker: XtmlTracker) -> str | int:
    tag, view = tracker.tag, tracker.members.view
    if len(tag) < len(BEFORE_KEY):
        return rest_of_piece(tag, KEY_PIECES)
    begun, is_whole, after = tag[len(BEFORE_KEY) :].partition('"')
    if not is_whole:
        return _rest_of_key(begun, tracker)
    if len(after) < len(BEFORE_TYPE):
        return rest_of_piece(after, TYPE_PIECES)
    word = after[len(BEFORE_TYPE) :]
    if word.endswith('"'):
        return tracker.markers.argument_begin
    if word in TYPE_WORDS:
        return '"'
    key = next((each for each in view.properties if escape(each) == begun), None)
    likely = "" if key is None else _type_word(view.value_of(key))
    return likely[len(word) :] if likely.startswith(word) else ""


def _rest_of_key(begun: str, tracker: XtmlTracker) -> str:
    """The rest of a key: a required one, else the only one left; empty if unknown."""
    missing, written = _missing(tracker), set(tracker.members.keys)
    declared = dict.fromkeys((*missing, *tracker.members.view.properties))  # the required ones first
    left = [key for key in declared if escape(key).startswith(begun) and spelled(key) not in written]
    is_known = bool(left) and (len(left) == 1 or left[0] in missing)
    return (escape(left[0])[len(begun) :] or '"') if is_known else ""


def _type_word(view: SchemaView) -> str:
    words = {kind_of_option(text) for text in view.options} or {type_word(view.kind)}
    return words.pop() if len(words) == 1 else ""


def _rest_of_value(tracker: XtmlTracker) -> str | int:
    inner, end = tracker.json, tracker.markers.call_end
    if len(inner.frames) > 1:
        return next_piece(inner)
    if tracker.kind == "string":
        return _rest_of_text(inner.token, inner.value.options, end)
    if inner.expect is Expect.VALUE:
        return beginning(inner.value) if len(inner.value.options) == 1 else _OPENINGS.get(tracker.kind, "")
    if inner.expect is Expect.IN_SCALAR:
        return end if inner.token in (*_LITERALS, *inner.value.options) else rest_of_option(inner.token, _LITERALS)
    return end


def _rest_of_text(begun: str, options: Sequence[str], end: int) -> str | int:
    texts = [_text(option) for option in options if option.startswith('"')]
    left = [text for text in texts if text.startswith(begun)]
    if len(left) != 1 or not (begun or len(texts) == 1):
        return ""
    return left[0][len(begun) :] or end


def _text(option: str) -> str:
    """The string that a JSON text holds."""
    return str(json.loads(option))
