"""Plain schemas: those whose shape alone shows that a grammar enforces them wholly, so that admission compiles nothing.

A plain schema has instances, and only keywords that are enforced or narrowed in any combination that is plain. Other
schemas may be enforced wholly too: only compiling tells.
"""

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, Final

import msgspec

from constrained_k2.schema.document import escape, local_target
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.string_formats import FORMATS

MAX_PARTS: Final = 600
"""The most parts of a plain schema: subschemas and listed values, counted again for each reference to them. What takes
longer to compile counts as several."""

_MAX_TEXT = 64 << 10  # characters of the whole schema: bounds the time to decode it
_MAX_DEPTH = 24  # of subschemas and references
_MAX_PROPERTIES = 64  # of one object: as many as a grammar's rule tells apart
_MAX_NAME = 256  # characters of a property's name, or of a listed string
_MAX_BRANCHES = 16
_MAX_SIZES: Mapping[str, int] = {"Items": 1_000, "Length": 10_000}
_FORMAT_PARTS, _BOUND_PARTS = 20, 3
_LONG = 256  # characters: each format has shorter strings
_LARGEST = 10**15  # of bounds and listed numbers
_SMALLEST = 10**-9  # of bounds that are not 0

_KIND_BITS: Mapping[str, int] = {
    "null": 1, "boolean": 2, "number": 4, "integer": 4, "string": 8, "array": 16, "object": 32
}  # fmt: skip
_ALL_KINDS, _NO_KIND = 63, 64
_VALUE_BITS: Mapping[type, int] = {type(None): 1, bool: 2, int: 4, str: 8}
_SCALARS = frozenset({str, int, float, bool, type(None)})
_NEVER: Mapping[str, Any] = {"not": {}}  # as generators write "undefined" among alternatives
_BESIDE_VALUES = frozenset({"type", "enum"}), frozenset({"type", "const"})
_NAMING = frozenset({"$id", "id", "$anchor", "$dynamicAnchor", "$defs", "definitions"})
_MAPS = ("$defs", "definitions")
_UNUSUAL_FORMATS = frozenset({"idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-template"})
"""The formats whose patterns are large: each is measured by compiling it."""


class _NotPlain(Exception):
    pass


