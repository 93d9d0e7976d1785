"""Finds the arrays whose items a matcher compares, by the keys and indices that lead to them.

The places are the nodes of the grammar's state model: in ``{"a":[`` the array's place is the node of the key ``a``.
"""

from constrained_k2.engines.llguidance.written.texts import Identity, identity_of
from constrained_k2.formats.kimi_k3 import escape
from constrained_k2.grammar.lark.state_model import AMBIGUOUS, Kinds, NodeModel, StateModel


class ItemPlaces:
    """The nodes of a grammar's state model, by what leads to them. Shared by its calls."""

    def __init__(self, model: StateModel) -> None:
        self.root = model.root
        self._nodes = (*model.nodes, NodeModel())  # the last is that of AMBIGUOUS, which is -1
        self._keys: dict[int, dict[Identity, int]] = {}  # by node, those of the objects that were written
        arguments = model.arguments
        self._arguments: dict[Identity, Kinds] = {}
        self._extra: Kinds = {} if arguments is None else arguments.extra
        if arguments is not None:
            self._arguments = {_identity(escape(name)): kinds for name, (_, kinds) in arguments.values.items()}

    def of_key(self, place: int, key: Identity) -> int:
        """Return the node of the value under a key of an object."""
        model = self._nodes[place].object
        if model is None:
            return AMBIGUOUS
        if place not in self._keys:
            self._keys[place] = {_identity(name): node for name, (_, node) in model.values.items()}
        return self._keys[place].get(key, model.extra)

    def of_argument(self, key: Identity, kind: str) -> int:
        """Return the node of the values of a type under a key of arguments in XTML."""
        return self._arguments.get(key, self._extra).get(kind, AMBIGUOUS)

    def of_item(self, place: int, index: int) -> int:
        """Return the node of an item of an array."""
        model = self._nodes[place].array
        return AMBIGUOUS if model is None else model.item(index)

    def compared(self, place: int) -> bytes | None:
        """Return the first bytes that are of one item alone, in arrays whose items are compared; None in others."""
        model = self._nodes[place].array
        return None if model is None else model.compared


def _identity(name: str) -> Identity:
    return identity_of(name.encode("utf-8", "surrogatepass"))


NO_PLACES = ItemPlaces(StateModel(AMBIGUOUS, ()))
"""Of a grammar without such arrays."""
