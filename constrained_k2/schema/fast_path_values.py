"""Checks keywords without subschemas, such as ``minimum``, to admit a schema without compiling it.

Such keywords keep a schema on the fast path (:mod:`constrained_k2.schema.fast_path`). A set of JSON types is an
integer, a bit for each.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil
from typing import Any, Final

from constrained_k2.schema.document import DEFINITIONS, NAMING
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.string_formats import FORMATS

MAX_PROPERTIES: Final = 64
"""Max properties of one object: the rule of an object has one bit for each."""
STRING: Final = 8
"""The bit of strings among the bits of JSON types."""
ALL_KINDS: Final = 63

_MAX_NAME = 256  # max characters of a property's name, or of a listed string
_MAX_SIZES: Mapping[str, int] = {"Items": 1_000, "Length": 10_000}
_FORMAT_PARTS, _BOUND_PARTS = 20, 3
_LONG = 256  # characters: each format has shorter strings
_LARGEST = 10**15  # largest magnitude of bounds and listed numbers
_SMALLEST = 10**-9  # smallest magnitude of bounds other than 0
_KIND_BITS: Mapping[str, int] = {
    "null": 1, "boolean": 2, "number": 4, "integer": 4, "string": STRING, "array": 16, "object": 32
}  # fmt: skip
_NO_KIND = 64
_VALUE_BITS: Mapping[type, int] = {type(None): 1, bool: 2, int: 4, str: STRING}
_SCALARS = frozenset({str, int, float, bool, type(None)})
_UNUSUAL_FORMATS = frozenset({"idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-template"})
"""The formats with large patterns. A schema that uses one is not on the fast path."""


class NotOnFastPath(Exception):
    """A schema is not on the fast path."""


def kinds_of(declared: Any) -> int:
    """The bits of the JSON types that the keyword ``type`` declares; raises :class:`NotOnFastPath` for others."""
    found = 0
    for name in declared if type(declared) is list else (declared,):
        found |= _KIND_BITS.get(name, _NO_KIND) if type(name) is str else _NO_KIND
    if not 0 < found < _NO_KIND:
        raise NotOnFastPath
    return found


def kinds_of_values(values: Sequence[Any]) -> int:
    """The bits of the JSON types of listed values; raises :class:`NotOnFastPath` if one is not a small scalar."""
    kinds = 0
    for each in values:
        kinds |= _VALUE_BITS.get(type(each), 0)
        if not _is_writable(each):
            raise NotOnFastPath
    return kinds


def check_name(name: str) -> None:
    """Raise :class:`NotOnFastPath` for a property's name that is empty, long, or not printable."""
    # check_budget mistakes a property named patternProperties for the keyword.
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or name == "patternProperties":
        raise NotOnFastPath


def is_inert(keyword: str, value: Any) -> bool:
    """True if an annotation contains nothing that a budget counts or a reference may point at."""
    if len(keyword) > _MAX_NAME:
        return False
    if type(value) in _SCALARS:
        return True
    if type(value) is dict:
        names = value.keys()
        if (
            not names.isdisjoint(KEYWORDS)
            or not names.isdisjoint(NAMING | DEFINITIONS)
            or any(len(name) > _MAX_NAME for name in names)
        ):
            return False
        value = value.values()
    return all(type(each) in _SCALARS for each in value)


def refuse_beside(schema: dict[str, Any], allowed: AbstractSet[str]) -> None:
    """Raise :class:`NotOnFastPath` if a schema has keywords that are neither ``allowed`` nor annotations."""
    if not schema.keys() & KEYWORDS.keys() <= allowed:
        raise NotOnFastPath


def _is_writable(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _MAX_NAME and (not value or value.isprintable())
    return value is None or type(value) is bool or (type(value) is int and abs(value) <= _LARGEST)


def _required(schema: dict[str, Any]) -> int:
    declared, value = schema.get("properties", {}), schema["required"]
    if type(declared) is not dict or type(value) is not list or len(value) > MAX_PROPERTIES:
        raise NotOnFastPath
    if not all(type(name) is str and name in declared for name in value):
        raise NotOnFastPath
    return 0


def _size(schema: dict[str, Any]) -> int:
    """Check a bound on a length, together with the opposite bound."""
    for noun, largest in _MAX_SIZES.items():
        low, high = schema.get(f"min{noun}", 0), schema.get(f"max{noun}", largest)
        if type(low) is not int or type(high) is not int or not 0 <= low <= high <= largest:
            raise NotOnFastPath
    return 0


def _bound(schema: dict[str, Any]) -> int:
    """Check all bounds on a number together: some number must be within them."""
    low, is_low_open = _tightest(schema, "minimum", "exclusiveMinimum", max)
    high, is_high_open = _tightest(schema, "maximum", "exclusiveMaximum", min)
    if low is not None and high is not None and high - low < 2 and (is_low_open or is_high_open or ceil(low) > high):
        raise NotOnFastPath
    return _BOUND_PARTS


def _tightest(
    schema: dict[str, Any], closed: str, opened: str, tighter: Callable[[list[float]], float]
) -> tuple[float | None, bool]:
    """The lower or the upper bound, and True if the bound itself may be excluded."""
    bounds = [schema[name] for name in (closed, opened) if name in schema]
    for bound in bounds:
        if type(bound) not in (int, float) or not (bound == 0 or _SMALLEST <= abs(bound) <= _LARGEST):
            raise NotOnFastPath
    return tighter(bounds) if bounds else None, opened in schema


def _format(schema: dict[str, Any]) -> int:
    """Check a format, and that the bounds on the length do not exclude its strings."""
    value = schema["format"]
    if type(value) is not str:
        raise NotOnFastPath
    if value not in FORMATS:
        return 0
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", _LONG)
    if value in _UNUSUAL_FORMATS or shortest not in (0, 1) or type(longest) is not int or longest < _LONG:
        raise NotOnFastPath
    return _FORMAT_PARTS


def _not_unique(schema: dict[str, Any]) -> int:
    if schema["uniqueItems"] is not False:
        raise NotOnFastPath
    return 0


ASSERTIONS: Final[Mapping[str, Callable[[dict[str, Any]], int]]] = {
    "type": lambda _: 0,  # kinds_of checks it
    "required": _required,
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _size),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _bound),
    "format": _format,
    "uniqueItems": _not_unique,
}
"""Keyword -> its check, which returns the number of parts that it counts as, or raises :class:`NotOnFastPath`."""
