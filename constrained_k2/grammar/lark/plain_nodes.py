"""The nodes of a plain schema: what the models of its grammar depend on."""

from typing import Any, NamedTuple

from constrained_k2.grammar.lark.direct_model import NumberKind

LeafKey = tuple[tuple[str, Any], ...]
"""The keywords of a string or number with bounds, a pattern or a format, sorted by their names."""


class Members(NamedTuple):
    """The members of a node's objects: the required keys come first, each part in order."""

    names: tuple[str, ...]
    required: int  # how many
    values: tuple[int, ...]  # nodes
    extra: int | None  # the node of the values under other keys; None if there are none


class Items(NamedTuple):
    """The items of a node's arrays."""

    item: int  # node
    shortest: int
    longest: int | None


class PlainNode(NamedTuple):
    """The values of a node; all of them may occur together."""

    has_strings: bool = False  # any string
    listed: tuple[bytes, ...] = ()  # strings as they are written
    number: NumberKind = ""  # any of these
    words: tuple[bytes, ...] = ()
    numbers: tuple[int, ...] = ()  # listed ones
    leaf: LeafKey = ()
    members: Members | None = None
    items: Items | None = None
    any_spelling: bool = False  # True if the objects' keys may be spelled in any way


class PlainNodes(NamedTuple):
    """All nodes of a plain schema. Equal ones have grammars of one meaning.

    Attributes:
        root: The number of the root.
        nodes: The nodes by number, in an order that depends on nothing else.
        size: At least the number of characters of the grammar's text, without its leaves.
        brackets: The opening brackets in names and listed values.
    """

    root: int
    nodes: tuple[PlainNode, ...]
    size: int
    brackets: int


class NotPlainError(Exception):
    """A schema is not plain."""


def merged(nodes: list[PlainNode]) -> PlainNode:
    """Return the node of the values of any of these; no two have objects, arrays or bounded values.

    Raises:
        NotPlainError: Several have.
    """
    first, *others = nodes
    for other in others:
        if (first.leaf and other.leaf) or (first.members and other.members) or (first.items and other.items):
            raise NotPlainError
        first = PlainNode(
            first.has_strings or other.has_strings,
            tuple(sorted({*first.listed, *other.listed})),
            "number" if "number" in (first.number, other.number) else first.number or other.number,
            tuple(sorted({*first.words, *other.words})),
            tuple(sorted({*first.numbers, *other.numbers})),
            first.leaf or other.leaf,
            first.members or other.members,
            first.items or other.items,
        )
    bounded = first.leaf[-1][1] if first.leaf else ()
    has_numbers = bool(first.number) + bool(first.numbers) + ("integer" in bounded or "number" in bounded)
    if has_numbers > 1 or ("string" in bounded and (first.has_strings or first.listed)):
        raise NotPlainError
    return first._replace(listed=()) if first.has_strings and first.listed else first
