"""Finds the subschemas of one schema by JSON pointer, and resolves references inside it."""

from contextlib import suppress
from typing import Any, Literal
from urllib.parse import unquote, urljoin

from constrained_k2.errors import UnsupportedSchema

DATA = frozenset({"const", "enum", "default", "examples", "example"})
"""Keywords whose values are data: a "$id" or "$anchor" in them names nothing."""
NAMING = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
"""Keywords that give a subschema a name."""
DEFINITIONS = frozenset({"$defs", "definitions"})
# Keywords whose value maps names to schemas: a "default" in it is a name. A test compares this with the keyword table.
MAPS = DEFINITIONS | {"properties", "patternProperties", "dependentSchemas", "dependencies"}


Draft = Literal["2020-12", "legacy"]
_OLD_DRAFTS = tuple(f"draft-0{number}" for number in (3, 4, 6, 7))


class IllFormed(UnsupportedSchema):
    """A part of a schema to which JSON Schema gives no meaning. Never leaves this package: the part is relaxed."""


class SchemaDocument:
    """One decoded schema, with an index of its identifiers; ``location``: where it is in the request, for errors."""

    def __init__(self, root: Any, location: str = "") -> None:
        self.root = root
        self.location = location
        self.draft: Draft = draft_of(root)
        self._bases: dict[str, str] = {}  # pointer of a subschema with an "$id" -> its absolute URI
        self._resources: dict[str, str] = {"": "#"}  # absolute URI -> pointer
        self._anchors: dict[tuple[str, str], str] = {}  # (absolute URI, name) -> pointer
        self._known: dict[str, Any] = {}  # pointer -> the object or array there, so that none is looked for twice
        self._index(root)

    def find(self, pointer: str) -> Any:
        """The value at a pointer, of any JSON type; None if the value is null or missing."""
        value = self._known.get(pointer)
        return local_target(self.root, pointer) if value is None else value

    def at(self, pointer: str) -> Any:
        """The subschema at a pointer of this document (``#`` or ``#/…``)."""
        value = self.find(pointer)
        if value is None:
            raise self.ill_formed(f"{pointer!r} points at nothing", pointer, "$ref")
        return value

    def resolve(self, reference: Any, pointer: str) -> str:
        """The pointer of the target of a ``$ref`` at ``pointer``."""
        here = f"{pointer}/$ref"
        if not isinstance(reference, str):
            raise self.ill_formed("the reference is not a string", here, "$ref")
        base = self._base_of(pointer)
        absolute, _, fragment = urljoin(base, reference).partition("#")
        if reference.startswith("#"):
            absolute = base
        fragment = unquote(fragment)
        resource = self._resources.get(absolute)
        if resource is None:
            problem = f"the reference {reference[:200]!r} leaves the schema; nothing is fetched"
            raise self.ill_formed(problem, here, "$ref")
        if fragment.startswith("/"):
            return self._resolve_path(resource, fragment, pointer)
        target = self._anchors.get((absolute, fragment), "") if fragment else resource
        if not target:
            raise self.ill_formed(f"the reference {reference[:200]!r} names nothing", here, "$ref")
        return target

    def _resolve_path(self, resource: str, fragment: str, pointer: str) -> str:
        """The target. If it is missing, the path is tried from each schema around the reference, innermost first.

        So a schema with its own ``$defs`` keeps its references if it is moved into a property of a tool.
        """
        around = pointer.split("/")
        for base in (resource, *("/".join(around[:depth]) for depth in range(len(around), 1, -1))):
            with suppress(UnsupportedSchema):
                self.at(base + fragment)
                return base + fragment
        raise self.ill_formed(f"{resource + fragment!r} points at nothing", f"{pointer}/$ref", "$ref")

    def resolve_dynamic(self, reference: Any, pointer: str) -> str | None:
        """The pointer of the target of a ``$dynamicRef``; None if it depends on the path taken to the reference.

        The outermost resource on the path that has the anchor counts, and the root is on every path.
        """
        target = self.resolve(reference, pointer)
        name = reference.rpartition("#")[2]
        value = self.at(target)
        if not name or not isinstance(value, dict) or value.get("$dynamicAnchor") != name:
            return target  # an ordinary reference
        named = {base: where for (base, anchor), where in self._anchors.items() if anchor == name}
        dynamic = {base: where for base, where in named.items() if "$dynamicAnchor" in self.at(where)}
        only = target if len(set(dynamic.values())) == 1 else None
        return dynamic.get(self._bases.get("#", ""), only)

    def unsupported(self, problem: str, pointer: str, keyword: str = "") -> UnsupportedSchema:
        """An error with its location in this schema."""
        return UnsupportedSchema(problem, f"{self.location}{pointer}", "Rewrite it, or leave the tool out", keyword)

    def ill_formed(self, problem: str, pointer: str, keyword: str = "") -> IllFormed:
        """As :meth:`unsupported`, for a part to which JSON Schema gives no meaning."""
        return IllFormed(problem, f"{self.location}{pointer}", "Rewrite it, or leave the tool out", keyword)

    def _base_of(self, pointer: str) -> str:
        while pointer != "#" and pointer not in self._bases:
            pointer = pointer.rpartition("/")[0]
        return self._bases.get(pointer, "")

    def _index(self, root: Any) -> None:
        """Record every ``$id`` and anchor; iterative, since the client chooses the depth."""
        stack = [(root, "#", "", True)]
        while stack:
            value, pointer, base, is_schema = stack.pop()
            self._known[pointer] = value
            if isinstance(value, list):
                stack += [(item, f"{pointer}/{number}", base, True) for number, item in enumerate(value)]
            if not isinstance(value, dict):
                continue
            if is_schema and not NAMING.isdisjoint(value):
                base = self._record(value, pointer, base)
            for key, item in value.items():
                if isinstance(item, (dict, list)) and not (is_schema and key in DATA):
                    stack.append((item, f"{pointer}/{escape(key)}", base, not is_schema or key not in MAPS))

    def _record(self, schema: dict[str, Any], pointer: str, base: str) -> str:
        name = schema.get("$id", schema.get("id") if self.draft == "legacy" else None)
        if isinstance(name, str) and not (self.draft == "legacy" and "$ref" in schema):  # a "$ref" ignores siblings
            absolute, _, fragment = urljoin(base, name).partition("#")
            if name.startswith("#"):  # urljoin drops a base that is a URN
                absolute = base
            if fragment and self.draft == "legacy":
                self._anchors.setdefault((absolute, fragment), pointer)
            if not name.startswith("#"):
                base = self._bases[pointer] = absolute
                self._resources.setdefault(base, pointer)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(keyword), str):
                self._anchors.setdefault((base, anchor), pointer)
        return base


def draft_of(root: Any) -> Draft:
    """``legacy`` if a decoded schema declares draft 3, 4, 6 or 7; else ``2020-12``."""
    declared = root.get("$schema") if isinstance(root, dict) else None
    is_old = isinstance(declared, str) and any(name in declared for name in _OLD_DRAFTS)
    return "legacy" if is_old else "2020-12"


def local_target(root: Any, reference: str) -> Any:
    """The target of a reference by pointer (``#/…``), of any JSON type; None if the target is null or missing.

    Anchors and identifiers are for :meth:`SchemaDocument.resolve`.
    """
    value = root
    for key in map(unescape, reference.removeprefix("#").split("/")[1:]):
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and len(key) < 9 and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value if reference == "#" or reference.startswith("#/") else None


def escape(token: str) -> str:
    """Escape a key for use in a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1") if "~" in token or "/" in token else token


def unescape(token: str) -> str:
    """The key that a token of a JSON pointer stands for."""
    return token.replace("~1", "/").replace("~0", "~") if "~" in token else token
