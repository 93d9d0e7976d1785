"""The header of a call, ``functions.NAME:INDEX``: which tokens may continue it, whatever the tokenization.

The index is due exactly, so a header is one of a finite set of byte strings. The tokens that may follow a prefix are
found by walking the sorted headers and the sorted vocabulary down together, byte by byte: the cost is that of the
paths both share, not of the vocabulary.
"""

from bisect import bisect_left
from collections.abc import Sequence

from constrained_k2.bitmask import TokenSet
from constrained_k2.format import ToolCallFormat
from constrained_k2.vocabulary import Vocabulary

_CACHED_PREFIXES = 128


class Headers:
    """The headers that may stand at one position of a turn.

    Args:
        names: The functions that may be called.
        index: The index that is due.
        vocabulary: The vocabulary to write them in.
    """

    def __init__(self, names: Sequence[str], index: int, vocabulary: Vocabulary) -> None:
        self._names = {ToolCallFormat.call_id(name, index).encode(): name for name in names}
        self._sorted = sorted(self._names)
        self._vocabulary = vocabulary
        self._sets: dict[bytes, TokenSet] = {}

    def name_of(self, header: bytes) -> str | None:
        """The function that a whole header calls; None if the bytes are no whole header."""
        return self._names.get(header)

    def admits(self, prefix: bytes) -> bool:
        """Whether some header begins with these bytes."""
        position = bisect_left(self._sorted, prefix)
        return position < len(self._sorted) and self._sorted[position].startswith(prefix)

    def allowed(self, prefix: bytes) -> TokenSet:
        """The tokens that may follow ``prefix``; the argument marker among them where a header is whole."""
        found = self._sets.get(prefix)
        if found is None:
            ids: list[int] = []
            low, high = _range(self._sorted, prefix)
            self._collect(prefix, low, high, b"", ids)
            if prefix in self._names:
                ids.append(self._vocabulary.format.argument_begin)
            if len(self._sets) >= _CACHED_PREFIXES:
                self._sets.clear()
            found = self._sets[prefix] = TokenSet(ids, self._vocabulary.size)
        return found

    def _collect(self, prefix: bytes, low: int, high: int, token: bytes, ids: list[int]) -> None:
        """Gather the tokens that begin with ``token`` and continue ``prefix`` into headers ``[low:high]``."""
        tokens, token_ids = self._vocabulary.sorted_tokens
        first, last = _range(tokens, token)
        if first == last:
            return
        if token and tokens[first] == token:
            ids.append(token_ids[first])
        taken = len(prefix) + len(token)
        while low < high:
            header = self._sorted[low]
            if len(header) == taken:  # the header ends here
                low += 1
                continue
            byte = header[taken : taken + 1]
            _, end = _range(self._sorted, prefix + token + byte)
            self._collect(prefix, low, end, token + byte, ids)
            low = end


def _range(items: Sequence[bytes], prefix: bytes) -> tuple[int, int]:
    """The span of the sorted items that begin with ``prefix``."""
    low = bisect_left(items, prefix)
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return low, len(items)
    return low, bisect_left(items, stripped[:-1] + bytes((stripped[-1] + 1,)), low)
