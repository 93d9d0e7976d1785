"""Fast-path admission: recognizes schemas that certainly compile if their patterns compile.

Such a schema is on the fast path: it is satisfiable, and uses only keywords that stay enforced (or narrowed) however
they are combined. Its strings with a pattern are compiled one by one. A schema that is not on the fast path may be
enforced completely too, but only compiling it would show that.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from constrained_k2.schema.dialects import is_read_as_written, read
from constrained_k2.schema.document import DEFINITIONS, NAMING, escape, local_target
from constrained_k2.schema.fast_path_values import (
    ALL_KINDS,
    ASSERTIONS,
    MAX_PROPERTIES,
    STRING,
    NotOnFastPath,
    check_name,
    is_inert,
    kinds_of,
    kinds_of_values,
    refuse_beside,
)
from constrained_k2.schema.keywords import KEYWORDS

MAX_PARTS: Final = 600
"""The most parts of a schema on the fast path: subschemas and listed values, counted again for each reference to them.
Parts that take longer to compile count as several."""

_MAX_TEXT = 64 << 10  # characters of the whole schema: bounds the time to decode it
_MAX_DEPTH = 24  # max depth of subschemas and references
_MAX_BRANCHES = 16
_MAX_PATTERNS = 32  # different strings with patterns
_NEVER: Mapping[str, Any] = {"not": {}}  # generators write "undefined" like this among alternatives
_BESIDE_VALUES = frozenset({"type", "enum"}), frozenset({"type", "const"})
_BESIDE_PATTERN = frozenset({"type", "pattern", "format", "minLength", "maxLength"})


class FastPathShape(NamedTuple):
    """The size of a schema on the fast path, and its strings that remain to be compiled.

    Attributes:
        parts: The number of its parts, at most :data:`MAX_PARTS`, without the parts of its patterns.
        patterned: Its different strings with patterns, each as a separate schema in JSON text.
    """

    parts: int
    patterned: tuple[str, ...]


def fast_path_shape(text: str) -> FastPathShape | None:
    """Measure a tool's arguments schema, given as JSON text; None if it is not on the fast path."""
    if len(text) > _MAX_TEXT:
        return None
    try:
        root = msgspec.json.decode(text)
        walk = _Walk(root)
        walk.arguments()
        if walk.left < 0:
            return None
    except (NotOnFastPath, msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return FastPathShape(MAX_PARTS - walk.left, tuple(sorted(walk.patterned)))


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: set[str] = set()  # pointers of the targets of references
        self._open: dict[str, int] = {}  # target being walked -> the number of optional parts around the reference
        self._optional = 0  # enclosing parts that an instance may lack
        self._patterns = 0  # strings with patterns so far
        self.patterned: set[str] = set()
        self.left = MAX_PARTS

    def arguments(self) -> None:
        """Walk the schema of a tool's arguments, whose type is an object whether it says so or not."""
        root = self._root
        if type(root) is not dict or root.get("type", "object") != "object" or not root.keys().isdisjoint(_IN_PLACE):
            raise NotOnFastPath
        self._node({key: value for key, value in root.items() if key not in DEFINITIONS} | {"type": "object"}, 0)
        for keyword in sorted(DEFINITIONS):  # definitions that nothing refers to must be within the budgets too
            definitions = root.get(keyword, {})
            if type(definitions) is not dict:
                raise NotOnFastPath
            for name, definition in definitions.items():
                check_name(name)
                if f"#/{keyword}/{escape(name)}" not in self._referred:
                    self._node(definition, 1)

    def _node(self, schema: Any, depth: int) -> int:
        """Walk one subschema. Like all checks, returns the bits of the JSON types that its instances may have."""
        self.left -= 1
        if schema is True:
            return ALL_KINDS
        if type(schema) is not dict or depth > _MAX_DEPTH or self.left < 0:
            raise NotOnFastPath
        if not is_read_as_written(schema):
            schema, null, notes = read(schema)
            if null or notes:
                raise NotOnFastPath
        kinds = kinds_of(schema["type"]) if "type" in schema else ALL_KINDS
        for keyword, value in schema.items():
            check = _CHECKS.get(keyword)
            if check is not None:
                kinds &= check(self, schema, value, depth + 1)
            elif keyword in ASSERTIONS:
                self.left -= ASSERTIONS[keyword](schema)
            elif keyword in KEYWORDS or keyword in NAMING or keyword in DEFINITIONS or not is_inert(keyword, value):
                raise NotOnFastPath
        return kinds

    def reference(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """Check a reference by pointer. A recursive one must be inside a part that an instance may lack."""
        refuse_beside(schema, {"$ref"})
        if type(value) is not str or not value.startswith("#/") or "%" in value:
            raise NotOnFastPath
        if value in self._open:
            if self._open[value] == self._optional:
                raise NotOnFastPath
            return ALL_KINDS
        self._referred.add(value)
        self._open[value] = self._optional
        kinds = self._node(local_target(self._root, value), depth)
        del self._open[value]
        return kinds

    def branches(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """Check ``anyOf``, ``oneOf`` whose branches have no JSON type in common, or ``allOf`` of one branch.

        Branches with patterns must not share a type either, so that a string with a pattern is compiled by itself.
        """
        keyword = next(iter(schema.keys() & _IN_PLACE))
        refuse_beside(schema, {keyword})
        if type(value) is not list or not 0 < len(value) <= (1 if keyword == "allOf" else _MAX_BRANCHES):
            raise NotOnFastPath
        found = shared = 0
        patterns = self._patterns
        for branch in value:
            kinds = 0 if branch == _NEVER else self._node(branch, depth)
            if keyword == "oneOf" and (found & kinds or type(branch) is not dict or "$ref" in branch):
                raise NotOnFastPath
            shared |= found & kinds
            found |= kinds
        if not found or (shared and self._patterns > patterns):
            raise NotOnFastPath
        return found

    def pattern(self, schema: dict[str, Any], value: Any, _: int) -> int:
        """Check the ``pattern`` of a string, and keep it with the string's other keywords for compiling."""
        refuse_beside(schema, _BESIDE_PATTERN)
        if type(value) is not str or not kinds_of(schema.get("type", [])) & STRING:
            raise NotOnFastPath
        self._patterns += 1
        string = {name: schema[name] for name in _BESIDE_PATTERN & schema.keys()} | {"type": "string"}
        self.patterned.add(json.dumps(string, sort_keys=True))
        if len(self.patterned) > _MAX_PATTERNS:
            raise NotOnFastPath
        return ALL_KINDS

    def values(self, schema: dict[str, Any], value: Any, _: int) -> int:
        """Check an ``enum`` or ``const`` of scalars. If ``type`` is beside it, some value must have that type."""
        values = value if "enum" in schema else [value]
        if type(values) is not list or len(values) > self.left:
            raise NotOnFastPath
        if not any(schema.keys() & KEYWORDS.keys() <= allowed for allowed in _BESIDE_VALUES):
            raise NotOnFastPath
        self.left -= len(values)
        kinds = kinds_of_values(values) & (kinds_of(schema["type"]) if "type" in schema else ALL_KINDS)
        if not kinds:
            raise NotOnFastPath
        return kinds

    def properties(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """Check ``properties`` together with ``required``."""
        if type(value) is not dict or len(value) > MAX_PROPERTIES:
            raise NotOnFastPath
        required = schema.get("required", [])
        if type(required) is not list or len(required) > MAX_PROPERTIES:
            raise NotOnFastPath
        for name, inner in value.items():
            check_name(name)
            is_optional = name not in required
            self._optional += is_optional
            self._node(inner, depth)
            self._optional -= is_optional
        return ALL_KINDS

    def items(self, schema: dict[str, Any], value: Any, depth: int) -> int:
        """Check ``items``, which must be one schema."""
        is_optional = not schema.get("minItems")
        self._optional += is_optional
        self._node(value, depth)
        self._optional -= is_optional
        return ALL_KINDS

    def others(self, schema: dict[str, Any], value: Any, depth: int) -> int:  # noqa: ARG002 - a check's arguments
        """Check ``additionalProperties``."""
        if value is not False:
            self._optional += 1
            self._node(value, depth)
            self._optional -= 1
        return ALL_KINDS


_IN_PLACE = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_CHECKS: Mapping[str, Callable[[_Walk, dict[str, Any], Any, int], int]] = {
    "$ref": _Walk.reference,
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _Walk.branches),
    **dict.fromkeys(("enum", "const"), _Walk.values),
    "properties": _Walk.properties,
    "items": _Walk.items,
    "additionalProperties": _Walk.others,
    "pattern": _Walk.pattern,
}
