"""The characters that a model likely writes next in a call's arguments.

What is guessed: the keys that are required, in the order that the prompt showed them, their punctuation as this call
has written it so far, what a value of the type begins with, the rest of a key or an enum's value once its beginning
leaves one, and the end where every key is written. What is not: the content of strings, numbers, optional keys.
"""

from collections.abc import Sequence

from constrained_k2.drafting.cursor import Cursor, Frame, Place
from constrained_k2.drafting.views import View

# As Kimi's template writes the history's arguments, and Python's json module by default.
_BLANK = " "
_LITERALS = ("true", "false", "null")
_NUMBERS = ("integer", "number")
_STEPS = 64


def likely_continuation(cursor: Cursor, limit: int) -> str:
    """Guess what follows.

    Args:
        cursor: Where the text stands; it is left as it is.
        limit: How many characters to guess at most, roughly.

    Returns:
        The guess; empty where nothing is known.
    """
    ahead = cursor.copy()
    guess = ""
    for _ in range(_STEPS):
        piece = _next(ahead)
        if not piece or len(guess) >= limit or ahead.is_done:
            break
        guess += piece
        ahead.feed(piece)
    return guess


def _next(cursor: Cursor) -> str:
    """The next piece; empty if nothing is known."""
    place = cursor.place
    if place is Place.VALUE:
        value = _value(cursor.value)
        # A blank and a word are one token, a blank and a digit are two.
        return cursor.blanks_due(_BLANK) + value if value or cursor.value.kind in _NUMBERS else ""
    if place is Place.IN_STRING:
        return _rest(cursor.token, [text[1:] for text in cursor.value.options if text.startswith('"')])
    if place is Place.IN_SCALAR and cursor.token not in _LITERALS:
        return _rest(cursor.token, _LITERALS)
    if place is Place.COLON:
        return ":"
    if place is Place.FIRST_ITEM:
        return _value(cursor.value)
    if not cursor.frames or not cursor.frames[-1].is_object:
        return ""
    frame = cursor.frames[-1]
    key = _next_key(frame)
    if place is Place.IN_KEY:
        return _rest_of_key(cursor.token, frame)
    if place is Place.FIRST_KEY:
        return _quoted(key) if key else "" if frame.view.properties else "}"
    if place is Place.KEY:
        return cursor.blanks_due(_BLANK) + (_quoted(key) if key else '"')
    return "," if key else "}"  # behind a value


def _value(view: View) -> str:
    """How a value begins; the whole of it where there is only one."""
    if len(view.options) == 1:
        return view.options[0]
    if view.options:
        return '"' if all(text.startswith('"') for text in view.options) else ""
    return {"string": '"', "object": "{", "array": "["}.get(view.kind, "")


def _next_key(frame: Frame) -> str:
    """The next required key that is not written; empty if all are."""
    written = set(frame.keys)
    return next((key for key in frame.view.required if key not in written), "")


def _quoted(key: str) -> str:
    return f'"{key}":' if key.isprintable() and not {'"', "\\"} & set(key) else ""


def _rest_of_key(prefix: str, frame: Frame) -> str:
    """The rest of a key that has been begun: the required ones first, then whichever is left alone."""
    written, required = set(frame.keys), set(frame.view.required)
    left = [key for key in frame.view.properties if key not in written and key.startswith(prefix)]
    key = next((key for key in left if key in required), left[0] if len(left) == 1 else "")
    return key[len(prefix) :] + '":' if _quoted(key) else ""


def _rest(prefix: str, options: Sequence[str]) -> str:
    """The rest of the one option that begins so."""
    left = [option for option in options if option.startswith(prefix)]
    return left[0][len(prefix) :] if prefix and len(left) == 1 else ""
