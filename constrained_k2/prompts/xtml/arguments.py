"""Splits the JSON arguments of a call into XTML blocks, one for each key."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from constrained_k2.errors import InvalidRequest, kind_of_json
from constrained_k2.formats.kimi_k3 import VALUE_TYPES

_BLANKS = re.compile(r"[ \t\r\n]*")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# Numbers are only recognized: they keep their own text, and Python refuses to convert those of thousands of digits.
_DECODER = json.JSONDecoder(parse_int=lambda _: 0, parse_float=lambda _: 0.0, parse_constant=_refuse)


class Argument(NamedTuple):
    """One argument of a call."""

    key: str
    type: str  # JSON type: string, number, boolean, null, object or array
    text: str  # a string itself, the JSON text of any other value


def split_arguments(arguments: object, location: str) -> list[Argument] | str:
    """Split arguments into one block for each key; a text that is not a JSON object is returned as it is.

    Values that are not strings keep their own JSON text (``1e2`` stays ``1e2``). Keys keep their order, and repeated
    keys stay. Text after the object is dropped. The newer revision of the checkpoint's encoder does the same; the older
    one parses and writes the values again.
    """
    if arguments is None or arguments == "":
        return []
    try:
        if isinstance(arguments, Mapping):
            return [_argument(key, value, f"{location}.{key}"[:300]) for key, value in arguments.items()]
        if isinstance(arguments, str):
            return _members(arguments)
    except RecursionError as error:
        raise InvalidRequest("is nested too deeply", location) from error
    raise InvalidRequest(f"must be a JSON object or its text, not {kind_of_json(arguments)}", location)


def _argument(key: object, value: Any, location: str) -> Argument:
    kind = VALUE_TYPES.get(type(value))
    if kind is None or not isinstance(key, str):
        raise InvalidRequest(f"cannot be written as JSON: {kind_of_json(value)}", location)
    if isinstance(value, str):
        return Argument(key, kind, value)
    try:
        return Argument(key, kind, json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"cannot be written as JSON: {error}", location) from error


def _members(text: str) -> list[Argument] | str:
    """The members of a JSON object at the start of a text; the text itself if there is none."""
    at = _after_blanks(text, 0)
    if text[at : at + 1] != "{":
        return text
    found: list[Argument] = []
    at = _after_blanks(text, at + 1)
    if text[at : at + 1] == "}":
        return found
    try:
        while True:
            key, at = _DECODER.raw_decode(text, at)
            at = _after_blanks(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                return text
            start = _after_blanks(text, at + 1)
            value, at = _DECODER.raw_decode(text, start)
            found.append(Argument(key, VALUE_TYPES[type(value)], value if isinstance(value, str) else text[start:at]))
            at = _after_blanks(text, at)
            if text[at : at + 1] == "}":
                return found
            if text[at : at + 1] != ",":
                return text
            at = _after_blanks(text, at + 1)
    except ValueError:  # from the decoder
        return text


def _after_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    assert match is not None  # the expression matches the empty text
    return match.end()
