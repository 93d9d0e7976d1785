"""Computes a mask, or a forced token, by walking the token trie along the bytes a state allows.

If an integer follows {"a": the token `` 12,`` is walked byte by byte: blank, digits, a comma that ends the value.
"""

from collections.abc import Callable, Sequence

import numpy as np

from constrained_k2.engines.llguidance.direct.lexemes import NUMBER_START, NumberState
from constrained_k2.engines.llguidance.direct.residual import (
    Keys,
    Residual,
    Stack,
    after_forced,
    forced_bytes,
    keys_of,
)
from constrained_k2.engines.llguidance.direct.rules import NumberKind
from constrained_k2.engines.llguidance.direct.terminals import Terminals, Unknown
from constrained_k2.engines.llguidance.direct.tokens import QUOTE, Ids, Row, Split, TokenNode, TokenTrie, add_ids
from constrained_k2.engines.llguidance.direct.values import InternedNode, Level, Members, Terminal
from constrained_k2.engines.llguidance.position import StateKind
from constrained_k2.grammar.lark.terminals import MAX_WHITESPACE

_COMMA, _COLON = b",:"
_LOOKBACK = 4  # tokens at the end of a forced text that LLGuidance may leave out
_OPEN_ARRAY, _END_ARRAY, _OPEN_OBJECT, _END_OBJECT = b"[]{}"


def mask_of(residual: Residual, trie: TokenTrie, terminals: Terminals, stop_id: int) -> Row | None:
    """Return the mask, int32 ``[words]``; None if only the engine can compute it."""
    if residual.part is StateKind.AFTER_VALUE and not residual.stack:
        return trie.row([stop_id])
    walk = _Walk(trie, terminals)
    try:
        walk.begin(residual)
    except Unknown:
        return None
    return walk.mask()


def forced_token(
    residual: Residual,
    trie: TokenTrie,
    terminals: Terminals,
    previous: int,
    tokenize: Callable[[bytes], Sequence[int]],
) -> int | None:
    """Return the only token that the engine allows if it forces a text; -1 if forcing does not change the mask.

    Like LLGuidance (1.7.6), this tokenizes the text after the previous token, and drops tokens at its end that might
    become parts of longer ones. The result is None if the engine must decide.
    """
    text = forced_bytes(residual)
    ids = list(tokenize((trie.bytes_of(previous) or b"") + text))
    ids = ids[1:] if ids[:1] == [previous] else list(tokenize(text))
    known = [trie.bytes_of(token_id) for token_id in ids]
    if any(token is None for token in known):
        return None
    sizes = [len(token) for token in known if token is not None]
    seen = sum(sizes[-_LOOKBACK:])
    following = after_forced(residual, len(text))
    for size in range(min(seen, len(text)), 0, -1):
        place: TokenNode | None = trie.root
        for byte in text[-size:]:
            place = None if place is None else place.child(byte)
        if place is not None and place.is_open:
            try:
                is_longer = _Walk(trie, terminals).reaches(place, following)
            except Unknown:
                return None
            if is_longer:
                return ids[0] if sum(sizes[1:]) >= size else -1
    return ids[0]


