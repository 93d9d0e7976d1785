"""The ways to satisfy a schema, and about how long the shortest value of each is; heuristics, which a mask corrects."""

import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from constrained_k2.schema.document import local_target

Way = dict[str, Any]
"""Keywords that a value satisfies together, merged over references, allOf and one branch of each other applicator."""

_KEYWORDS = ("type", "properties", "required", "items", "prefixItems", "minItems", "minLength", "const", "enum",
             "pattern", "format", "additionalProperties", "patternProperties", "propertyNames", "dependencies",
             "dependentRequired", "contains", "multipleOf", "minimum", "maximum", "exclusiveMinimum",
             "exclusiveMaximum")  # fmt: skip
_OBJECTS = ("properties", "patternProperties", "dependencies", "dependentRequired")  # united where ways are merged
_MAX_WAYS = 32  # of one schema
_MAX_DEPTH = 48  # of applicators and of values
_MAX_MERGES = 20_000  # of ways, for one document in all, about 50 ms; schemas beyond that may be anything
_MAX_STEPS = 2000  # of the search for one shortest value, about 4 ms; what is not known then counts as endless
_MAX_ENUM = 256
_PATTERN_LENGTH = 12  # of a string with a pattern or a format, in characters
_DOCUMENTS = 32
_LEAST = {"integer": 1, "number": 1, "null": 4, "boolean": 4}


class Ways:
    """The ways of one document's schemas, each found once."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._ways: dict[int, tuple[Way, ...]] = {}  # by the schema's address in the document
        self._lengths: dict[int, float] = {}  # by the way's address in self._ways
        self._merges_left = _MAX_MERGES

    def of(self, schemas: Iterable[Any]) -> list[Way]:
        """The ways to satisfy any of some schemas of the document, the shortest first."""
        found = [way for schema in schemas for way in self._of(schema, 0)]
        return sorted(found, key=self.length) if len(found) > 1 else found

    def length(self, way: Way) -> float:
        """The characters of about the shortest value; infinite if there is none, or if it is not known."""
        return self._length(way, _Search())

    def shortest_kind(self, way: Way) -> str:
        """The JSON type of about the shortest value; empty if the way names none."""
        lengths = self.lengths(way)
        return min(lengths, key=lambda kind: lengths[kind], default="")

    def lengths(self, way: Way) -> dict[str, float]:
        """The characters of about the shortest value of each JSON type that the way names."""
        return {kind: self._length_of_kind(way, kind, _Search()) for kind in kinds(way)}

    def shortest(self, schema: Any) -> float:
        """The characters of about the shortest value of a schema."""
        return min(map(self.length, self._of(schema, 0)), default=inf)

    def _of(self, schema: Any, depth: int) -> tuple[Way, ...]:
        if schema is False:
            return ()
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._merges_left <= 0:
            return ({},)
        found = self._ways.get(id(schema))
        if found is None:
            self._ways[id(schema)] = ({},)  # for a schema that applies itself
            found = self._ways[id(schema)] = self._expanded(schema, depth + 1)
        return found

    def _expanded(self, schema: dict[str, Any], depth: int) -> tuple[Way, ...]:
        groups: list[Sequence[Way]] = []
        if isinstance(schema.get("$ref"), str):
            groups.append(self._of(local_target(self.root, schema["$ref"]), depth))
        groups += [self._of(part, depth) for part in _list(schema, "allOf")]
        groups += [
            [way for branch in branches for way in self._of(branch, depth)]
            for keyword in ("anyOf", "oneOf")
            if (branches := _list(schema, keyword))
        ]
        if "if" in schema:
            groups.append([way for key in ("then", "else") for way in self._of(schema.get(key, True), depth)])
        if "not" in schema:
            groups.append((_witness(schema["not"]),))
        ways: list[Way] = [{key: schema[key] for key in _KEYWORDS if key in schema}]
        for group in groups:
            self._merges_left -= len(ways) * len(group)
            merged = (_merged(first, second) for first in ways for second in group[:_MAX_WAYS])
            ways = [way for way in merged if way is not None][:_MAX_WAYS]
        return tuple(ways)

    def _shortest(self, schema: Any, search: "_Search") -> float:
        if not isinstance(schema, dict):
            return inf if schema is False else 1
        return min((self._length(way, search) for way in self._of(schema, 0)), default=inf)

    def _length(self, way: Way, search: "_Search") -> float:
        known = self._lengths.get(id(way))
        if known is not None:
            return known
        if id(way) in search.within or len(search.within) > _MAX_DEPTH or search.left <= 0:
            search.is_cut = True
            return inf  # a value that holds one of the same way is not the shortest
        search.left -= 1
        search.within.add(id(way))
        if texts := options(way):
            length: float = min(map(len, texts))
        else:
            length = min(self._length_of_kind(way, kind, search) for kind in kinds(way) or ("number",))
        search.within.discard(id(way))
        if way and not (search.is_cut and search.within):  # inside a cycle, what was cut off may count elsewhere
            self._lengths[id(way)] = length
        return length

    def _length_of_kind(self, way: Way, kind: str, search: "_Search") -> float:
        if kind == "string":
            return 2 + max(whole_number(way, "minLength"), _PATTERN_LENGTH * ("pattern" in way or "format" in way))
        if kind == "array":
            count, given = whole_number(way, "minItems"), _list(way, "prefixItems")
            more = max(0, count - len(given))
            length = 2 + sum(1 + self._shortest(item, search) for item in given[:count])
            if not count and "contains" in way:
                return length + self._shortest(way["contains"], search)
            return length + more * (1 + self._shortest(way.get("items", True), search)) if more else length
        if kind == "object":
            declared, keys = properties(way), required(way)
            search.left -= len(keys)
            return 2 + sum(len(key) + 4 + self._shortest(declared.get(key, True), search) for key in keys)
        return _LEAST.get(kind, inf)


@dataclass(slots=True)
class _Search:
    """The search for the shortest value of one way."""

    within: set[int] = field(default_factory=set)  # the ways of the values around
    left: int = _MAX_STEPS
    is_cut: bool = False  # whether a way was met again within itself, or a bound was reached


_documents: OrderedDict[int, Ways] = OrderedDict()


def ways_of(root: Any) -> Ways:
    """The ways of a decoded document; those of the latest documents are kept."""
    found = _documents.get(id(root))
    if found is None or found.root is not root:
        found = _documents[id(root)] = Ways(root)
        while len(_documents) > _DOCUMENTS:
            _documents.popitem(last=False)
    return found


def kinds(way: Way) -> Sequence[str]:
    """The JSON types that a way names; empty for any."""
    declared = way.get("type")
    if isinstance(declared, str):
        return (declared,)
    return [kind for kind in declared if isinstance(kind, str)] if isinstance(declared, list) else ()


def options(way: Way) -> tuple[str, ...]:
    """The JSON texts of an enum's values, or of a const; empty if any value will do."""
    values = [way["const"]] if "const" in way else way.get("enum")
    if not isinstance(values, list) or len(values) > _MAX_ENUM:
        return ()
    return tuple(json.dumps(value, ensure_ascii=False) for value in values)


