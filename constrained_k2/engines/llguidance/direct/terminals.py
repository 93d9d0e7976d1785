"""Strings and numbers that are one terminal's matches: LLGuidance reads the terminal alone, once for all grammars.

{"pattern": "^[a-z]+$"} in a hundred tools is one matcher here.
"""

import re
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeVar

import llguidance
import numpy as np

from constrained_k2.engines.llguidance.direct.tokens import Range, Row, Split, TokenNode, TokenTrie
from constrained_k2.engines.llguidance.direct.values import Terminal
from constrained_k2.engines.llguidance.lexer_cost import LEXER_BYTES, LIMITS, lexer_bytes
from constrained_k2.vocabulary.bitmask import allowed_ids

_SHARE = 8  # part of the budget
_MAX_FORCED = 4096
_MAX_CHEAP = 4096
_CHEAP = 500_000  # bytes of a lexer at its first mask, which takes some 2 ms
_MAX_CHECKED = 4096  # tokens below one node
_SPLIT_BYTES = 45_000  # estimate, with its masks
_MEASURED_AFTER = 8  # splits, a millisecond of work each
_NUMBER = re.compile(rb"[-+.0-9eE]*")
_TO_END = re.compile(rb'(?:[^"\\]|\\.)*+"', re.DOTALL)
_AFTER = r"/[ \n\r\t,}\]](.|\n)*/"  # what may follow a value, as far as one token tells


Key = TypeVar("Key")
T = TypeVar("T")


class Unknown(Exception):
    """Only LLGuidance with the whole grammar can tell."""


