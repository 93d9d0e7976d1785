"""Reads plain schemas: what their grammar's models depend on, from the decoded schema and without a grammar.

Most tools are objects of scalars, listed values, arrays and such objects. Their shapes are known without intersections,
and nothing in them contradicts another part. Any other schema is not plain: it may have a grammar all the same.
Admission counts more schemas as plain (:mod:`constrained_k2.schema.plain`): it needs to know less of them.
"""

from collections.abc import Mapping
from json import JSONEncoder
from math import isfinite
from typing import Any

from constrained_k2.grammar.lark.plain_nodes import Items, Members, NotPlainError, PlainNode, PlainNodes, merged
from constrained_k2.schema.dialects import is_read_as_written
from constrained_k2.schema.document import DEFINITIONS, NAMING
from constrained_k2.schema.keywords import KEYWORDS
from constrained_k2.schema.undeclared_keys import UndeclaredKeys

_MAX_PARTS = 400
_MAX_DEPTH = 16
_MAX_KEYS = 64  # of one object: as many as a grammar's rule tells apart
_MAX_ITEMS = 1_000
_MAX_NAME = 256  # characters of a property's name, or of a listed string
_MAX_PATTERN = 256  # characters
_LARGEST = 10**15  # of bounds, and of listed numbers
# Characters of the grammar's text, at most: tests compare their sum with the text.
_PREAMBLE, _OBJECT, _KEY, _ARRAY, _VALUE, _WAY = 2_000, 400, 120, 300, 32, 80
_ESCAPED = 24  # the same of a character that is escaped somewhere

_quoted = JSONEncoder(ensure_ascii=False).encode
_COUNTED = frozenset({*KEYWORDS, *NAMING, *DEFINITIONS})
_OBJECT_KEYWORDS = frozenset({"type", "properties", "required", "additionalProperties", *DEFINITIONS})
_ARRAY_KEYWORDS = frozenset({"type", "items", "minItems", "maxItems", "uniqueItems"})
_LEAF_KEYWORDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    **dict.fromkeys(("minLength", "maxLength"), (int,)),
    **dict.fromkeys(("pattern", "format"), (str,)),
}
_WORDS = {None: b"null", True: b"true", False: b"false"}
_SCALARS: Mapping[str, PlainNode] = {
    "string": PlainNode(has_strings=True),
    "integer": PlainNode(number="integer"),
    "number": PlainNode(number="number"),
    "boolean": PlainNode(words=(_WORDS[False], _WORDS[True])),
    "null": PlainNode(words=(_WORDS[None],)),
}
_ANY = PlainNode(any_spelling=True)
_EVERYTHING = PlainNode(has_strings=True, number="number", words=tuple(sorted(_WORDS.values())))
_TYPES_OF: Mapping[type, frozenset[str]] = {
    str: frozenset({"string"}),
    int: frozenset({"integer", "number"}),
    bool: frozenset({"boolean"}),
    type(None): frozenset({"null"}),
}
_TEXTS = frozenset({"title", "description", "$comment", "default"})  # annotations that may be any text
_DATA = frozenset({"default", "examples"})  # annotations whose texts may be any


def plain_nodes(root: Any, undeclared_keys: UndeclaredKeys) -> PlainNodes:
    """Return the nodes of a decoded schema, whose type is an object. A plain schema is within all budgets.

    Raises:
        NotPlainError: It has another keyword, value or size than plain schemas have.
    """
    if type(root) is not dict or root.get("type") != "object":
        raise NotPlainError
    walk = _Walk(root, is_closed=undeclared_keys == "forbid")
    number = walk.number(walk.node(root, 0))
    walk.check_definitions()
    return PlainNodes(number, tuple(walk.numbers), walk.size, walk.brackets)


