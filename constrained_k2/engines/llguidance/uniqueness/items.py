"""Finds, by path in the arguments, ``uniqueItems`` arrays, whose items are compared while decoding."""

from constrained_k2.engines.llguidance.uniqueness.texts import Identity, identity_of
from constrained_k2.formats.kimi_k3 import escape
from constrained_k2.grammar.plan.item_paths import NO_PATH
from constrained_k2.grammar.plan.nodes import ArrayPath


class ItemPaths:
    """The tree of paths that lead to a grammar's compared arrays; nodes are numbers. Shared by all calls."""

    def __init__(self, paths: tuple[ArrayPath, ...], root: int, *, is_xml: bool) -> None:
        self.root = root
        self._is_xml = is_xml
        self._paths = (*paths, ArrayPath())  # NO_PATH is -1: the last node
        self._keys: dict[int, dict[Identity, int]] = {}  # by node, filled when an object there is first written

    def of_key(self, path: int, key: Identity) -> int:
        """Return the node of the value under a key."""
        if path not in self._keys:
            spelled = escape if self._is_xml and path == self.root else str
            found = self._paths[path].keys.items()
            self._keys[path] = {
                identity_of(spelled(name).encode("utf-8", "surrogatepass")): child for name, child in found
            }
        return self._keys[path].get(key, self._paths[path].extra)

    def of_item(self, path: int, index: int) -> int:
        """Return the node of an item of an array."""
        found = self._paths[path]
        return found.prefix[index] if index < len(found.prefix) else found.rest

    def compared(self, path: int) -> bytes | None:
        """Return, for a compared array, the first bytes with which only one possible item begins; None for others."""
        return self._paths[path].alone


NO_PATHS = ItemPaths((), NO_PATH, is_xml=False)
"""The tree of a grammar without compared arrays."""
