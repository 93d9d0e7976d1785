"""Finds the tokens that may follow inside a string or number by matching its Lark terminal alone.

{"pattern": "^[a-z]+$"} in a hundred tools is one matcher here, shared by all grammars.
"""

import re
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeVar

import llguidance
import numpy as np

from constrained_k2.engines.llguidance.direct.tokens import (
    NUMBER_BYTES,
    QUOTE,
    Bounds,
    Range,
    Row,
    Split,
    TokenNode,
    TokenTrie,
)
from constrained_k2.engines.llguidance.direct.values import Terminal
from constrained_k2.engines.llguidance.lexer_cost import LEXER_BYTES, LIMITS, lexer_bytes
from constrained_k2.vocabulary.bitmask import allowed_ids

_SHARE = 8  # terminals may take an eighth of the budget
_MAX_FORCED = 4096
_MAX_CHEAP = 4096
_CHEAP = 500_000  # bytes of a lexer at its first mask, which takes some 2 ms
_MAX_CHECKED = 4096  # tokens below one node that LLGuidance checks, at most
_SPLIT_BYTES = 45_000  # estimate, with its masks
_MEASURED_AFTER = 8  # splits, a millisecond of work each
_NO_QUOTE: Bounds = ((0, QUOTE), (QUOTE + 1, 256))
_TO_NUMBER_END = re.compile(rb"[-+.0-9eE]++(?=.)", re.DOTALL)
_TO_END = re.compile(rb'(?:[^"\\]|\\.)*+"', re.DOTALL)
_FOLLOWING = b" \n\r\t,}]"  # may follow a value
# The text that may follow a string, as far as one token reaches. After numbers it would be most of a mask's cost.
_AFTER = r" /[ \n\r\t,}\]](.|\n)*/?"

Taken = tuple[int, re.Match[bytes] | None]
"""A token's index in the trie, and its match up to the lexeme's end; None if the token ends inside the lexeme."""
Key = TypeVar("Key")
T = TypeVar("T")


class Unknown(Exception):
    """Only LLGuidance with the whole grammar can decide."""