class _Walk:
    def __init__(self, trie: TokenTrie, terminals: Terminals) -> None:
        self._trie = trie
        self._terminals = terminals
        self._row = trie.empty()
        self._ids: list[Ids] = []

    def mask(self) -> Row:
        """Return the mask of the tokens that were found."""
        if self._ids:
            add_ids(self._row, np.concatenate(self._ids))
        return self._row

    def reaches(self, node: TokenNode, residual: Residual) -> bool:
        """Return True if some token continues legally from a node."""
        self.begin(residual, node)
        return bool(self._ids) or bool(self._row.any())

    def begin(self, residual: Residual, root: TokenNode | None = None) -> None:
        """Follow all tokens, or only the tokens that continue from the node ``root``."""
        root, stack, blanks = root or self._trie.root, residual.stack, residual.blanks
        if residual.terminal is not None:
            self._terminal(root, *residual.terminal, stack)
            return
        match residual.part:
            case StateKind.IN_FREE_STRING:
                self._string(root, stack, *residual.rests)
            case StateKind.AFTER_VALUE:
                self._after(root, stack, blanks)
            case StateKind.IN_LISTED_STRING:
                self._words(root, residual.rests, stack)
            case StateKind.IN_SCALAR:
                self._words(root, residual.rests, stack)
                if residual.number is not None:
                    self._number(root, *residual.number, stack)
            case StateKind.VALUE:
                self._value(root, residual.value, stack, blanks)
            case StateKind.FIRST_ITEM:
                self._first_item(root, residual.value, stack, blanks, may_end=residual.is_first)
            case StateKind.COLON:
                self._colon(root, residual.value, stack, blanks)
            case StateKind.KEY if residual.keys is not None:
                self._first_key(root, residual.keys, stack, blanks, may_end=residual.is_first)
            case StateKind.IN_KEY if residual.keys is not None:
                self._in_key(root, residual.keys, stack)

    def _enter(self, node: TokenNode, byte: int) -> TokenNode | None:
        """Follow one more byte; tokens that end after it are allowed."""
        child = node.child(byte)
        if child is not None:
            self._allow(child)
        return child

    def _allow(self, node: TokenNode) -> None:
        if len(node.ids):
            self._ids.append(node.ids)

    def _blanks(self, node: TokenNode, most: int = MAX_WHITESPACE) -> TokenNode:
        if not most:
            return node
        inside, after = node.blanks(most)
        self._row |= inside
        return after

    def _value(self, node: TokenNode, value: InternedNode | None, stack: Stack, blanks: int = MAX_WHITESPACE) -> None:
        self._begin_value(self._blanks(node, blanks), value, stack)

    def _begin_value(self, node: TokenNode, value: InternedNode | None, stack: Stack) -> None:
        if value is None or value.is_opaque:
            if node.is_open:
                raise Unknown
            return
        if (value.has_strings or value.listed) and (quoted := self._enter(node, QUOTE)) is not None:
            if value.has_strings:
                self._string(quoted, stack)
            else:
                self._words(quoted, [text[1:] for text in value.listed], stack)
        if value.string is not None and (quoted := self._enter(node, QUOTE)) is not None:
            self._terminal(quoted, value.string, value.string.opening, stack)
        if value.range is not None:
            self._terminal(node, value.range, value.range.opening, stack)
        if value.number:
            self._number(node, value.number, NUMBER_START, stack)
        self._words(node, value.words, stack)
        if value.members is not None and (opened := self._enter(node, _OPEN_OBJECT)) is not None:
            self._object(opened, value.members, stack)
        if value.item is not None and (opened := self._enter(node, _OPEN_ARRAY)) is not None:
            item = None if value.longest == 0 else value.item
            inner = (value.level(0), *stack)
            self._first_item(opened, item, inner, may_end=value.shortest == 0)

    def _object(self, node: TokenNode, members: Members, stack: Stack) -> None:
        if not members.is_known:
            if node.is_open:
                raise Unknown
            return
        keys = keys_of(members, 0)
        self._first_key(node, keys, stack, may_end=keys.level.may_end)

    def _first_key(
        self, node: TokenNode, keys: Keys, stack: Stack, blanks: int = MAX_WHITESPACE, *, may_end: bool
    ) -> None:
        node = self._blanks(node, blanks)
        if may_end and (ended := self._enter(node, _END_OBJECT)) is not None:
            self._after(ended, stack)
        if keys.level.may_go_on and (quoted := self._enter(node, QUOTE)) is not None:
            self._in_key(quoted, keys, stack)

    def _first_item(
        self, node: TokenNode, item: InternedNode | None, stack: Stack, blanks: int = MAX_WHITESPACE, *, may_end: bool
    ) -> None:
        node = self._blanks(node, blanks)
        if may_end and (ended := self._enter(node, _END_ARRAY)) is not None:
            self._after(ended, stack[1:])
        if item is not None:
            self._begin_value(node, item, stack)

    def _string(self, node: TokenNode, stack: Stack, begun: bytes = b"") -> None:
        self._after_split(node.characters(any_spelling=True, begun=begun), stack, is_string=True)

    def _number(self, node: TokenNode, kind: NumberKind, state: NumberState, stack: Stack) -> None:
        self._after_split(node.number(kind, state), stack)

    def _terminal(self, node: TokenNode, terminal: Terminal, text: bytes, stack: Stack) -> None:
        if not node.is_open:
            return
        self._after_split(self._terminals.split(terminal, text, node), stack, is_string=terminal.is_string)

    def _after_split(self, split: Split, stack: Stack, *, is_string: bool = False) -> None:
        self._row |= split.inside
        for node in (split.at_once, split.later):
            if is_string:
                self._allow(node)
            self._after(node, stack)

    def _words(self, node: TokenNode, rests: Sequence[bytes], stack: Stack) -> None:
        for rest in rests:
            if (end := self._follow(node, rest)) is not None:
                self._after(end, stack)

    def _follow(self, node: TokenNode, rest: bytes) -> TokenNode | None:
        if node is self._trie.root:
            ids, end = self._trie.word(rest)
            if len(ids):
                self._ids.append(ids)
            return end
        place: TokenNode | None = node
        for byte in rest:
            if place is None:
                return None
            place = self._enter(place, byte)
        return place

    def _after(self, node: TokenNode, stack: Stack, blanks: int = MAX_WHITESPACE) -> None:
        """Follow tokens after a value."""
        if not stack or not node.ranges:
            return
        node = self._blanks(node, blanks)
        level = stack[0]
        ended = self._enter(node, _END_OBJECT if level.is_object else _END_ARRAY) if level.may_end else None
        if ended is not None:
            self._after(ended, stack[1:])
        more = self._enter(node, _COMMA) if level.may_go_on else None
        if more is None:
            return
        if not level.is_object:
            self._value(more, level.value, (level.after_item(), *stack[1:]))
        elif (quoted := self._enter(self._blanks(more), QUOTE)) is not None and level.value is not None:
            self._in_key(quoted, Keys(level, ()), stack[1:])

    def _in_key(self, node: TokenNode, keys: Keys, stack: Stack) -> None:
        if keys.level.value is None:
            for rest, value, level in keys.rests:
                if (end := self._follow(node, rest)) is not None:
                    self._colon(end, value, (level, *stack))
            return
        split = node.characters(any_spelling=keys.level.any_spelling)
        self._row |= split.inside
        other = b"", keys.level.value, keys.level
        written = keys.rests or (other,)  # the key whose characters are complete, before its closing quote
        for ended, (_, value, level) in (*((split.at_once, key) for key in written), (split.later, other)):
            if value is not None:
                self._allow(ended)
                self._colon(ended, value, (level, *stack))

    def _colon(
        self, node: TokenNode, value: InternedNode | None, stack: tuple[Level, ...], blanks: int = MAX_WHITESPACE
    ) -> None:
        if not node.ranges:
            return
        if (colon := self._enter(self._blanks(node, blanks), _COLON)) is not None:
            self._value(colon, value, stack)
