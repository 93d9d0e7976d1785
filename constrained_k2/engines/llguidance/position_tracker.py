"""Computes the parser state after each token of JSON arguments.

{"a":1,       an open object with the bit of ``a``; a key comes next
{"b":2,"a":1, another state, since ``b`` has a bit too. But {"a":7, is in the first state again.
"""

import json
import re

from constrained_k2.engines.llguidance.position import MAX_TEXT, UNESCAPED, Open, Position, StateKind
from constrained_k2.grammar.patterns.string_states import KnownStrings, StringState
from constrained_k2.grammar.spelling import CHARACTER
from constrained_k2.grammar.state_model import AMBIGUOUS, ArrayModel, NodeModel, ObjectModel, StateModel
from constrained_k2.schema.shapes import Shape

_MAX_DEPTH = 24  # deeper states are not tracked: they would grow with every bracket
_MAX_COUNTED = 64  # undeclared keys are counted up to the bits of a grammar's parameter

_HEX = rb"[0-9a-fA-F]"
_CHARACTER = re.compile(
    rb'[^"\\\x00-\x1f\x80-\xff]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}'
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
    rb'|\\["\\/bfnrt]|\\u(?:[0-9a-cA-CefEF]' + _HEX + rb"{3}|[dD][0-7]" + _HEX + rb"{2}"
    rb"|[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2})"
)
_ONE_SPELLING = re.compile(CHARACTER)
_LONGEST_ESCAPE = len(rb"\u0000")
_QUOTE, _BACKSLASH = b'"', b"\\"
_BLANKS = b" \t\r\n"
_KEYS = frozenset({StateKind.KEY, StateKind.FIRST_KEY})
_IN_STRINGS = frozenset({StateKind.IN_KEY, StateKind.IN_FREE_STRING, StateKind.IN_LISTED_STRING,
                         StateKind.IN_OTHER_STRING, StateKind.IN_TRACKED_STRING})  # fmt: skip
_RUNS = {
    StateKind.IN_KEY: UNESCAPED,
    StateKind.IN_LISTED_STRING: UNESCAPED,
    StateKind.IN_SCALAR: re.compile(rb"[^ \t\r\n,}\]]+"),
}
"""Runs of bytes that only extend a state's text."""


def _within(position: Position, string: StringState | None) -> Position:
    """Return a parser state with a new string state, which is None if the string is no longer tracked."""
    expect = StateKind.IN_OTHER_STRING if string is None else StateKind.IN_TRACKED_STRING
    return position._replace(expect=expect, string=string)