class _Walk:
    def __init__(self, root: dict[str, Any], *, is_closed: bool) -> None:
        self._root = root
        self._is_closed = is_closed
        self._left = _MAX_PARTS
        self._targets: dict[str, PlainNode | None] = {}  # of references; None while they are walked
        self.numbers: dict[PlainNode, int] = {}
        self.size = _PREAMBLE
        self.brackets = 0

    def number(self, node: PlainNode) -> int:
        return self.numbers.setdefault(node, len(self.numbers))

    def node(self, schema: Any, depth: int) -> PlainNode:
        """Return the node of a subschema."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise NotPlainError
        if type(schema) is not dict:
            if schema is not True:
                raise NotPlainError
            return self._everything()
        if not is_read_as_written(schema):
            raise NotPlainError
        found = _keywords_of(schema)
        if not found:
            return self._everything()
        kind = schema.get("type")
        if len(found) == 1 and type(kind) is str and kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "object":
            return self._object(schema, found, depth)
        if kind == "array":
            return self._array(schema, found, depth)
        if "enum" in schema or "const" in schema:
            return self._listed(schema, found)
        if kind is not None:
            return self._scalars(schema, found)
        if found == ["anyOf"]:
            return self._any_of(schema["anyOf"], depth)
        if found == ["$ref"]:
            return self._reference(schema["$ref"], depth)
        raise NotPlainError

    def check_definitions(self) -> None:
        """Refuse definitions that nothing refers to: they were not read."""
        for keyword in DEFINITIONS & self._root.keys():
            if not all(f"#/{keyword}/{name}" in self._targets for name in self._root[keyword]):
                raise NotPlainError

    def _everything(self) -> PlainNode:
        """Return the node of a subschema that allows all values, whose members and items are in any spelling."""
        self.size += _OBJECT + _ARRAY
        inner = self.number(_ANY)
        return _EVERYTHING._replace(members=Members((), 0, (), inner), items=Items(inner, 0, None))

    def _object(self, schema: dict[str, Any], found: list[str], depth: int) -> PlainNode:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not _OBJECT_KEYWORDS.issuperset(found) or (depth and not DEFINITIONS.isdisjoint(found)):
            raise NotPlainError
        if type(properties) is not dict or type(required) is not list or len(properties) > _MAX_KEYS:
            raise NotPlainError
        names = sorted(properties)
        if required:
            if not all(type(name) is str and name in properties for name in required):
                raise NotPlainError
            needed = frozenset(required)
            names = [*sorted(needed), *(name for name in names if name not in needed)]
            count = len(needed)
        else:
            count = 0
        self.size += _OBJECT + _KEY * len(names)
        values = []
        for name in names:
            if not (name.isidentifier() and name.isascii()):
                self._add_text(name, _ESCAPED)
            self.size += 2 * len(name)
            if len(name) > _MAX_NAME:
                raise NotPlainError
            values.append(self.number(self.node(properties[name], depth + 1)))
        extra: int | None = None
        if "additionalProperties" not in schema:
            if not (self._is_closed and properties):
                extra = self.number(_ANY)
        elif schema["additionalProperties"] is not False:
            extra = self.number(self.node(schema["additionalProperties"], depth + 1))
        return PlainNode(members=Members(tuple(names), count, tuple(values), extra))

    def _array(self, schema: dict[str, Any], found: list[str], depth: int) -> PlainNode:
        shortest, longest = schema.get("minItems", 0), schema.get("maxItems")
        if not _ARRAY_KEYWORDS.issuperset(found) or ("uniqueItems" in schema and schema["uniqueItems"] is not False):
            raise NotPlainError
        most = _MAX_ITEMS if longest is None else longest
        if type(shortest) is not int or type(most) is not int or not 0 <= shortest <= most <= _MAX_ITEMS or not most:
            raise NotPlainError
        self.size += _ARRAY
        item = self.node(schema["items"], depth + 1) if "items" in schema else _ANY
        return PlainNode(items=Items(self.number(item), shortest, longest))

    def _listed(self, schema: dict[str, Any], found: list[str]) -> PlainNode:
        """Return the node of ``enum`` or ``const``: the scalars that have a type beside it."""
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        is_alone = len(found) == 1 or (len(found) == 2 and "type" in schema)
        if not is_alone or type(values) is not list:
            raise NotPlainError
        self._left -= len(values)
        if "type" in schema:
            kinds = _types_of(schema["type"])
            values = [value for value in values if not kinds.isdisjoint(_TYPES_OF.get(type(value), ()))]
        listed, words, numbers = set[bytes](), set[bytes](), set[int]()
        for value in values:
            if type(value) is str:
                if len(value) > _MAX_NAME:
                    raise NotPlainError
                listed.add(_quoted(self._add_text(value, 1)).encode())
            elif value is None or type(value) is bool:
                words.add(_WORDS[value])
            elif type(value) is int and abs(value) <= _LARGEST:
                numbers.add(value)
            else:
                raise NotPlainError
        if not values or self._left < 0:
            raise NotPlainError
        self.size += _VALUE * len(values)
        return PlainNode(listed=tuple(sorted(listed)), words=tuple(sorted(words)), numbers=tuple(sorted(numbers)))

    def _scalars(self, schema: dict[str, Any], found: list[str]) -> PlainNode:
        """Return the node of one or several types without objects and arrays."""
        kinds = _types_of(schema["type"])
        if len(found) == 1:
            self.size += _WAY * len(kinds)
            return merged([_SCALARS[kind] for kind in sorted(kinds)])
        leaf: list[tuple[str, Any]] = []
        for name in sorted(found):
            value = schema[name]
            if name == "type":
                leaf.append((name, tuple(sorted(kinds))))
                continue
            if type(value) not in _LEAF_KEYWORDS.get(name, ()):
                raise NotPlainError
            if len(value) > _MAX_PATTERN if type(value) is str else not abs(value) <= _LARGEST:
                raise NotPlainError
            leaf.append((name, value))
        return PlainNode(leaf=tuple(leaf))

    def _any_of(self, branches: Any, depth: int) -> PlainNode:
        if type(branches) is not list or not branches:
            raise NotPlainError
        self.size += _WAY * len(branches)
        return merged([self.node(branch, depth + 1) for branch in branches])

    def _reference(self, reference: Any, depth: int) -> PlainNode:
        """Return the node of a definition at the root, which does not contain itself."""
        keyword, _, name = reference.removeprefix("#/").partition("/") if type(reference) is str else ("", "", "")
        if keyword not in DEFINITIONS or not name.isidentifier() or not reference.startswith("#/"):
            raise NotPlainError
        if reference not in self._targets:
            self._targets[reference] = None
            definitions = self._root.get(keyword)
            if type(definitions) is not dict or name not in definitions:
                raise NotPlainError
            self._targets[reference] = self.node(definitions[name], depth + 1)
        found = self._targets[reference]
        if found is None:
            raise NotPlainError
        return found

    def _add_text(self, text: str, times: int) -> str:
        """Count the characters of a name or value in the grammar's text, where each plain one takes this many."""
        if not text.isprintable() or "%json" in text:
            raise NotPlainError
        self.size += len(text) * (times if text.isascii() and '"' not in text and "\\" not in text else _ESCAPED)
        self.brackets += text.count("(")
        return text


def _keywords_of(schema: dict[str, Any]) -> list[str]:
    """Return the keywords of a subschema, without annotations."""
    found = []
    for name, value in schema.items():
        if name in _COUNTED:
            found.append(name)
        elif name not in _TEXTS or type(value) is not str:
            _check_annotation(name, value)
    return found


def _check_annotation(name: str, value: Any) -> None:
    """Refuse annotations that are nested, long, or not text in UTF-8: those count in a schema's budgets."""
    texts, values = [name], [value]
    if type(value) is list:
        values = value
    elif type(value) is dict:
        texts, values = [name, *value], list(value.values())
    for each in values:
        if type(each) is str:
            texts += () if name in _DATA else (each,)
        elif (type(each) not in {int, bool, type(None)}) and not (type(each) is float and isfinite(each)):
            raise NotPlainError
    if not all(len(text) <= _MAX_NAME and text.isprintable() for text in texts):
        raise NotPlainError


def _types_of(declared: Any) -> frozenset[str]:
    names = declared if type(declared) is list else [declared]
    if not names or not all(type(name) is str and name in _SCALARS for name in names):
        raise NotPlainError
    return frozenset(names)
