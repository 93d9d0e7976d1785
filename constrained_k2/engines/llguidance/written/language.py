"""The items of an array that are compared as texts, byte by byte: how many ways lead on from the beginning of one.

Of the integers from 1 to 12, ``1`` may end or go on with 0, 1 or 2: four ways.
"""

import llguidance
import numpy as np

from constrained_k2.engines.llguidance.lexer_cost import LIMITS, lexer_bytes
from constrained_k2.errors import SchemaTooCostly

_MAX_CACHED = 4096  # beginnings
_BYTES_PER_CACHED = 400
_MAX_VISITED = 400  # beginnings, where texts are counted: 90 us each
_LIKELY_ENDS = b'-./:@"'  # what texts are likely to end after, least first
_UNKNOWN = (bytes(range(256)), True)
_TOKENIZER = llguidance.LLTokenizer("byte")


class ItemLanguage:
    """The items of one array. Shared by all calls; thread-safe.

    Raises:
        SchemaTooCostly: LLGuidance cannot read it.
    """

    def __init__(self, lark: str) -> None:
        self._lark = llguidance.LLMatcher.grammar_from_lark(lark)
        self._prototype = self._new()
        self._ways: dict[bytes, tuple[bytes, bool]] = {}

    @property
    def cost_bytes(self) -> int:
        """Estimated memory, which grows with use up to a limit."""
        return lexer_bytes(self._prototype) + _BYTES_PER_CACHED * len(self._ways)

    def ways(self, beginning: bytes) -> tuple[bytes, bool]:
        """Return the bytes that may follow the beginning of an item, and True if the item may end there.

        All bytes and True if LLGuidance cannot tell, or if no item begins so, as the next best grammar may write
        numbers in other ways: more ways than are ever closed.
        """
        found = self._ways.get(beginning)
        if found is None:
            found = self._computed(beginning)
            if len(self._ways) >= _MAX_CACHED:
                self._ways.clear()
            self._ways[beginning] = found
        return found

    def count(self, limit: int) -> int | None:
        """Return the number of items, ``limit`` for more; None if that takes too long."""
        waiting, visited, count = [b""], 0, 0
        while waiting:
            beginning, visited = waiting.pop(), visited + 1
            ways = following, is_item = self.ways(beginning)
            count += is_item
            if ways is _UNKNOWN or (visited >= _MAX_VISITED and count < limit):
                return None
            if count >= limit:
                return limit
            waiting += sorted((beginning + bytes((byte,)) for byte in following), key=_likely_to_end)
        return count

    def _computed(self, beginning: bytes) -> tuple[bytes, bool]:
        for renews in (False, True):  # copies share a lexer: one that is exhausted is replaced
            if renews:
                self._prototype = self._new()
            matcher = self._prototype.deep_copy()
            if matcher.try_consume_tokens(list(beginning)) < len(beginning):
                if not matcher.is_error():
                    break
            else:
                mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
                if not matcher.is_error():
                    allowed = np.flatnonzero(np.unpackbits(mask[:32], bitorder="little")).astype(np.uint8)
                    return allowed.tobytes(), matcher.is_accepting()
        return _UNKNOWN

    def _new(self) -> llguidance.LLMatcher:
        matcher = llguidance.LLMatcher(_TOKENIZER, self._lark, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise SchemaTooCostly(
                f"LLGuidance has no grammar of an item: {matcher.get_error()[:200]}", "", "Simplify it"
            )
        return matcher


def _likely_to_end(beginning: bytes) -> int:
    return _LIKELY_ENDS.find(beginning[-1:])
