r"""Computes a digest of a call, to detect repeated calls: of the same function, with equal arguments.

``{"a": 1, "b": "x"}`` and ``{"b":"\u0078","a":1.0}`` are equal.
"""

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from constrained_k2.formats.kimi_k3 import ARGUMENT, unescape
from constrained_k2.vocabulary.vocabulary import Vocabulary

# Kimi K3 writes each member as a block. Its markers become 0xFF, which UTF-8 never contains, and a character.
_OPEN, _SEPARATOR, _CLOSE = b"\xff(", b"\xff|", b"\xff)"
_BLOCK = re.compile(rb'\xff\(%b key="([^"]*)" type="(\w+)"\xff\|([^\xff]*)\xff\)%b\xff\|' % ((ARGUMENT.encode(),) * 2))
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?")


def call_key(name: str, ids: Sequence[int], vocabulary: Vocabulary) -> bytes:
    """A digest of a call; repeated calls have equal digests.

    It takes time linear in the arguments. If Python cannot decode them (a thousand nested arrays, an exponent of
    thousands of digits), only an equal text is a repeat.

    Args:
        name: The function.
        ids: The whole arguments.
        vocabulary: The vocabulary of the ids.
    """
    markers = vocabulary.format
    shown = {markers.call_begin: _OPEN, markers.argument_begin: _SEPARATOR, markers.call_end: _CLOSE}
    text = b"".join([vocabulary.ordinary_bytes(each) or shown.get(each, b"") for each in ids])
    value: Any
    try:
        value = _members(text) if markers.argument_markers else _value(text)
        written = repr((name, value))
    except (ValueError, RecursionError):
        written = repr((name, text))
    return sha256(written.encode(errors="surrogatepass")).digest()


def _members(text: bytes) -> Any:
    """The value of XTML arguments, in which each member is a block."""
    members, end = dict[str, Any](), 0
    while end < len(text):
        block = _BLOCK.match(text, end)
        if block is None:
            raise ValueError("not a block")
        key, kind, value = block.groups()
        members[unescape(key.decode())] = value.decode(errors="surrogateescape") if kind == b"string" else _value(value)
        end = block.end()
    return _object(list(members.items()))


def _value(text: bytes) -> Any:
    """A comparable form of a JSON value: equal values are equal and, unlike in Python, ``1`` and ``True`` differ."""
    written = text.decode(errors="surrogateescape")
    return json.loads(written, parse_int=_number, parse_float=_number, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> Any:
    return "object", tuple(sorted(dict(pairs).items(), key=lambda pair: pair[0]))


def _number(text: str) -> Any:
    """A number as its digits, without leading and trailing zeros, and the power of ten of the last digit."""
    found = _NUMBER.fullmatch(text)
    assert found is not None, "JSON's numbers"
    sign, whole, fraction, exponent = found.groups(default="")
    digits = (whole + fraction).lstrip("0")
    short = digits.rstrip("0")
    if not short:
        return "number", "", 0
    return "number", sign + short, int(exponent or 0) - len(fraction) + len(digits) - len(short)
