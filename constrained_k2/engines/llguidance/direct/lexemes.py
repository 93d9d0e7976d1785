"""Byte-level lexers for JSON strings and numbers, in exactly the spellings that grammars allow.

-1.5e3     a state after each byte: minus, whole, point, fraction, e, exponent
"""

import re
from functools import lru_cache

from constrained_k2.engines.llguidance.direct.rules import NumberKind

WHITESPACE = b" \t\r\n"
_HEX = rb"[0-9a-fA-F]"
_WHOLE = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_PAIR = rb"[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2}"
_ANY_ESCAPE = rb'\\["\\/bfnrt]|\\u(?:[0-9a-cA-CefEF]' + _HEX + rb"{3}|[dD][0-7]" + _HEX + rb"{2}|" + _PAIR + rb")"
_ONE_ESCAPE = rb'\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f])'
_CHARACTERS = {
    any_spelling: re.compile(rb'(?:[^"\\\x00-\x1f\x80-\xff]+|' + _WHOLE + rb"|" + escape + rb")*")
    for any_spelling, escape in ((True, _ANY_ESCAPE), (False, _ONE_ESCAPE))
}
_SAMPLES = (rb"\n", rb"\u0000", rb"\u0010", rb"\ud800\udc00")
_SECOND_BYTES = b"\x80\x90\xa0"

NumberState = tuple[str, int, bool]
"""The part of a number that its latest byte belongs to, the digits of that part, and True if an exponent may follow."""
NUMBER_START: NumberState = ("start", 0, True)
_MOST_DIGITS, _MOST_BEFORE_EXPONENT = 40, 8
_COMPLETE = frozenset({"zero", "whole", "fraction", "exponent"})


def end_of_characters(text: bytes, start: int, *, any_spelling: bool) -> int:
    """Return the index after the longest run of whole JSON string characters that begins at ``start``."""
    found = _CHARACTERS[any_spelling].match(text, start)
    assert found is not None
    return found.end()


@lru_cache(4096)
def is_unfinished(text: bytes, *, any_spelling: bool) -> bool:
    """Return True if a text is a proper prefix of one character of a JSON string."""
    if text[:1] == b"\\":
        wholes = [text + sample[len(text) :] for sample in _SAMPLES]
    else:
        rests = [bytes((byte,)) + b"\x80" * more for byte in _SECOND_BYTES for more in range(3)]
        wholes = [text + rest for rest in (*rests, b"\x80", b"\x80\x80")]
    return any(
        len(whole) > len(text) and end_of_characters(whole, 0, any_spelling=any_spelling) == len(whole)
        for whole in wholes
    )


@lru_cache(256)
def following_bytes(begun: bytes, *, any_spelling: bool) -> list[int]:
    """Return the bytes that may follow ``begun``, the prefix of a character."""
    found = []
    for byte in range(256):
        text = begun + bytes((byte,))
        is_whole = end_of_characters(text, 0, any_spelling=any_spelling) == len(text)
        if is_whole or is_unfinished(text, any_spelling=any_spelling):
            found.append(byte)
    return found


def number_after(kind: NumberKind, state: NumberState, byte: int) -> NumberState | None:
    """Return the state after one more byte of a number; None if no number continues with it."""
    part, digits, may_have_exponent = state
    if 0x30 <= byte <= 0x39:
        return _after_digit(part, digits, byte - 0x30, may_have_exponent=may_have_exponent)
    if byte == 0x2D and part == "start":
        return "minus", 0, True
    if kind == "integer":
        return None
    if byte == 0x2E and part in {"zero", "whole"}:
        return "point", 0, may_have_exponent
    if byte in b"eE" and part in {"zero", "whole", "fraction"} and may_have_exponent:
        return "e", 0, False
    if byte in b"+-" and part == "e":
        return "sign", 0, False
    return None


def _after_digit(part: str, digits: int, digit: int, *, may_have_exponent: bool) -> NumberState | None:
    if part in {"start", "minus"}:
        return ("whole", 1, True) if digit else ("zero", 0, True)
    if part == "whole":
        return ("whole", digits + 1, digits < _MOST_BEFORE_EXPONENT) if digits < _MOST_DIGITS else None
    if part in {"point", "fraction"}:
        return ("fraction", digits + 1, may_have_exponent) if digits < _MOST_DIGITS else None
    if part in {"e", "sign"}:  # the count of an exponent's digits is 1 if a third may follow: after a 1 or a 2
        return ("exponent", 1 if digit in {1, 2} else 2, False)
    if part == "exponent" and digits in {1, 2}:
        return ("exponent", 3 if digits == 1 else 4, False)
    return ("exponent", 4, False) if part == "exponent" and digits == 3 else None


def is_complete(state: NumberState) -> bool:
    """Return True if a number may end in a state."""
    return state[0] in _COMPLETE


def number_state(kind: NumberKind, text: bytes, longest_run: int) -> NumberState | None:
    """Return the state after a prefix. Equal states allow equal tokens, if none has over ``longest_run`` digits."""
    state = NUMBER_START
    for byte in text:
        following = number_after(kind, state, byte)
        if following is None:
            return None
        state = following
    part, digits, may_have_exponent = state
    far = {"whole": _MOST_BEFORE_EXPONENT + 1, "fraction": 1}.get(part, digits)
    return (part, far, may_have_exponent) if far < digits < _MOST_DIGITS - longest_run else state