class Terminals:
    """Splits the tokens that may follow inside a string or number into tokens that end it, and all others.

    LLGuidance decides which tokens a terminal accepts.

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
        self._lexer_bytes: dict[Terminal, int] = {}  # estimated memory of each lexer in ``_read``
        self._cheap: OrderedDict[Terminal, None] = OrderedDict()  # terminals that a step may compile again
        self._uses = 0
        self._splits: OrderedDict[tuple[Terminal, bytes, TokenNode], Split] = OrderedDict()
        self._forced: OrderedDict[tuple[Terminal, bytes], bytes] = OrderedDict()
        self._lock = threading.RLock()
        single = {token[0]: token_id for token, token_id in zip(trie.tokens, trie.ids, strict=True) if len(token) == 1}
        self._byte_ids = [single.get(byte, -1) for byte in range(256)]
        self._places = np.zeros(max(trie.ids) + 1, dtype=np.int64)  # by token id: index in the trie
        self._places[np.array(trie.ids)] = np.arange(len(trie.ids))
        self._without_quote, self._with_quote = self._row_of(rb'[^"]+\Z'), self._row_of(rb'[^"]+"')
        numbers = list[int]()
        self._beyond_numbers = list[tuple[int, int]]()  # tokens that run past a number: index; id of the first byte
        for at in (at for first, end, _ in trie.root.beginning(NUMBER_BYTES) for at in range(first, end)):
            token = trie.tokens[at]
            if (found := _TO_NUMBER_END.match(token)) is None:
                numbers.append(trie.ids[at])
            elif token[found.end()] in _FOLLOWING:
                self._beyond_numbers.append((at, self._byte_ids[token[0]]))
        self._numbers = trie.row(numbers)

    @property
    def spent(self) -> int:
        """Estimated bytes of all lexers and splits."""
        return sum(self._lexer_bytes.copy().values()) + _SPLIT_BYTES * len(self._splits)

    def is_readable(self, terminal: Terminal) -> bool:
        """Return True if LLGuidance compiles a terminal and computes its first mask."""
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
        """Return the bytes that begin every continuation of a text. Raises Unknown if LLGuidance fails."""
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
        """Split the tokens below a node that continue the prefix ``text``, which includes the opening quote.

        Raises:
            Unknown: LLGuidance fails, or there are too many tokens to check.
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
        """Return a matcher that has consumed a text.

        Raises:
            Unknown: LLGuidance fails, or the terminal may take too long to compile within a step.
        """
        read = self._read.get(terminal)
        if read is None:
            if terminal.is_string and terminal not in self._cheap:
                raise Unknown
            lark = f"start: VALUE{_AFTER if terminal.is_string else ''}\nVALUE: {terminal.expression}"
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
        """Estimate the bytes of a terminal's lexer, and evict the least recently used terminals over the budget."""
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
        if (len(text) - len(text.rstrip(b"\\"))) % 2:  # within an escape, where a quote ends no string
            raise Unknown
        trie, matcher, forced = self._trie, self._behind(terminal, text), self.forced(terminal, text)
        if terminal.is_string:
            bounds, ended = _NO_QUOTE, node.child(QUOTE) if matcher.validate_tokens(self._ids(b'"')) else None
        else:
            bounds, ended = NUMBER_BYTES, node if matcher.is_accepting() else None
        # If bytes are forced, LLGuidance's mask has only one tokenization of them. Here all legal tokens are needed.
        is_forced = len(forced) > 1
        if is_forced:
            bounds = tuple((forced[0], forced[0] + 1) for low, high in bounds if low <= forced[0] < high)
        ranges, row, taken = node.beginning(bounds), trie.empty(), list[Taken]()
        if trie.root.ranges[0] in node.ranges and not is_forced:
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: len(row)]
            ranges = [each for each in ranges if each[2]]  # the mask covers the tokens at the root
            if terminal.is_string:
                row = mask & self._without_quote
                places = self._places[allowed_ids(mask & self._with_quote)].tolist()
                taken = [(at, _TO_END.match(trie.tokens[at])) for at in places]
            else:
                row = mask & self._numbers
                begun = [at for at, first in self._beyond_numbers if first < 0 or row[first >> 5] >> (first & 31) & 1]
                ranges += [(at, at + 1, 0) for at in begun]
        for each in ranges:
            taken.extend(self._taken(terminal, matcher, each))
        _require(matcher)
        row |= trie.row([trie.ids[at] for at, end in taken if end is None])
        later = TokenNode(trie, ((at, at + 1, end.end()) for at, end in taken if end is not None))
        return Split(row, ended or TokenNode(trie, ()), later)

    def _taken(self, terminal: Terminal, matcher: llguidance.LLMatcher, tokens: Range) -> Iterator[Taken]:
        """Yield the tokens whose remaining bytes the matcher accepts."""
        known, to_end = self._trie.tokens, (_TO_END if terminal.is_string else _TO_NUMBER_END).match
        at, end, depth = tokens
        for _ in range(_MAX_CHECKED):
            if at >= end:
                return
            token = known[at]
            found = to_end(token, depth)
            ids = self._ids(token[depth:] if found is None else found[0])
            taken = matcher.validate_tokens(ids)
            if taken == len(ids):
                if found is None or terminal.is_string or _may_end(matcher, ids):
                    yield at, found
                at += 1
            elif token[depth + taken] == 0xFF:
                at += 1
            else:  # the matcher rejects all tokens with this prefix
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


def _may_end(matcher: llguidance.LLMatcher, ids: list[int]) -> bool:
    """Return True if a number may end after some more tokens."""
    copy = matcher.deep_copy()
    return copy.try_consume_tokens(ids) == len(ids) and copy.is_accepting()


def _require(matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        raise Unknown


def _keep(known: OrderedDict[Key, T], key: Key, value: T, most: int) -> None:
    """Add an entry, and drop the oldest."""
    known[key] = value
    while len(known) > most:
        known.popitem(last=False)
