"""Validates instances with jsonschema, formats and ECMA-262's patterns included."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import jsonschema

from benchmarks.schemas.corpora import Case

_SHOWN = 200  # characters of a message
_SPACES = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SETS = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACES}
_ITEM = re.compile(r"\[(?:\\.|[^]\\])*\]|\\.|[.$]", re.DOTALL)
_DATA = frozenset({"const", "enum", "default", "examples"})


def judge(case: Case, text: str) -> str:
    """Return why jsonschema rejects an instance; empty if it is valid."""
    schema = in_python(json.loads(case.judged or case.schema, parse_float=Decimal))
    default: Any = jsonschema.Draft7Validator if case.draft == "draft7" else jsonschema.Draft202012Validator
    validator: Any = jsonschema.validators.validator_for(schema, default)
    # As in all drafts since 6; earlier ones do not count 1.0 as an integer.
    integers = validator.TYPE_CHECKER.redefine("integer", lambda _, value: _is_integer(value))
    validator = jsonschema.validators.extend(validator, {"multipleOf": _multiple_of}, type_checker=integers)  # type: ignore[no-untyped-call]
    checker = jsonschema.FormatChecker(())
    checker.checkers = dict(validator.FORMAT_CHECKER.checkers)
    for name in {"date", "date-time"} & checker.checkers.keys():
        checker.checkers[name] = partial(_is_date, *checker.checkers[name]), ()
    try:
        error = next(validator(schema, format_checker=checker).iter_errors(json.loads(text, parse_float=Decimal)), None)
    except re.error:  # Python's re does not know the pattern
        return ""
    return "" if error is None else f"{error.message[:_SHOWN]} at {error.json_path}"


def _is_date(check: Any, errors: Any, value: object) -> bool:
    """Check a date or time; Python knows no year 0, RFC 3339 does, and it is a leap year."""
    if isinstance(value, str) and value.startswith("0000-"):
        value = f"2000{value[4:]}"
    try:
        return bool(check(value))
    except errors:
        return False


def _is_integer(value: object) -> bool:
    is_whole = isinstance(value, Decimal) and value == value.to_integral_value()
    return is_whole or (isinstance(value, int) and not isinstance(value, bool))


def _multiple_of(_: Any, unit: Any, value: object, __: Any) -> Iterator[jsonschema.ValidationError]:
    """Check a multiple by its decimal digits: 75.49 is a multiple of 0.01, which binary fractions do not show."""
    if (
        isinstance(value, int | Decimal)
        and not isinstance(value, bool)
        and not is_multiple(Decimal(value), Decimal(unit))
    ):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {unit}")


def is_multiple(value: Decimal, unit: Decimal) -> bool:
    """Return True if a number is a whole multiple of another one, exactly, however large its exponent is."""
    digits, scale = _integer(value)
    unit_digits, unit_scale = _integer(unit)
    if scale >= unit_scale:
        return digits * pow(10, scale - unit_scale, unit_digits) % unit_digits == 0
    missing = unit_scale - scale
    # A multiple ends in as many zeros as are missing; its bit length is more than its number of decimal digits.
    return digits == 0 or (missing <= digits.bit_length() and digits % (unit_digits * 10**missing) == 0)


def _integer(number: Decimal) -> tuple[int, int]:
    """Return a number's digits, without its sign, and its exponent of ten."""
    _, digits, exponent = number.as_tuple()
    return int(Decimal((0, digits, 0))), int(exponent)


def in_python(schema: Any) -> Any:
    """Return a schema whose patterns mean in Python's dialect what they mean in ECMA-262."""
    if isinstance(schema, list):
        return [in_python(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in _DATA else in_python(value) for key, value in schema.items()}
    if isinstance(schema.get("pattern"), str):
        found["pattern"] = _pattern(schema["pattern"])
    if isinstance(schema.get("patternProperties"), dict):
        found["patternProperties"] = {_pattern(key): value for key, value in found["patternProperties"].items()}
    return found


def _pattern(pattern: str) -> str:
    return _ITEM.sub(_translated, pattern)


def _translated(item: re.Match[str]) -> str:
    text = item[0]
    if text == "$":
        return r"\Z"
    if text == ".":
        return r"[^\n\r\u2028\u2029]"
    if text.startswith("["):
        return re.sub(r"\\(.)", lambda escape: _SETS.get(escape[1], escape[0]), text, flags=re.DOTALL)
    if text[1] in _SETS:
        return f"[{_SETS[text[1]]}]"
    return f"[^{_SETS[text[1].lower()]}]" if text[1] in "DWS" else text
