"""Decodes the escapes in the bytes of a JSON string, which may be unfinished."""

import re

_HEX = rb"[0-9a-fA-F]"
_HIGH, _LOW = rb"[dD][89abAB]" + _HEX + rb"{2}", rb"[dD][c-fC-F]" + _HEX + rb"{2}"  # halves of a surrogate pair
_ESCAPE = re.compile(rb"\\(?:u(" + _HIGH + rb")\\u(" + _LOW + rb")|u(" + _HEX + rb"{4})|([\x00-\xff]))")
# All text before an unfinished escape at the end. After a high surrogate, a low one may still follow.
_WHOLE = re.compile(
    rb"(?:[^\\]+|\\[^u]|\\u(?!" + _HIGH + rb")" + _HEX + rb"{4}"
    rb"|\\u" + _HIGH + rb"(?:\\u" + _LOW + rb"|(?!\\?\Z|\\u" + _HEX + rb"{0,3}\Z)))*"
)
_SHORT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescaped(text: bytes) -> bytes:
    """Decode the escapes in a text, except an unfinished escape at its end."""
    return _ESCAPE.sub(_character, text) if b"\\" in text else text


def whole_end(text: bytes) -> int:
    """Return the number of bytes before an unfinished escape (or surrogate pair) at the end."""
    if b"\\" not in text:
        return len(text)
    found = _WHOLE.match(text)
    return found.end() if found else 0


def _character(escape: re.Match[bytes]) -> bytes:
    high, low, code, short = escape.groups()
    if high is not None:
        number = 0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF)
    elif code is not None:
        number = int(code, 16)
    else:
        return _SHORT.get(short, short)
    return chr(number).encode("utf-8", "surrogatepass")
