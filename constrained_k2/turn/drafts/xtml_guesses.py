"""Drafts the next tokens of a call's XTML arguments (Kimi K3), from schema, prompt and call so far.

It drafts a block for each required key, in the prompt's order and with the type word of its schema, and the call's end
after the last block. Values that are not strings are drafted as in JSON.
"""

import json
from collections.abc import Sequence

from constrained_k2.formats.kimi_k3 import ARGUMENT, BEFORE_KEY, BEFORE_TYPE, KEY_PIECES, TYPE_PIECES, escape
from constrained_k2.turn.cursors.json_cursor import MAX_TOKEN, JsonPart, spelled
from constrained_k2.turn.cursors.schema_view import SchemaView
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor, XtmlPart
from constrained_k2.turn.cursors.xtml_tags import TYPE_WORDS, kind_of_option, rest_of_piece, type_word
from constrained_k2.turn.drafts.encoding import encoded_after
from constrained_k2.turn.drafts.guesses import beginning, next_piece, rest_of_option, value_piece
from constrained_k2.turn.drafts.prompt_values import PromptValues
from constrained_k2.vocabulary.vocabulary import Vocabulary

_STEPS = 64
_OPENINGS = {"object": "{", "array": "[", "null": "null"}
_LITERALS = ("true", "false", "null")


def likely_tokens(
    cursor: XtmlCursor, vocabulary: Vocabulary, limit: int, values: PromptValues | None = None, written: str = ""
) -> list[int]:
    """Guess roughly ``limit`` tokens that follow; empty if unknown. The cursor is left unchanged."""
    ahead, ids, value = cursor.copy(), list[int](), ""
    begun = written if ahead.part is XtmlPart.VALUE else ""
    for _ in range(_STEPS):
        piece = _next(ahead) or (_value_piece(ahead, values, written) if values else "")
        if not piece or len(ids) >= limit:
            break
        if isinstance(piece, str) and ahead.part is XtmlPart.VALUE:
            value += piece  # joined to one text, which is tokenized as a whole
            written += piece
        else:
            ids += _encoded(begun, value, vocabulary)
            ids += [piece] if isinstance(piece, int) else vocabulary.encode(piece)
            begun = value = ""
        if piece == ahead.markers.call_end and ahead.part is XtmlPart.BETWEEN:
            break
        ahead.feed(piece)
    return ids + _encoded(begun, value, vocabulary)


def _encoded(begun: str, text: str, vocabulary: Vocabulary) -> list[int]:
    return encoded_after(begun, text.encode(errors="ignore").decode(), vocabulary)


def _value_piece(cursor: XtmlCursor, values: PromptValues, written: str) -> str | int:
    """The suffix of a value, copied from the prompt, or the marker that ends the value; empty if unknown."""
    inner, end = cursor.json, cursor.markers.call_end
    if cursor.part is not XtmlPart.VALUE:
        return ""
    if len(inner.frames) > 1:
        return value_piece(inner, values, written)
    if cursor.kind == "string":
        if not inner.token:
            return values.string(inner.frames[0].keys[-1], inner.value, written)
        begun = inner.token if len(inner.token) < MAX_TOKEN else written
        text, ends = values.rest_of_string(begun, written)
        return text or (end if ends else "")
    if cursor.kind != "number" or inner.value.options:
        return ""
    if inner.expect is JsonPart.VALUE:
        return values.number(inner.frames[0].keys[-1], written)
    text, ends = values.rest_of_number(inner.token)
    return text or (end if ends else "")


def _next(cursor: XtmlCursor) -> str | int:
    """The next marker or text (in a tag: the rest of the current piece); empty if unknown."""
    markers, place = cursor.markers, cursor.part
    if place is XtmlPart.END_TAG:
        return ARGUMENT[len(cursor.tag) :] or markers.argument_begin
    if place is XtmlPart.TAG:
        return _rest_of_tag(cursor)
    if place is XtmlPart.VALUE:
        return _rest_of_value(cursor)
    if _missing(cursor):
        return markers.call_begin
    return markers.call_end if cursor.members.keys or not cursor.members.view.properties else ""


def _missing(cursor: XtmlCursor) -> list[str]:
    """The required keys that are missing, in the prompt's order."""
    written = set(cursor.members.keys)
    return [key for key in cursor.members.view.required if spelled(key) not in written]


def _rest_of_tag(cursor: XtmlCursor) -> str | int:
    tag, view = cursor.tag, cursor.members.view
    if len(tag) < len(BEFORE_KEY):
        return rest_of_piece(tag, KEY_PIECES)
    begun, is_whole, after = tag[len(BEFORE_KEY) :].partition('"')
    if not is_whole:
        return _rest_of_key(begun, cursor)
    if len(after) < len(BEFORE_TYPE):
        return rest_of_piece(after, TYPE_PIECES)
    word = after[len(BEFORE_TYPE) :]
    if word.endswith('"'):
        return cursor.markers.argument_begin
    if word in TYPE_WORDS:
        return '"'
    key = next((each for each in view.properties if escape(each) == begun), None)
    likely = "" if key is None else _type_word(view.value_of(key))
    return likely[len(word) :] if likely.startswith(word) else ""


def _rest_of_key(begun: str, cursor: XtmlCursor) -> str:
    """The suffix of a started key: of a required key, else of the only possible key; empty if unknown."""
    missing, written = _missing(cursor), set(cursor.members.keys)
    declared = dict.fromkeys((*missing, *cursor.members.view.properties))  # required keys first
    left = [key for key in declared if escape(key).startswith(begun) and spelled(key) not in written]
    is_known = bool(left) and (len(left) == 1 or left[0] in missing)
    return (escape(left[0])[len(begun) :] or '"') if is_known else ""


def _type_word(view: SchemaView) -> str:
    words = {kind_of_option(text) for text in view.options} or {type_word(view.kind)}
    return words.pop() if len(words) == 1 else ""


def _rest_of_value(cursor: XtmlCursor) -> str | int:
    inner, end = cursor.json, cursor.markers.call_end
    if len(inner.frames) > 1:
        return next_piece(inner)
    if cursor.kind == "string":
        return _rest_of_text(inner.token, inner.value.options, end)
    if inner.expect is JsonPart.VALUE:
        return beginning(inner.value) if len(inner.value.options) == 1 else _OPENINGS.get(cursor.kind, "")
    if inner.expect is JsonPart.IN_SCALAR:
        return end if inner.token in (*_LITERALS, *inner.value.options) else rest_of_option(inner.token, _LITERALS)
    return end


def _rest_of_text(begun: str, options: Sequence[str], end: int) -> str | int:
    texts = [_text(option) for option in options if option.startswith('"')]
    left = [text for text in texts if text.startswith(begun)]
    if len(left) != 1 or not (begun or len(texts) == 1):
        return ""
    return left[0][len(begun) :] or end


def _text(option: str) -> str:
    """The string that a JSON text spells."""
    return str(json.loads(option))
