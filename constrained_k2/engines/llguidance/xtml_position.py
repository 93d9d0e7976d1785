"""Computes the parser state after each token of Kimi K3's XTML arguments: in a tag, raw text or JSON.

<|open|>argument key="to" type="string"<|sep|>up     in raw text, with the bit of ``to``; only a marker ends it
"""

import re

from constrained_k2.engines.llguidance.position import MARKER, Open, Position, StateKind
from constrained_k2.engines.llguidance.position_tracker import PositionTracker
from constrained_k2.engines.llguidance.xtml_text import BEFORE_KEY, CLOSE, OPEN, SEPARATOR
from constrained_k2.formats.kimi_k3 import unescape
from constrained_k2.grammar.patterns.string_states import KnownStrings
from constrained_k2.grammar.state_model import AMBIGUOUS, ArgumentsModel, StateModel

_ATTRIBUTES = re.compile(rb'([^"]*)" type="([a-z]+)"')
_AFTER_KEY = 32  # stored bytes of a tag after its key
_TEXTS = frozenset({StateKind.IN_FREE_TEXT, StateKind.IN_LISTED_TEXT, StateKind.IN_OTHER_TEXT})
_TAGS = frozenset({StateKind.IN_TAG, StateKind.IN_ATTRIBUTES, StateKind.IN_END_TAG})


class XtmlStates(PositionTracker):
    """Computes the parser states of XTML arguments. The outermost open object has the keys of the blocks so far."""

    def __init__(self, arguments: ArgumentsModel, model: StateModel, strings: KnownStrings) -> None:
        super().__init__(model, strings)
        self._arguments = arguments
        self._max_text += _AFTER_KEY
        self.start = Position(StateKind.BETWEEN, AMBIGUOUS, (Open(model.root, is_object=True),))

    def follow(self, position: Position, token: bytes) -> Position:
        if position.expect is StateKind.LOST:
            return position
        if token.startswith(MARKER):
            return self._after_marker(position, token)
        if position.expect in _TAGS:
            return self._in_tag(position, token)
        if position.expect in _TEXTS:
            return self._in_text(position, token)
        return super().follow(position, token)

    def _after_marker(self, position: Position, marker: bytes) -> Position:
        arguments = position.open[:1]
        if marker == OPEN:
            return Position(StateKind.IN_TAG, AMBIGUOUS, arguments)
        if marker == CLOSE:
            return Position(StateKind.IN_END_TAG, AMBIGUOUS, arguments)
        if position.expect is StateKind.IN_END_TAG:
            return Position(StateKind.BETWEEN, AMBIGUOUS, arguments)
        assert marker == SEPARATOR
        return self._begin_value(position)

    def _in_tag(self, position: Position, token: bytes) -> Position:
        text = position.text + token
        if len(text) > self._max_text:
            return Position(StateKind.LOST, AMBIGUOUS)
        if position.expect is StateKind.IN_TAG and text.startswith(BEFORE_KEY):
            return position._replace(expect=StateKind.IN_ATTRIBUTES, text=text.removeprefix(BEFORE_KEY))
        return position._replace(text=text)

    def _in_text(self, position: Position, token: bytes) -> Position:
        if position.expect is StateKind.IN_OTHER_TEXT:
            return position
        text = position.text + token
        if position.expect is StateKind.IN_FREE_TEXT:
            text = _unfinished(text)
        return position._replace(text=text[: self._max_text + 1])

    def _begin_value(self, position: Position) -> Position:
        found = _ATTRIBUTES.fullmatch(position.text)
        assert found is not None, position
        name, kind = unescape(found[1].decode()), found[2].decode()
        (owner,) = position.open
        if name in self._arguments.values:
            key, kinds = self._arguments.values[name]
            owner = owner._replace(keys=owner.keys | 1 << key)
        else:
            kinds = self._arguments.extra
            owner = self._with_extra(owner, counts=self._arguments.counts_extra)
        node = kinds.get(kind, AMBIGUOUS)
        if kind == "string":
            model = self._nodes[node]
            is_listed = model.listed_strings and node != AMBIGUOUS
            expect = StateKind.IN_LISTED_TEXT if is_listed else StateKind.IN_OTHER_TEXT
            return Position(StateKind.IN_FREE_TEXT if model.free_strings else expect, node, (owner,))
        if node == AMBIGUOUS:  # the continuation depends on the tag's text
            return Position(StateKind.VALUE, node, (owner,), position.text, outside=1)
        return Position(StateKind.VALUE, node, (owner,), kind.encode())  # the node may have values of other types


def _unfinished(text: bytes) -> bytes:
    """Return the bytes of an unfinished UTF-8 character at the end of a text."""
    for length in range(1, min(4, len(text) + 1)):
        first = text[-length]
        if first >= 0xC0:
            size = 2 + (first >= 0xE0) + (first >= 0xF0)
            return text[-length:] if length < size else b""
        if first < 0x80:
            break
    return b""