class Terminals:
    """Splits the tokens that go on in a terminal's text, as LLGuidance reads them.

    Args:
        trie: The vocabulary's tokens.
        tokenizer: LLGuidance's tokenizer of the vocabulary.
        budget: Bytes for all direct masks; terminals take an eighth.
    """

    def __init__(self, trie: TokenTrie, tokenizer: llguidance.LLTokenizer, budget: int) -> None:
        self._most = max(budget // _SHARE // (LEXER_BYTES + 2 * _SPLIT_BYTES), 1)
        self._budget = budget // _SHARE
        self._trie = trie
        self._tokenizer = tokenizer
        self._read: OrderedDict[Terminal, llguidance.LLMatcher] = OrderedDict()
        self._lexer_bytes: dict[Terminal, int] = {}  # of those
        self._cheap: OrderedDict[Terminal, None] = OrderedDict()  # terminals that a step may read again
        self._uses = 0
        self._splits: OrderedDict[tuple[Terminal, bytes, TokenNode], Split] = OrderedDict()
        self._forced: OrderedDict[tuple[Terminal, bytes], bytes] = OrderedDict()
        self._lock = threading.RLock()
        single = {token[0]: token_id for token, token_id in zip(trie.tokens, trie.ids, strict=True) if len(token) == 1}
        self._byte_ids = [single.get(byte, -1) for byte in range(256)]
        self._places = np.zeros(max(trie.ids) + 1, dtype=np.int64)  # by token id, in the order of the trie
        self._places[np.array(trie.ids)] = np.arange(len(trie.ids))
        self._number_starts = self._row_of(rb"[-+.0-9eE]")
        self._with_quote = self._row_of(rb'[^"]*"')

    @property
    def spent(self) -> int:
        """Estimated bytes."""
        return sum(self._lexer_bytes.copy().values()) + _SPLIT_BYTES * len(self._splits)

    def is_readable(self, terminal: Terminal) -> bool:
        """Return True if LLGuidance reads a terminal, and computes a mask at its beginning."""
        with self._lock:
            if terminal in self._read:
                return True
            _keep(self._cheap, terminal, None, _MAX_CHEAP)
            try:
                matcher = self._behind(terminal, terminal.opening)
            except Unknown:
                return False
            matcher.compute_bitmask()
            if matcher.is_error():
                return False
            if self._measure(terminal) > _CHEAP:
                del self._cheap[terminal]
            return True

    def forced(self, terminal: Terminal, text: bytes) -> bytes:
        """Return the bytes that every continuation of a text begins with. Raises Unknown if LLGuidance fails."""
        key = terminal, text
        found = self._forced.get(key)
        if found is None:
            with self._lock:
                matcher = self._behind(terminal, text)
                found = bytes(matcher.compute_ff_bytes())
                _require(matcher)
                _keep(self._forced, key, found, _MAX_FORCED)
        return found

    def split(self, terminal: Terminal, text: bytes, node: TokenNode) -> Split:
        """Split the tokens below a node that go on behind a text, opening quote included.

        Raises:
            Unknown: LLGuidance fails, or too many tokens go on so.
        """
        key = terminal, text, node
        with self._lock:
            found = self._splits.get(key)
            if found is None:
                found = self._split(terminal, text, node)
                _keep(self._splits, key, found, 2 * self._most)
                self._uses += 1
                if self._uses % _MEASURED_AFTER == 0:
                    self._measure(terminal)
        return found

    def clear(self) -> None:
        """Forget all terminals."""
        with self._lock:
            self._read.clear()
            self._lexer_bytes.clear()
            self._splits.clear()
            self._forced.clear()

    def _behind(self, terminal: Terminal, text: bytes) -> llguidance.LLMatcher:
        """Return a matcher behind a text.

        Raises:
            Unknown: LLGuidance fails, or the terminal may take too long to read within a step.
        """
        read = self._read.get(terminal)
        if read is None:
            if terminal.is_string and terminal not in self._cheap:
                raise Unknown
            lark = f"start: VALUE AFTER?\nVALUE: {terminal.expression}\nAFTER: {_AFTER}"
            grammar = llguidance.LLMatcher.grammar_from_lark(lark)
            read = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
            _require(read)
            self._read[terminal] = read
            self._measure(terminal)
        self._read.move_to_end(terminal)
        matcher, ids = read.deep_copy(), self._ids(text)
        if matcher.try_consume_tokens(ids) != len(ids):
            self._forget(terminal)  # its lexer may be exhausted
            raise Unknown
        return matcher

    def _measure(self, terminal: Terminal) -> int:
        """Count a terminal's lexer in bytes, and forget those that were not used for longest over the budget."""
        if (read := self._read.get(terminal)) is not None:
            self._lexer_bytes[terminal] = lexer_bytes(read)
        found = self._lexer_bytes.get(terminal, 0)
        while len(self._read) > 1 and self.spent > self._budget:
            self._forget(next(iter(self._read)))
        return found

    def _forget(self, terminal: Terminal) -> None:
        """Drop a terminal's lexer and splits."""
        del self._read[terminal], self._lexer_bytes[terminal]
        for key in [key for key in self._splits if key[0] is terminal or key[0] == terminal]:
            del self._splits[key]

    def _split(self, terminal: Terminal, text: bytes, node: TokenNode) -> Split:
        inside: list[int] = []
        after: list[Range] = []
        matcher, row = self._behind(terminal, text), self._trie.row([])
        whole = 0, len(self._trie.tokens), 0
        is_masked = whole in node.ranges and not self.forced(terminal, text)  # a mask allows one split of forced bytes
        for each in node.ranges:
            if each == whole and is_masked:
                row = self._begin_all(terminal, matcher, after, is_complete=matcher.is_accepting())
                continue
            for at, rest in self._taken(matcher, each):
                self._add(terminal, at, rest, each[2], inside, after)
        _require(matcher)
        row |= self._trie.row(inside)
        nothing = TokenNode(self._trie, ())
        return Split(row, TokenNode(self._trie, tuple(after)), nothing, nothing)

    def _begin_all(
        self, terminal: Terminal, matcher: llguidance.LLMatcher, after: list[Range], *, is_complete: bool
    ) -> Row:
        """Split all tokens by a mask of LLGuidance: add those that go on after the end, and return the others."""
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: len(self._with_quote)]
        inside: list[int] = []
        if terminal.is_string:
            crossing, row = mask & self._with_quote, mask & ~self._with_quote & self._trie.all
        else:
            crossing, row = mask & self._number_starts, self._trie.row([])
            if is_complete:
                after.append((0, len(self._trie.tokens), 0))
        for at in self._places[allowed_ids(crossing)].tolist():
            self._add(terminal, at, self._trie.tokens[at], 0, inside, after)
        return row | self._trie.row(inside)

    def _add(  # noqa: PLR0913, PLR0917 - a token and where it goes
        self, terminal: Terminal, at: int, rest: bytes, depth: int, inside: list[int], after: list[Range]
    ) -> None:
        """Add a token to those that end within the text, or to those that go on after its end."""
        if terminal.is_string:
            found = _TO_END.match(rest)
            end = len(rest) + 1 if found is None else found.end()
        else:
            found = _NUMBER.match(rest)
            end = len(rest) + 1 if found is None or found.end() == len(rest) else found.end()
        if end > len(rest):
            inside.append(self._trie.ids[at])
        else:
            after.append((at, at + 1, depth + end))

    def _taken(self, matcher: llguidance.LLMatcher, tokens: Range) -> Iterator[tuple[int, bytes]]:
        """Yield the place and the rest of each token that the matcher takes."""
        known = self._trie.tokens
        at, end, depth = tokens
        for _ in range(_MAX_CHECKED):
            if at >= end:
                return
            token = known[at]
            ids = self._ids(token[depth:])
            taken = matcher.validate_tokens(ids) if ids else 0
            if not ids:
                at += 1
            elif taken == len(ids):
                yield at, token[depth:]
                at += 1
            elif token[depth + taken] == 0xFF:
                at += 1
            else:  # no token takes that begins in the same way
                refused = token[: depth + taken] + bytes((token[depth + taken] + 1,))
                at = bisect_left(known, refused, at + 1, end)
        raise Unknown

    def _ids(self, text: bytes) -> list[int]:
        ids = [self._byte_ids[byte] for byte in text]
        if ids and min(ids) < 0:
            raise Unknown
        return ids

    def _row_of(self, pattern: bytes) -> Row:
        begins = re.compile(pattern, re.DOTALL).match
        return self._trie.row(
            [token_id for token, token_id in zip(self._trie.tokens, self._trie.ids, strict=True) if begins(token)]
        )


def _require(matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        raise Unknown


def _keep(known: OrderedDict[Key, T], key: Key, value: T, most: int) -> None:
    """Add an entry, and drop the oldest."""
    known[key] = value
    while len(known) > most:
        known.popitem(last=False)
