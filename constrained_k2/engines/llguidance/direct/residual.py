"""Reduces a parser state to the part that determines its mask, so that different grammars share masks.

A residual has the parts of a parser state that one token can reach: the suffix of the current string, number or key,
the next value, and for each open object or array whether it may end, and whether it may continue. It does not have the
keys that may follow the current value. So there is no residual (None) if some token could end the value and continue
so far into the next key that its legality depends on the key.

Free strings of two tools have one residual, and so one mask, if their objects may end and continue alike.
"""

from collections.abc import Sequence
from json import JSONEncoder
from typing import NamedTuple

from constrained_k2.engines.llguidance.direct.lexemes import NumberState, end_of_characters, number_state
from constrained_k2.engines.llguidance.direct.rules import NumberKind
from constrained_k2.engines.llguidance.direct.terminals import Terminals, Unknown
from constrained_k2.engines.llguidance.direct.tokens import TokenTrie
from constrained_k2.engines.llguidance.direct.values import InternedNode, Level, Members, Terminal
from constrained_k2.engines.llguidance.position import Open, Position, StateKind
from constrained_k2.grammar.lark.terminals import MAX_WHITESPACE

_quoted = JSONEncoder(ensure_ascii=False).encode


Stack = tuple[Level, ...]
"""The open objects and arrays, innermost first: as many as one token can end, and one more."""


class Keys(NamedTuple):
    """The keys that may come next or continue: the suffix of each, its value, and the object after it."""

    level: Level  # the object, after one more member under an undeclared key
    rests: tuple[
        tuple[bytes, InternedNode | None, Level], ...
    ]  # by declared key; the value is None if the key was written


class Residual(NamedTuple):
    """A residual. ``part`` decides which of the other fields are used."""

    part: StateKind
    blanks: int = 0  # max whitespace bytes that may follow
    value: InternedNode | None = None
    keys: Keys | None = None
    rests: tuple[bytes, ...] = ()  # suffixes of enum values and literals; in other strings, an unfinished character
    number: tuple[NumberKind, NumberState] | None = None
    terminal: tuple[Terminal, bytes] | None = None  # and the prefix that was written; ``rests`` has the forced bytes
    is_forced: bool = False  # True if the engine forces the next bytes, and allows only one tokenization of them
    is_first: bool = False  # True if the object or array may end here, before its first member or item
    stack: Stack = ()


def forced_bytes(residual: Residual) -> bytes:
    """Return the bytes that every continuation begins with."""
    keys = residual.keys
    rests = residual.rests if keys is None else [rest for rest, _, _ in keys.rests]
    shortest = min(rests, key=len, default=b"")
    same = (end for end in range(len(shortest), 0, -1) if all(rest.startswith(shortest[:end]) for rest in rests))
    return shortest[: next(same, 0)]


def after_forced(residual: Residual, count: int) -> Residual:
    """Return the residual after ``count`` of its forced bytes."""
    keys = residual.keys
    if keys is not None:
        keys = keys._replace(rests=tuple((rest[count:], value, level) for rest, value, level in keys.rests))
    if residual.terminal is not None:
        terminal, text = residual.terminal
        return residual._replace(terminal=(terminal, text + forced_bytes(residual)[:count]), rests=())
    return residual._replace(keys=keys, rests=tuple(rest[count:] for rest in residual.rests))


def keys_of(members: Members, keys: int) -> Keys:
    """Return the keys that may follow in an object; ``keys`` has the bits of the declared keys written so far."""
    level = members.level(keys)
    if members.extra is not None:
        return Keys(level, ())
    return Keys(level, tuple(_left(members, keys, b"")))


def _left(members: Members, keys: int, text: bytes) -> list[tuple[bytes, InternedNode | None, Level]]:
    """Return the declared keys that are not written yet and start with a text, quote included."""
    return [
        (written[len(text) or 1 :], value, members.level(keys | 1 << bit))
        for bit, (written, value) in enumerate(members.keys)
        if not keys >> bit & 1 and written.startswith(text)
    ]


