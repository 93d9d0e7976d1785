"""A schema as a document: its subschemas by JSON pointer, and its references resolved inside it."""

from typing import Any, Literal
from urllib.parse import unquote, urljoin

from constrained_k2.errors import UnsupportedSchema

Draft = Literal["2020-12", "legacy"]

# Where no schemas stand, so that a "$id" or "$anchor" there is data.
_DATA = frozenset({"const", "enum", "default", "examples"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})


class SchemaDocument:
    """One schema with everything it refers to.

    Args:
        root: The decoded schema.
        place: Where it stands in the request, for errors.
    """

    def __init__(self, root: Any, place: str = "") -> None:
        self.root = root
        self.place = place
        declared = root.get("$schema") if isinstance(root, dict) else None
        old = isinstance(declared, str) and any(f"draft-0{number}" in declared for number in (3, 4, 6, 7))
        self.draft: Draft = "legacy" if old else "2020-12"
        self._bases: dict[str, str] = {}  # pointer of a subschema with its own "$id" -> its absolute URI
        self._resources: dict[str, str] = {"": "#"}  # absolute URI -> pointer
        self._anchors: dict[tuple[str, str], str] = {}  # (absolute URI, name) -> pointer
        self._index(root, "#", "")

    def at(self, pointer: str) -> Any:
        """The subschema at a pointer of ours (always ``#`` or ``#/…``).

        Raises:
            UnsupportedSchema: There is none.
        """
        value = self.root
        for token in _tokens(pointer[1:]):
            try:
                value = value[int(token)] if isinstance(value, list) else value[token]
            except (KeyError, IndexError, ValueError, TypeError):
                raise self.unsupported(f"{pointer!r} points at nothing", pointer, "$ref") from None
        return value

    def resolve(self, reference: Any, pointer: str) -> str:
        """The pointer that a ``$ref`` at ``pointer`` means.

        Raises:
            UnsupportedSchema: It leaves the document, or names nothing in it.
        """
        if not isinstance(reference, str):
            raise self.unsupported("the reference is not a string", f"{pointer}/$ref", "$ref")
        base = self._base_of(pointer)
        absolute, _, fragment = urljoin(base, reference).partition("#")
        if reference.startswith("#"):
            absolute = base
        fragment = unquote(fragment)
        resource = self._resources.get(absolute)
        if resource is None:
            raise self.unsupported(
                f"the reference {reference[:200]!r} leaves the schema; nothing is fetched", f"{pointer}/$ref", "$ref"
            )
        if not fragment:
            return resource
        if fragment.startswith("/"):
            return self._lenient(resource + fragment, fragment, pointer)
        target = self._anchors.get((absolute, fragment), "")
        if not target:
            raise self.unsupported(f"the reference {reference[:200]!r} names nothing", f"{pointer}/$ref", "$ref")
        return target

    def _lenient(self, target: str, fragment: str, pointer: str) -> str:
        """The target; if nothing is there, what the same path leads to from the innermost schema around the reference.

        A schema with ``$defs`` of its own that was put into a property of a tool leaves its references behind: they
        can mean nothing else.
        """
        try:
            self.at(target)
        except UnsupportedSchema as error:
            around = pointer
            while around != "#":
                try:
                    self.at(around + fragment)
                except UnsupportedSchema:
                    around = around.rpartition("/")[0]
                else:
                    return around + fragment
            raise self.unsupported(error.problem, f"{pointer}/$ref", "$ref") from None
        return target

    def resolve_dynamic(self, reference: Any, pointer: str) -> str | None:
        """The pointer that a ``$dynamicRef`` means; None where that depends on the path taken to it.

        The outermost resource on the path that has the anchor counts, and the root is on every path.

        Raises:
            UnsupportedSchema: As for :meth:`resolve`.
        """
        target = self.resolve(reference, pointer)
        name = reference.rpartition("#")[2]
        value = self.at(target)
        if not name or not isinstance(value, dict) or value.get("$dynamicAnchor") != name:
            return target  # nothing dynamic about it
        outermost = self._anchors.get((self._bases.get("#", ""), name))
        anchors = {where for (_, anchor), where in self._anchors.items() if anchor == name and self._is_dynamic(where)}
        if outermost is not None and self._is_dynamic(outermost):
            return outermost
        return target if len(anchors) == 1 else None

    def _is_dynamic(self, pointer: str) -> bool:
        value = self.at(pointer)
        return isinstance(value, dict) and "$dynamicAnchor" in value

    def unsupported(self, problem: str, pointer: str, keyword: str = "") -> UnsupportedSchema:
        """An error at a place in this schema."""
        return UnsupportedSchema(problem, f"{self.place}{pointer}", "Rewrite it, or leave the tool out", keyword)

    def _base_of(self, pointer: str) -> str:
        while pointer != "#" and pointer not in self._bases:
            pointer = pointer.rpartition("/")[0]
        return self._bases.get(pointer, "")

    def _index(self, value: Any, pointer: str, base: str) -> None:
        """Note every ``$id`` and anchor; iterative, since depth is the client's choice."""
        stack = [(value, pointer, base, True)]
        while stack:
            value, pointer, base, is_schema = stack.pop()
            if isinstance(value, list):
                stack += [(item, f"{pointer}/{number}", base, True) for number, item in enumerate(value)]
            if not isinstance(value, dict):
                continue
            if is_schema:
                base = self._note(value, pointer, base)
            stack += [
                (item, f"{pointer}/{escape(key)}", base, not is_schema or key not in _NAMED)
                for key, item in value.items()
                if isinstance(item, dict | list) and not (is_schema and key in _DATA)
            ]

    def _note(self, schema: dict[str, Any], pointer: str, base: str) -> str:
        name = schema.get("$id", schema.get("id") if self.draft == "legacy" else None)
        if self.draft == "legacy" and "$ref" in schema:
            name = None  # siblings of "$ref" mean nothing in old drafts
        if isinstance(name, str):
            absolute, _, fragment = urljoin(base, name).partition("#")
            if name.startswith("#"):  # which urljoin loses behind a URN
                absolute = base
            if fragment and self.draft == "legacy":
                self._anchors.setdefault((absolute, fragment), pointer)
            if not name.startswith("#"):
                base = absolute
                self._bases[pointer] = base
                self._resources.setdefault(base, pointer)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(keyword), str):
                self._anchors.setdefault((base, anchor), pointer)
        return base


def escape(token: str) -> str:
    """A key as a token of a JSON pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def unescape(token: str) -> str:
    """A token of a JSON pointer as a key."""
    return token.replace("~1", "/").replace("~0", "~")


def _tokens(path: str) -> list[str]:
    return [unescape(token) for token in path.split("/")[1:]]