def required(way: Way) -> list[str]:
    """The required keys, in the order of the properties; those without one last."""
    named = dict.fromkeys(key for key in _list(way, "required") if isinstance(key, str))
    return [*(key for key in _dict(way, "properties") if key in named),
            *(key for key in named if key not in _dict(way, "properties"))]  # fmt: skip


def needed(way: Way, written: set[str]) -> list[str]:
    """The required keys, and those that the keys so far, as names, and the required ones depend on."""
    keys = dict.fromkeys(required(way))
    depending = _dict(way, "dependencies") | _dict(way, "dependentRequired")
    left = [key for key in (*keys, *written) if key in depending]
    seen = set(left)
    while left:
        others = depending[left.pop()]
        others = _list(others, "required") if isinstance(others, dict) else others
        more = dict.fromkeys(key for key in (others if isinstance(others, list) else ()) if isinstance(key, str))
        keys |= more
        left += [key for key in more if key in depending and key not in seen]
        seen.update(left)
    return list(keys)


def properties(way: Way) -> dict[str, Any]:
    """The declared properties."""
    return _dict(way, "properties")


def patterns(way: Way) -> list[str]:
    """The patterns of its texts."""
    declared = way.get("pattern")
    declared = declared if isinstance(declared, list) else [declared]
    return [pattern for pattern in declared if isinstance(pattern, str)]


def key_patterns(way: Way) -> dict[str, Any]:
    """The schemas of undeclared keys' values by patterns of the keys."""
    names = way.get("propertyNames")
    pattern = names.get("pattern") if isinstance(names, dict) else None
    return _dict(way, "patternProperties") | ({pattern: True} if isinstance(pattern, str) else {})


def items(way: Way) -> list[Any]:
    """The schemas that the items may be instances of."""
    given = (way[key] for key in ("contains", "items") if key in way)
    return [*_list(way, "prefixItems"), *given]


def _merged(first: Way, second: Way) -> Way | None:
    """Both ways at once; None if they have no JSON type in common."""
    if not first or not second:
        return first or second
    merged = first | second
    for key in (*_OBJECTS, "required"):
        a, b = first.get(key), second.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            merged[key] = a | b | {name: _both(a[name], b[name]) for name in a.keys() & b.keys()}
        elif isinstance(a, list) and isinstance(b, list):
            merged[key] = [*a, *b]
    for key in ("items", "additionalProperties"):
        if key in first and key in second:
            merged[key] = _both(first[key], second[key])
    if "contains" in first and "contains" in second:  # an item for each, which may be two
        merged["contains"] = {"anyOf": [first["contains"], second["contains"]]}
    if len(each := [*patterns(first), *patterns(second)]) > 1:
        merged["pattern"] = list(dict.fromkeys(each))
    a, b = kinds(first), kinds(second)
    if a and b:
        merged["type"] = [kind for kind in a if kind in b or (kind == "integer" and "number" in b)]
        merged["type"] += ["integer"] if "number" in a and "integer" in b and "integer" not in a else []
        return merged if merged["type"] else None
    return merged


def _both(first: Any, second: Any) -> Any:
    """Both schemas of a value at once, or both lists of keys."""
    if first is False or second is False:
        return False
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    return second if first == second or first is True else {"allOf": [first, second]}


def _witness(negated: Any) -> Way:
    """The member or item that a value must have, where a schema negates that each of them fails."""
    ((key, inner),) = negated.items() if isinstance(negated, dict) and len(negated) == 1 else (("", None),)
    if key == "items" and (wanted := _negated(inner)) is not None:
        return {"contains": wanted}
    if key not in {"properties", "patternProperties"} or not isinstance(inner, dict) or len(inner) != 1:
        return {}
    ((name, value),) = inner.items()
    wanted = _negated(value)
    if wanted is None:
        return {}
    return {key: {name: wanted}} | ({"required": [name]} if key == "properties" else {})


def _negated(schema: Any) -> Any:
    """The schema that another one negates; None if it does more or less."""
    return schema["not"] if isinstance(schema, dict) and schema.keys() == {"not"} else None


def _list(schema: Way, key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _dict(schema: Way, key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def whole_number(schema: Way, key: str) -> int:
    """The value of a keyword that is a whole number of at least 0; 0 for any other value."""
    value = schema.get(key)
    return max(0, value) if type(value) is int else 0
