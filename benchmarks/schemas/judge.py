"""Validates instances with jsonschema, formats and ECMA-262's patterns included."""

import json
import re
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
    schema = in_python(json.loads(case.judged or case.schema))
    default: Any = jsonschema.Draft7Validator if case.draft == "draft7" else jsonschema.Draft202012Validator
    validator: Any = jsonschema.validators.validator_for(schema, default)
    # As in all drafts since 6; earlier ones do not count 1.0 as an integer.
    integers = validator.TYPE_CHECKER.redefine("integer", lambda _, value: _is_integer(value))
    validator = jsonschema.validators.extend(validator, type_checker=integers)  # type: ignore[no-untyped-call]
    checker = jsonschema.FormatChecker(())
    checker.checkers = dict(validator.FORMAT_CHECKER.checkers)
    for name in {"date", "date-time"} & checker.checkers.keys():
        checker.checkers[name] = partial(_is_date, *checker.checkers[name]), ()
    try:
        error = next(validator(schema, format_checker=checker).iter_errors(json.loads(text)), None)
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
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


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
