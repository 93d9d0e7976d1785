"""Keys as they are spelled within quotes, as bytes: a key may be escaped in many ways."""

import re

_HEX = rb"[0-9a-fA-F]"
_HIGH, _LOW = rb"[dD][89abAB]" + _HEX + rb"{2}", rb"[dD][c-fC-F]" + _HEX + rb"{2}"  # halves of a surrogate pair
_ESCAPE = re.compile(rb"\\(?:u(" + _HIGH + rb")\\u(" + _LOW + rb")|u(" + _HEX + rb"{4})|([\x00-\xff]))")
_WHOLE = re.compile(rb"(?:[^\\]|\\[^u]|\\u" + _HEX + rb"{4})*")
_WAITING = re.compile(rb"\\u" + _HIGH + rb"\Z")  # a half that the next escape may complete
_SHORT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescaped(text: bytes) -> bytes:
    """Return a text without escapes; what is cut off stays as it is."""
    return _ESCAPE.sub(_character, text) if b"\\" in text else text


def ends_in_escape(text: bytes) -> bool:
    """Return True if what follows a text may belong to its last escape."""
    if b"\\" not in text:
        return False
    whole = _WHOLE.match(text)
    return whole is None or whole.end() < len(text) or _WAITING.search(text) is not None


def _character(escape: re.Match[bytes]) -> bytes:
    high, low, code, short = escape.groups()
    if high is not None:
        number = 0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF)
    elif code is not None:
        number = int(code, 16)
    else:
        return _SHORT.get(short, short)
    return chr(number).encode("utf-8", "surrogatepass")
