"""The model of a grammar: what the writer emitted for each schema node.

{"type": "object", "properties": {"a": {"type": "null"}}}     the root has one object, and under ``a`` the node of null

Parser states (:mod:`~constrained_k2.grammar.lark.state_model`), masks without an engine
(:mod:`~constrained_k2.grammar.lark.direct_model`) and the arrays whose items are compared
(:mod:`~constrained_k2.grammar.lark.places`) are derived from it.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from constrained_k2.schema.shapes import ANY, EVERYTHING, NEVER, Kind, Node, Shape

Members = tuple[Mapping[str, Node], frozenset[Node], bool]
"""An object's declared keys with the nodes of their values, the nodes of the values under other keys, and True if the
continuation depends on the number of these."""
ObjectKeys = tuple[tuple[tuple[str, Node], ...], int, Node | None]
"""An object's declared keys with the nodes of their values, the bits of the required ones, and the node of others."""
ArrayItems = tuple[Node, int, int | None]
"""An array's item and the fewest and the most items."""
Compared = tuple[Node, bytes]
"""The node of an array's items as they are written, and the first bytes that are of one item alone."""


@dataclass(slots=True)
class WrittenNode:
    """The shapes and rules that are written of one node."""

    shapes: list[Shape] = field(default_factory=list)
    objects: list[Members] = field(default_factory=list)
    keys: ObjectKeys | None = None  # of its objects, if bits alone tell their states apart
    items: ArrayItems | None = None  # of its arrays, if they have one kind of item
    strings: str = ""  # the expression of the terminal that its strings share
    compared: Compared | None = None  # the items of its arrays, if a matcher compares them


def _with_any() -> defaultdict[Node, WrittenNode]:
    return defaultdict(WrittenNode, {ANY: WrittenNode(list(EVERYTHING), [({}, frozenset({ANY}), False)])})


@dataclass(slots=True)
class GrammarModel:
    """All that is written."""

    root: Node = NEVER
    nodes: defaultdict[Node, WrittenNode] = field(default_factory=_with_any)  # in the order in which they are written
    terminals: dict[Shape, str] = field(default_factory=dict)  # the expressions of strings and numbers
    arguments: Node = NEVER  # the node whose objects are written as XTML arguments
    parts: dict[Node, dict[Kind, Node]] = field(default_factory=dict)  # node of an argument -> the nodes of its values
    has_builtin: bool = False  # True if LLGuidance's converter writes a part of it
    has_open_keys: bool = False  # True if an object may have keys that its rule does not tell apart

    @property
    def numbers(self) -> dict[Node, int]:
        """The number of each node."""
        return {node: number for number, node in enumerate(self.nodes)}
