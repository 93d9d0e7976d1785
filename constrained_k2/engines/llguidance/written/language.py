"""The numbers, words and listed strings of an array, byte by byte: how many ways lead on from the beginning of one.

Of the integers from 1 to 12, ``1`` may end or go on with 0, 1 or 2: four ways.
"""

import llguidance
import numpy as np

from constrained_k2.errors import SchemaTooCostly

_MAX_CACHED = 4096  # beginnings
_MAX_VISITED = 400  # beginnings, where texts are counted: 90 us each
_LIKELY_ENDS = b'-./:@"'  # what texts are likely to end after, least first
_TOKENIZER = llguidance.LLTokenizer("byte")


class ItemLanguage:
    """The items of one array. Shared by all calls; thread-safe.

    Raises:
        SchemaTooCostly: Also by all methods, if LLGuidance hits one of its limits.
    """

    def __init__(self, lark: str) -> None:
        self._lark = llguidance.LLMatcher.grammar_from_lark(lark)
        self._prototype = self._new()
        self._ways: dict[bytes, tuple[bytes, bool]] = {}

    def ways(self, beginning: bytes) -> tuple[bytes, bool]:
        """Return the bytes that may follow the beginning of an item, and True if the item may end there."""
        found = self._ways.get(beginning)
        if found is None:
            found = self._computed(beginning)
            if len(self._ways) >= _MAX_CACHED:
                self._ways.clear()
            self._ways[beginning] = found
        return found

    def holds(self, text: bytes) -> bool:
        """Return True if a text is an item."""
        matcher = self._prototype.deep_copy()
        taken = matcher.try_consume_tokens(list(text))
        return matcher.is_error() or (taken == len(text) and matcher.is_accepting())

    def count(self, limit: int) -> int | None:
        """Return the number of items, ``limit`` for more; None if that takes too long."""
        waiting, visited, count = [b""], 0, 0
        while waiting:
            beginning, visited = waiting.pop(), visited + 1
            following, is_item = self.ways(beginning)
            count += is_item
            if count >= limit:
                return limit
            if visited >= _MAX_VISITED:
                return None
            waiting += sorted((beginning + bytes((byte,)) for byte in following), key=_likely_to_end)
        return count

    def _computed(self, beginning: bytes) -> tuple[bytes, bool]:
        problem = ""
        for renews in (False, True):  # copies share a lexer: one that is exhausted is replaced
            if renews:
                self._prototype = self._new()
            matcher = self._prototype.deep_copy()
            if matcher.try_consume_tokens(list(beginning)) == len(beginning):
                mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
                if not matcher.is_error():
                    allowed = np.flatnonzero(np.unpackbits(mask[:32], bitorder="little")).astype(np.uint8)
                    return allowed.tobytes(), matcher.is_accepting()
            problem = matcher.get_error() or f"no item begins with {beginning[:80]!r}"
        raise SchemaTooCostly(f"LLGuidance failed in an item: {problem.strip()[:200]}", "", "Simplify its pattern")

    def _new(self) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(_TOKENIZER, self._lark, log_level=0)
        if matcher.is_error():
            raise SchemaTooCostly(
                f"LLGuidance has no grammar of an item: {matcher.get_error()[:200]}", "", "Simplify it"
            )
        return matcher


def _likely_to_end(beginning: bytes) -> int:
    return _LIKELY_ENDS.find(beginning[-1:])