class PositionTracker:
    """Computes the parser states of prefixes that a grammar accepts."""

    def __init__(self, model: StateModel, strings: KnownStrings) -> None:
        self._nodes = (*model.nodes, NodeModel())  # AMBIGUOUS is -1, so its node is the last
        self._max_text = max(model.longest_name, MAX_TEXT)
        self.start = Position(StateKind.VALUE, model.root)
        self._strings = strings
        self.shapes: set[tuple[Shape, ...]] = set()  # the shapes of strings and keys that have string states here
        self.free_keys: frozenset[int] = frozenset()  # object nodes whose keys need no string states

    def follow(self, position: Position, token: bytes) -> Position:
        """Return the state after a token that the grammar allows in the state ``position``."""
        if position.string is not None and (after := self._after_text(position, token)) is not None:
            return after
        at = 0
        while at < len(token) and position.expect is not StateKind.LOST:
            run = None if position.escaped or (text := _RUNS.get(position.expect)) is None else text.match(token, at)
            if run is None:
                position = self._after_byte(position, token[at : at + 1])
                at += 1
            else:
                position = self._append(position, run[0])
                at = run.end()
        return position

    def _after_byte(self, position: Position, byte: bytes) -> Position:
        if position.expect in _IN_STRINGS:
            return self._in_string(position, byte)
        if position.expect is StateKind.IN_SCALAR:
            position = self._end_value(position)
        return self._append(position, byte) if byte in _BLANKS else self._structural(position, byte)

    def _after_text(self, position: Position, token: bytes) -> Position | None:
        """Return the state after whole characters of a tracked string; None for any other token."""
        is_key = position.expect is StateKind.IN_KEY
        if (position.text and not is_key) or not UNESCAPED.fullmatch(token):
            return None
        try:
            text = token.decode()
        except UnicodeDecodeError:
            return None
        assert position.string is not None
        after = position.string.after(text)
        if is_key:
            return position._replace(text=(position.text + token)[: self._max_text + 1], string=after)
        return _within(position, after)

    def _in_string(self, position: Position, byte: bytes) -> Position:
        if byte == _QUOTE and not position.escaped:
            if position.expect is StateKind.IN_KEY:
                return self._end_key(self._append(position, byte))
            return self._end_value(position if position.outside < 0 else self._append(position, byte))
        escaped = byte == _BACKSLASH and not position.escaped
        if position.expect is StateKind.IN_OTHER_STRING:  # never inside an ambiguous value
            return position if position.escaped is escaped else position._replace(escaped=escaped)
        longer = self._append(position, byte)
        if position.expect is StateKind.IN_TRACKED_STRING and _CHARACTER.fullmatch(longer.text):
            assert longer.string is not None
            character = json.loads(b'"%b"' % longer.text)
            # The engine decides whether a pair of escapes counts as one character, so such states are not tracked.
            is_tracked = len(longer.text) <= _LONGEST_ESCAPE
            if longer.string.owner.is_mixed and not _ONE_SPELLING.fullmatch(longer.text.decode()):
                is_tracked = False
            after = longer.string.after(character) if is_tracked else None
            return _within(position._replace(text=b"", escaped=False), after)
        if position.expect is StateKind.IN_FREE_STRING and _CHARACTER.fullmatch(longer.text):
            return position._replace(text=b"", escaped=False)
        return longer if position.escaped is escaped else longer._replace(escaped=escaped)

    def _end_key(self, position: Position) -> Position:
        _, _, opened, text, outside, _, _ = position
        owner = opened[-1]
        model = self._nodes[owner.node].object
        if outside >= 0 or model is None:
            return position._replace(expect=StateKind.COLON, value=AMBIGUOUS)
        name = json.loads(text.decode()) if len(text) <= self._max_text else None
        if name is not None and name in model.values:
            key, value = model.values[name]
            owner = Open(owner.node, True, owner.keys | 1 << key, owner.number)  # noqa: FBT003 - a field
        else:
            value = model.extra
            owner = self._with_extra(owner, counts=model.counts_extra)
        opened = (*opened[:-1], owner)
        if value == AMBIGUOUS:  # the continuation depends on the key's text
            return Position(StateKind.COLON, value, opened, text, len(opened))
        return Position(StateKind.COLON, value, opened)

    @staticmethod
    def _with_extra(owner: Open, *, counts: bool) -> Open:
        return owner._replace(number=min(owner.number + counts, _MAX_COUNTED))

    def _structural(self, position: Position, byte: bytes) -> Position:
        """Handle a structural character, or the first one of a key or value."""
        match byte:
            case b":":
                return self._cut(position, StateKind.VALUE, byte)
            case b",":
                owner = position.open[-1]
                if owner.is_object:
                    return self._cut(position, StateKind.KEY, byte)
                model = self._nodes[owner.node].array
                if model is not None:
                    owner = owner._replace(number=min(owner.number + 1, model.counted))
                opened = (*position.open[:-1], owner)
                return self._cut(position._replace(open=opened, value=self._item(owner)), StateKind.VALUE, byte)
            case b"}" | b"]":
                return self._end_value(self._append(position, byte) if position.outside >= 0 else position, closed=True)
            case b'"':
                return self._begin_string(position)
            case b"{" | b"[":
                return self._begin_container(position, byte)
        return self._append(self._cut(position, StateKind.IN_SCALAR), byte)

    def _item(self, owner: Open) -> int:
        model = self._nodes[owner.node].array
        return AMBIGUOUS if model is None else model.item(owner.number)

    def _begin_string(self, position: Position) -> Position:
        if position.expect in _KEYS:
            node = position.open[-1].node
            owner = None if position.outside >= 0 or node in self.free_keys else self._nodes[node].object
            begun = self._append(self._cut(position, StateKind.IN_KEY), _QUOTE)
            return begun if owner is None else begun._replace(string=self._string(owner.keys))
        if position.outside >= 0:
            return self._append(position._replace(expect=StateKind.IN_LISTED_STRING), _QUOTE)
        _, value, opened, *_ = position
        model = self._nodes[value]
        if model.free_strings:
            return Position(StateKind.IN_FREE_STRING, value, opened)
        if model.listed_strings:
            return Position(StateKind.IN_LISTED_STRING, value, opened, _QUOTE)
        return _within(Position(StateKind.IN_OTHER_STRING, value, opened), self._string(model.strings))

    def _string(self, shapes: tuple[Shape, ...]) -> StringState | None:
        self.shapes.add(shapes)
        return self._strings.start(shapes)

    def _begin_container(self, position: Position, byte: bytes) -> Position:
        if len(position.open) == _MAX_DEPTH:
            return Position(StateKind.LOST, AMBIGUOUS)
        is_object = byte == b"{"
        model = self._nodes[position.value]
        inner: ObjectModel | ArrayModel | None = model.object if is_object else model.array
        expect, outside, text = StateKind.FIRST_KEY if is_object else StateKind.FIRST_ITEM, position.outside, b""
        if outside >= 0 or inner is None:
            text = self._append(position, byte).text
        # The outermost ambiguous value keeps its node: two ambiguous members of one object may have equal texts.
        owner = Open(position.value if outside < 0 else AMBIGUOUS, is_object)
        if outside < 0 and inner is None:
            outside = len(position.open)
        value = AMBIGUOUS if is_object else self._item(owner)
        return Position(expect, value, (*position.open, owner), text, outside)

    def _append(self, position: Position, text: bytes) -> Position:
        """Append a text, up to the length beyond which states are not shared anyway. Keys are no longer tracked."""
        expect, value, opened, before, outside, escaped, string = position
        string = string if expect is StateKind.IN_TRACKED_STRING else None
        return Position(expect, value, opened, (before + text)[: self._max_text + 1], outside, escaped, string)

    def _cut(self, position: Position, expect: StateKind, byte: bytes = b"") -> Position:
        """Drop the text before a structural character, if any; inside an ambiguous value, preserve it."""
        _, value, opened, text, outside, *_ = position
        return Position(expect, value, opened, b"" if outside < 0 else (text + byte)[: self._max_text + 1], outside)

    @staticmethod
    def _end_value(position: Position, *, closed: bool = False) -> Position:
        opened = position.open[:-1] if closed else position.open
        if 0 <= position.outside < len(opened):
            return position._replace(expect=StateKind.AFTER_VALUE, value=AMBIGUOUS, open=opened)
        return Position(StateKind.AFTER_VALUE, AMBIGUOUS, opened)