class Residuals:
    """Computes the residuals of one grammar's parser states."""

    def __init__(self, values: Sequence[InternedNode], trie: TokenTrie, terminals: Terminals) -> None:
        self._values = values
        self._trie = trie
        self._terminals = terminals
        # The latest results: the next parser state often needs the same.
        self._latest_stack: tuple[tuple[Open, ...], Stack | None] = ((), ())
        self._latest_keys: tuple[Members | None, int, Keys | None] = (None, 0, None)

    @property
    def free_keys(self) -> frozenset[int]:
        """The nodes of objects whose keys need no string states: closed ones, and open ones with direct masks."""
        return frozenset(
            number
            for number, value in enumerate(self._values)
            if (members := value.members) is not None
            and (members.extra is None or (members.is_known and not members.extra.is_opaque))
        )

    def of(self, position: Position) -> Residual | None:
        """Return a parser state's residual; None if its mask depends on more than a residual contains."""
        expect, text = position.expect, position.text
        if position.outside >= 0 or expect is StateKind.LOST or len(text) > MAX_WHITESPACE:  # longer texts may be cut
            return None
        latest, stack = self._latest_stack
        stack = stack if latest is position.open else self._stack(position.open)
        if stack is None:
            return None
        blanks = MAX_WHITESPACE - len(text)
        match expect:
            case StateKind.IN_FREE_STRING:
                return None if text.startswith(b"\\u") else Residual(expect, rests=(text,) if text else (), stack=stack)
            case StateKind.AFTER_VALUE:
                return Residual(expect, blanks, stack=stack) if blanks > 0 else None
            case StateKind.IN_KEY:
                return self._in_key(position.open[-1], text, stack[1:])
            case StateKind.KEY | StateKind.FIRST_KEY:
                return self._key(position, blanks, stack[1:])
        if position.value < 0 or (value := self._values[position.value]).is_opaque:
            return None
        match expect:
            case StateKind.IN_LISTED_STRING:
                return self._listed(value, text, stack)
            case StateKind.IN_TRACKED_STRING if value.string is not None and not text and position.string is not None:
                written = _written(position.string.text)
                return None if written is None else self._terminal(expect, value.string, written, stack)
            case StateKind.IN_SCALAR:
                return self._scalar(value, text, stack)
            case StateKind.VALUE | StateKind.COLON if blanks > 0:
                return Residual(expect, blanks if position.open else 0, value, stack=stack)
            case StateKind.FIRST_ITEM if blanks > 0:
                array = self._values[position.open[-1].node]
                item = None if array.longest == 0 else array.item
                return Residual(expect, blanks, item, is_first=array.shortest == 0, stack=stack)
        return None

    def _stack(self, opened: tuple[Open, ...]) -> Stack | None:
        stack = self._stack_of(opened)
        self._latest_stack = opened, stack
        return stack

    def _stack_of(self, opened: tuple[Open, ...]) -> Stack | None:
        levels = []
        for owner in reversed(opened[-1 - self._trie.depth :]):
            value = self._values[owner.node] if owner.node >= 0 else None
            if value is None:
                return None
            if not owner.is_object:
                if value.item is None:
                    return None
                levels.append(value.level(owner.number))
            elif value.members is None or not value.members.is_known:
                return None
            else:
                levels.append(value.members.level(owner.keys))
        return tuple(levels)

    def _key(self, position: Position, blanks: int, parents: Stack) -> Residual | None:
        owner = position.open[-1]
        members = self._values[owner.node].members
        if members is None or blanks <= 0:
            return None
        is_first = position.expect is StateKind.FIRST_KEY
        keys = self._keys_of(members, owner.keys)
        return Residual(StateKind.KEY, blanks, keys=keys, is_first=is_first and keys.level.may_end, stack=parents)

    def _in_key(self, owner: Open, text: bytes, parents: Stack) -> Residual | None:
        members = self._values[owner.node].members
        if members is None:
            return None
        if members.extra is None:
            keys = self._keys_of(members, owner.keys)
            if len(text) > 1:
                keys = Keys(keys.level, tuple(_left(members, owner.keys, text)))
            is_forced = _is_forced([rest for rest, _, _ in keys.rests])
            return Residual(StateKind.IN_KEY, keys=keys, is_forced=is_forced, stack=parents)
        level = members.level(owner.keys)
        if end_of_characters(text, 1, any_spelling=members.any_spelling) < len(text):
            return None
        found: list[tuple[bytes, InternedNode | None, Level]] = []
        for bit, (written, value) in enumerate(members.keys):
            if written.startswith(text):
                rest = written[len(text) : -1]
                if not rest:
                    has_come = owner.keys >> bit & 1
                    found.append((rest, None if has_come else value, members.level(owner.keys | 1 << bit)))
                elif rest in self._trie.endings:
                    return None
        return Residual(StateKind.IN_KEY, keys=Keys(level, tuple(found)), stack=parents)

    def _keys_of(self, members: Members, keys: int) -> Keys:
        latest, latest_keys, found = self._latest_keys
        if found is None or latest is not members or latest_keys != keys:
            found = keys_of(members, keys)
            self._latest_keys = members, keys, found
        return found

    def _terminal(self, expect: StateKind, terminal: Terminal, text: bytes, stack: Stack) -> Residual | None:
        try:
            forced = self._terminals.forced(terminal, text)
        except Unknown:
            return None
        is_forced = len(forced) > 1
        rests = (forced,) if is_forced else ()
        return Residual(expect, terminal=(terminal, text), rests=rests, is_forced=is_forced, stack=stack)

    @staticmethod
    def _listed(value: InternedNode, text: bytes, stack: Stack) -> Residual | None:
        rests = tuple(written[len(text) :] for written in value.listed if written.startswith(text))
        return Residual(StateKind.IN_LISTED_STRING, rests=rests, is_forced=_is_forced(rests), stack=stack)

    def _scalar(self, value: InternedNode, text: bytes, stack: Stack) -> Residual | None:
        if value.range is not None and text[:1] in b"-0123456789":
            return self._terminal(StateKind.IN_SCALAR, value.range, text, stack)
        rests = tuple(word[len(text) :] for word in value.words if word.startswith(text))
        state = number_state(value.number, text, self._trie.digits) if value.number else None
        number = None if state is None else (value.number, state)
        is_forced = state is None and _is_forced(rests)
        return Residual(StateKind.IN_SCALAR, rests=rests, number=number, is_forced=is_forced, stack=stack)


def _written(text: str | None) -> bytes | None:
    """Return a string as JSON without its closing quote; None if it is not known or has lone surrogates."""
    try:
        return None if text is None else _quoted(text)[:-1].encode()
    except UnicodeEncodeError:
        return None


def _is_forced(rests: Sequence[bytes]) -> bool:
    """Return True if all suffixes share their first two bytes. A single forced byte does not narrow the mask."""
    return len({rest[:2] for rest in rests}) == 1 and len(rests[0]) > 1
