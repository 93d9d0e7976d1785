"""Hashable parser states of a call's arguments: prefixes with equal states can share cached masks.

A state (:class:`Position`) has two parts. For each open object and array, it has the data that the grammar's state
model (:mod:`~constrained_k2.grammar.state_model`) names, such as the keys so far. And it has the text since the last
structural character: a brace, bracket, comma, colon or the end of a string. Inside an ambiguous value, whose
continuation depends on more than the model records, it has the whole value so far.
"""

import re
from enum import IntEnum, IntFlag
from typing import NamedTuple

from constrained_k2.grammar.lark.terminals import MAX_WHITESPACE
from constrained_k2.grammar.patterns.string_states import StringState

MAX_TEXT = MAX_WHITESPACE
"""Max bytes of text in a shared parser state."""

UNESCAPED = re.compile(rb'[^"\\\x00-\x1f]+')
"""Characters of a string that need no escape."""


class StateKind(IntEnum):
    """The part of the JSON that the next byte belongs to."""

    VALUE, FIRST_KEY, KEY, IN_KEY, COLON, FIRST_ITEM, IN_SCALAR, AFTER_VALUE, LOST = range(9)
    IN_FREE_STRING, IN_LISTED_STRING, IN_OTHER_STRING, IN_TRACKED_STRING = range(9, 13)
    BETWEEN, IN_TAG, IN_ATTRIBUTES, IN_END_TAG, IN_FREE_TEXT, IN_LISTED_TEXT, IN_OTHER_TEXT = range(13, 20)  # XTML


class TokenClass(IntFlag):
    """Classes of tokens: a parser state lists the classes whose tokens leave it unchanged."""

    UNESCAPED = 1  # whole characters that neither end a JSON string nor need an escape in it
    WHOLE = 2  # other whole characters
    PARTIAL = 4  # parts of characters
    SPECIAL = 8


MARKER = b"\xff"
"""Begins a special token's text: no ordinary token that a grammar allows has this byte."""
_TEXT = TokenClass.UNESCAPED | TokenClass.WHOLE
_UNSHARED = frozenset({StateKind.IN_OTHER_STRING, StateKind.IN_OTHER_TEXT, StateKind.LOST})


class Open(NamedTuple):
    """An open object or array."""

    node: int  # AMBIGUOUS inside an ambiguous value; its outermost object or array has its node
    is_object: bool
    keys: int = 0  # a bit for each declared key written so far, by its number in the model; there may be thousands
    number: int = 0  # the undeclared keys so far, if they are counted; in an array, the index of the current item


class Position(NamedTuple):
    """A parser state."""

    expect: StateKind  # what the next byte belongs to
    value: int  # the node of the expected or current value; AMBIGUOUS elsewhere
    open: tuple[Open, ...] = ()  # outermost first
    text: bytes = b""  # since the last structural character; in a free string, the bytes of an unfinished character
    outside: int = -1  # inside an ambiguous value, the number of objects and arrays around it
    escaped: bool = False  # True if the last character of a string is a backslash that escapes the next one
    string: StringState | None = None  # in a tracked string or key; the text of a tracked string is then the bytes of
    # an unfinished character

    @property
    def is_shared(self) -> bool:
        """True if calls in this state may share a DFA state; of tracked strings, only representatives do."""
        if self.expect is StateKind.IN_TRACKED_STRING:
            return self.string is not None and self.string.representative is self.string
        return len(self.text) <= MAX_TEXT and self.expect not in _UNSHARED

    @property
    def is_end(self) -> bool:
        """True after the outermost value, if that is an object or array."""
        return self.expect is StateKind.AFTER_VALUE and not self.open

    @property
    def representative(self) -> "Position | None":
        """Another parser state with the same mask, under which the mask is cached; None if there is none."""
        if self.string is None or self.string.representative is None:
            return None
        if self.expect is StateKind.IN_KEY:  # the text makes a difference while it may become a declared key
            return (
                self._replace(text=b"", string=self.string.representative)
                if self.text and not self.string.is_listed
                else None
            )
        return None if self.string.representative is self.string else self._replace(string=self.string.representative)

    @property
    def self_loop_classes(self) -> int:
        """The bits of the token classes (:class:`TokenClass`) that leave this state unchanged."""
        if self.expect < StateKind.IN_FREE_STRING:
            return 0
        match self.expect:
            case StateKind.IN_FREE_STRING:
                return 0 if self.text else TokenClass.UNESCAPED
            case StateKind.IN_OTHER_STRING:
                return 0 if self.escaped else TokenClass.UNESCAPED
            case StateKind.IN_FREE_TEXT:
                return 0 if self.text else _TEXT
            case StateKind.IN_OTHER_TEXT:
                return _TEXT | TokenClass.PARTIAL
        return 0


def class_of(token: bytes) -> TokenClass:
    """Return a token's class."""
    if token.startswith(MARKER):
        return TokenClass.SPECIAL
    if token.decode(errors="ignore").encode() != token:
        return TokenClass.PARTIAL
    return TokenClass.UNESCAPED if UNESCAPED.fullmatch(token) else TokenClass.WHOLE
