"""Drafts the next text of a call's JSON arguments, from the schema, the prompt and the call so far.

It drafts required keys in the prompt's order, punctuation in this call's style, the first character of a value by its
type, the suffix of a key or enum value if only one has the current prefix, and the end after the last required key.
The grammar then accepts or rejects the draft.

{"city": "Os     with the cities "Oslo" and "Rome" in an enum: lo", and then the next required key or the end
"""

from collections.abc import Sequence

from constrained_k2.turn.cursors.json_cursor import MAX_TOKEN, JsonCursor, JsonPart, OpenContainer, spelled, unspelled
from constrained_k2.turn.cursors.schema_view import SchemaView
from constrained_k2.turn.drafts.prompt_values import NO_GUESS, PromptValues

# The style of Kimi's template for arguments in the history, and of Python's json module.
_BLANK = " "
_LITERALS = ("true", "false", "null")
_NUMBERS = ("integer", "number")
_STEPS = 64
_TAIL = 64  # last characters of the turn that serve as the prefix of a long string
_BEGINNINGS = {"string": '"', "object": "{", "array": "["}


def likely_continuation(cursor: JsonCursor, limit: int, values: PromptValues | None = None, written: str = "") -> str:
    """Guess roughly ``limit`` characters that follow; empty if unknown. The cursor is left unchanged.

    Args:
        cursor: The parser state.
        limit: The number of characters.
        values: The values in the prompt; None without a prompt.
        written: The latest text of the turn.
    """
    ahead, guess = cursor.copy(), ""
    for _ in range(_STEPS):
        piece = next_piece(ahead) or (value_piece(ahead, values, written + guess) if values else "")
        if not piece or len(guess) >= limit or ahead.is_done:
            break
        guess += piece
        ahead.feed(piece)
    return guess


def next_piece(cursor: JsonCursor) -> str:
    """The next piece of the likely text; empty if unknown."""
    expect = cursor.expect
    if expect is JsonPart.VALUE:
        value = beginning(cursor.value)
        # A blank and a word are one token, a blank and a digit are two.
        return cursor.next_blanks(_BLANK) + value if value or cursor.value.kind in _NUMBERS else ""
    if expect is JsonPart.IN_STRING:
        return rest_of_option(cursor.token, [text[1:] for text in cursor.value.options if text.startswith('"')])
    if expect is JsonPart.IN_SCALAR and cursor.token not in _LITERALS:
        return rest_of_option(cursor.token, _LITERALS)
    if expect is JsonPart.COLON:
        return ":"
    if expect is JsonPart.FIRST_ITEM:
        return beginning(cursor.value)
    if not cursor.frames:
        return ""
    if not cursor.frames[-1].is_object:
        return "]" if expect is JsonPart.AFTER else ""
    frame = cursor.frames[-1]
    key = _next_key(frame)
    if expect is JsonPart.IN_KEY:
        return _rest_of_key(cursor.token, frame)
    if expect is JsonPart.FIRST_KEY:
        return key or ("" if frame.view.properties else "}")
    if expect is JsonPart.KEY:
        return cursor.next_blanks(_BLANK) + (key or '"')
    return _after_value(frame)


def value_piece(cursor: JsonCursor, values: PromptValues, written: str) -> str:
    """The suffix of a value, copied from the prompt, and the text that ends the value; empty if unknown."""
    expect, view = cursor.expect, cursor.value
    if expect is JsonPart.IN_STRING:
        if not cursor.token:
            found = values.string(_key_of(cursor), view, written)
            return f'{spelled(found)}"' if found else ""
        # The cursor stores only a prefix of a long string. The turn's latest text is the string's end.
        begun = unspelled(cursor.token if len(cursor.token) < MAX_TOKEN else written[-_TAIL:])
        text, ends = values.rest_of_string(begun, written) if begun else NO_GUESS
        return spelled(text) + '"' * ends
    if view.kind not in _NUMBERS or view.options:
        return ""
    if expect is JsonPart.VALUE:
        return values.number(_key_of(cursor), written)
    if expect is JsonPart.IN_SCALAR:
        text, ends = values.rest_of_number(cursor.token)
        return text or (_after_value(cursor.frames[-1]) if ends and cursor.frames else "")
    return ""


def _key_of(cursor: JsonCursor) -> str:
    """The key of the value that is being written, or of the innermost enclosing value that has a key."""
    return next((frame.keys[-1] for frame in reversed(cursor.frames) if frame.keys), "")


def _after_value(frame: OpenContainer) -> str:
    """The text that follows a value: a comma if a required key is missing; else the end of the object or array."""
    if not frame.is_object:
        return "]"
    return "," if _next_key(frame) else "}"


def beginning(view: SchemaView) -> str:
    """The likely prefix of a value; the whole value if only one is possible."""
    if len(view.options) == 1:
        return view.options[0]
    if view.options:
        return '"' if all(text.startswith('"') for text in view.options) else ""
    return _BEGINNINGS.get(view.kind, "")


def _next_key(frame: OpenContainer) -> str:
    """The next missing required key, with quotes and colon; empty if there is none."""
    written = set(frame.keys)
    return next((f'"{key}":' for key in map(spelled, frame.view.required) if key not in written), "")


def _rest_of_key(prefix: str, frame: OpenContainer) -> str:
    """The suffix of a started key: of a required key, else of the only possible key; empty if unknown."""
    written, required = set(frame.keys), [*map(spelled, frame.view.required)]
    declared = dict.fromkeys((*required, *map(spelled, frame.view.properties)))  # required keys first
    left = [key for key in declared if key.startswith(prefix) and key not in written]
    is_known = bool(left) and (len(left) == 1 or left[0] in required)
    return f'{left[0][len(prefix) :]}":' if is_known else ""


def rest_of_option(prefix: str, options: Sequence[str]) -> str:
    """The suffix of the only option that starts with ``prefix``; empty if there are several or none."""
    left = [option for option in options if option.startswith(prefix)]
    return left[0][len(prefix) :] if prefix and len(left) == 1 else ""