def plain_parts(text: str) -> int | None:
    """The number of parts of a plain schema, JSON text of a tool's arguments; None for a schema that is not plain."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        root = msgspec.json.decode(text)
        walk = _Walk(root)
        walk.arguments()
        if walk.left < 0:
            return None
    except (_NotPlain, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return MAX_PARTS - walk.left


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: set[str] = set()  # pointers of the targets of references
        self._open: dict[str, int] = {}  # of targets that are being walked -> the optional parts around the reference
        self._optional = 0  # parts around this one that an instance may lack
        self.left = MAX_PARTS

    def arguments(self) -> None:
        """Walk the schema of a tool's arguments, whose type is an object whether it says so or not."""
        root = self._root
        if type(root) is not dict or root.get("type", "object") != "object" or not root.keys().isdisjoint(_IN_PLACE):
            raise _NotPlain
        self._node({key: value for key, value in root.items() if key not in _MAPS} | {"type": "object"}, 0)
        for keyword in _MAPS:  # what nothing refers to must be within the budgets
            definitions = root.get(keyword, {})
            if type(definitions) is not dict:
                raise _NotPlain
            for name, definition in definitions.items():
                _check_name(name)
                if f"#/{keyword}/{escape(name)}" not in self._referred:
                    self._node(definition, 1)

    def _node(self, schema: Any, depth: int) -> int:
        """Walk one subschema; the bits of the JSON types that its instances may have."""
        self.left -= 1
        if schema is True:
            return _ALL_KINDS
        if type(schema) is not dict or depth > _MAX_DEPTH or self.left < 0:
            raise _NotPlain
        kinds = _kinds(schema["type"]) if "type" in schema else _ALL_KINDS
        for keyword, value in schema.items():
            check = _CHECKS.get(keyword)
            if check is not None:
                kinds &= check(self, schema, value, depth + 1)
            elif keyword in KEYWORDS or keyword in _NAMING or not _is_inert(value) or len(keyword) > _MAX_NAME:
                raise _NotPlain
        return kinds

    def reference(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """A reference by pointer. One to a part around it is in a part that an instance may lack."""
        _refuse_beside(schema, {"$ref"})
        if type(value) is not str or not value.startswith("#/") or "%" in value:
            raise _NotPlain
        if value in self._open:
            if self._open[value] == self._optional:
                raise _NotPlain
            return _ALL_KINDS
        self._referred.add(value)
        self._open[value] = self._optional
        kinds = self._node(local_target(self._root, value), depth)
        del self._open[value]
        return kinds

    def branches(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """``anyOf``; ``oneOf`` where no two branches have instances of one type; ``allOf`` of one branch."""
        keyword = next(iter(schema.keys() & _IN_PLACE))
        _refuse_beside(schema, {keyword})
        if type(value) is not list or not 0 < len(value) <= (1 if keyword == "allOf" else _MAX_BRANCHES):
            raise _NotPlain
        found = 0
        for branch in value:
            kinds = 0 if branch == _NEVER else self._node(branch, depth)
            if keyword == "oneOf" and (found & kinds or type(branch) is not dict or "$ref" in branch):
                raise _NotPlain
            found |= kinds
        if not found:
            raise _NotPlain
        return found

    def values(self, schema: dict[str, Any], value: Any, _: int) -> int:
        """``enum`` or ``const`` of scalars, beside a type at most: some of them has that type."""
        values = value if "enum" in schema else [value]
        if type(values) is not list or len(values) > self.left:
            raise _NotPlain
        if not any(schema.keys() & KEYWORDS.keys() <= allowed for allowed in _BESIDE_VALUES):
            raise _NotPlain
        self.left -= len(values)
        kinds = 0
        for each in values:
            kinds |= _VALUE_BITS.get(type(each), 0)
            if not _is_writable(each):
                raise _NotPlain
        kinds &= _kinds(schema["type"]) if "type" in schema else _ALL_KINDS
        if not kinds:
            raise _NotPlain
        return kinds

    def properties(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """``properties``, with the keys that are required."""
        if type(value) is not dict or len(value) > _MAX_PROPERTIES:
            raise _NotPlain
        required = schema.get("required", [])
        if type(required) is not list or len(required) > _MAX_PROPERTIES:
            raise _NotPlain
        for name, inner in value.items():
            _check_name(name)
            is_optional = name not in required
            self._optional += is_optional
            self._node(inner, depth)
            self._optional -= is_optional
        return _ALL_KINDS

    def items(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """``items`` as one schema."""
        is_optional = not schema.get("minItems")
        self._optional += is_optional
        self._node(value, depth)
        self._optional -= is_optional
        return _ALL_KINDS

    def others(self, schema: dict[str, Any], value: Any, depth: int) -> int:  # noqa: ARG002 - a check's arguments
        """``additionalProperties``."""
        if value is not False:
            self._optional += 1
            self._node(value, depth)
            self._optional -= 1
        return _ALL_KINDS


def _kinds(declared: Any) -> int:
    found = 0
    for name in declared if type(declared) is list else (declared,):
        found |= _KIND_BITS.get(name, _NO_KIND) if type(name) is str else _NO_KIND
    if not 0 < found < _NO_KIND:
        raise _NotPlain
    return found


def _check_name(name: str) -> None:
    # A budget takes what has this name for a keyword.
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or name == "patternProperties":
        raise _NotPlain


def _is_writable(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _MAX_NAME and (not value or value.isprintable())
    return value is None or type(value) is bool or (type(value) is int and abs(value) <= _LARGEST)


def _is_inert(value: Any) -> bool:
    """True if an annotation has nothing that the budgets count, or that a reference may mean."""
    if type(value) in _SCALARS:
        return True
    if type(value) is dict:
        names = value.keys()
        if (
            not names.isdisjoint(KEYWORDS)
            or not names.isdisjoint(_NAMING)
            or any(len(name) > _MAX_NAME for name in names)
        ):
            return False
        value = value.values()
    return all(type(each) in _SCALARS for each in value)


def _refuse_beside(schema: dict[str, Any], allowed: set[str]) -> None:
    if not schema.keys() & KEYWORDS.keys() <= allowed:
        raise _NotPlain


def _required(_walk: _Walk, schema: dict[str, Any], value: Any, _depth: int) -> int:
    declared = schema.get("properties", {})
    if type(declared) is not dict or type(value) is not list or len(value) > _MAX_PROPERTIES:
        raise _NotPlain
    if not all(type(name) is str and name in declared for name in value):
        raise _NotPlain
    return _ALL_KINDS


def _size(_walk: _Walk, schema: dict[str, Any], _value: Any, _depth: int) -> int:
    """A bound on a length: each is checked with the other one."""
    for noun, largest in _MAX_SIZES.items():
        low, high = schema.get(f"min{noun}", 0), schema.get(f"max{noun}", largest)
        if type(low) is not int or type(high) is not int or not 0 <= low <= high <= largest:
            raise _NotPlain
    return _ALL_KINDS


def _bound(walk: _Walk, schema: dict[str, Any], _value: Any, _depth: int) -> int:
    """A bound on a number: each is checked with all others, so that some number is within them."""
    walk.left -= _BOUND_PARTS
    low, is_low_open = _tightest(schema, "minimum", "exclusiveMinimum", max)
    high, is_high_open = _tightest(schema, "maximum", "exclusiveMaximum", min)
    if low is not None and high is not None and high - low < 2 and (is_low_open or is_high_open or ceil(low) > high):
        raise _NotPlain
    return _ALL_KINDS


def _tightest(
    schema: dict[str, Any], closed: str, opened: str, tighter: Callable[[list[float]], float]
) -> tuple[float | None, bool]:
    """The lower or the upper bound, and True if it may be excluded; draft 4 says so by a boolean."""
    bounds = [schema[name] for name in (closed, opened) if type(schema.get(name, False)) is not bool]
    for bound in bounds:
        if type(bound) not in (int, float) or not (bound == 0 or _SMALLEST <= abs(bound) <= _LARGEST):
            raise _NotPlain
    if type(schema.get(closed)) is bool:
        raise _NotPlain
    return tighter(bounds) if bounds else None, bool(schema.get(opened, False) is not False)


def _format(walk: _Walk, schema: dict[str, Any], value: Any, _depth: int) -> int:
    """A format, and a length that its strings may have."""
    if type(value) is not str:
        raise _NotPlain
    if value in FORMATS:
        walk.left -= _FORMAT_PARTS
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength", _LONG)
        if value in _UNUSUAL_FORMATS or shortest not in (0, 1) or type(longest) is not int or longest < _LONG:
            raise _NotPlain
    return _ALL_KINDS


def _not_unique(_walk: _Walk, _schema: dict[str, Any], value: Any, _depth: int) -> int:
    if value is not False:
        raise _NotPlain
    return _ALL_KINDS


_IN_PLACE = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_CHECKS: Mapping[str, Callable[[_Walk, dict[str, Any], Any, int], int]] = {
    "type": lambda *_: _ALL_KINDS,  # as _kinds reads it
    "$ref": _Walk.reference,
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _Walk.branches),
    **dict.fromkeys(("enum", "const"), _Walk.values),
    "properties": _Walk.properties,
    "required": _required,
    "items": _Walk.items,
    "additionalProperties": _Walk.others,
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _size),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _bound),
    "format": _format,
    "uniqueItems": _not_unique,
}
