"""Guessing the rest of a call's header: the tokens that all names still possible have in common."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

from constrained_k2.format import ToolCallFormat
from constrained_k2.vocabulary import Vocabulary


class HeaderTokens:
    """The headers of one position of a turn, as the model's tokenizer spells them.

    Args:
        names: The functions that may be called.
        index: The index that is due.
        vocabulary: The vocabulary to spell them in.
    """

    def __init__(self, names: Sequence[str], index: int, vocabulary: Vocabulary) -> None:
        self._end = vocabulary.format.argument_begin
        self._sorted = sorted((*vocabulary.encode(ToolCallFormat.call_id(name, index)), self._end) for name in names)

    def common(self, written: Sequence[int]) -> tuple[int, ...]:
        """What every header that begins with these tokens goes on with; nothing if none does."""
        prefix = tuple(written)
        low = bisect_left(self._sorted, prefix)
        high = bisect_left(self._sorted, (*prefix, self._end + 1), low)  # the marker is behind every ordinary token
        if low == high:
            return ()
        first, last = self._sorted[low], self._sorted[high - 1]
        taken = len(prefix)
        while taken < min(len(first), len(last)) and first[taken] == last[taken]:
            taken += 1
        return first[len(prefix) : taken]


@lru_cache(maxsize=64)
def header_tokens(names: tuple[str, ...], index: int, vocabulary: Vocabulary) -> HeaderTokens:
    """The headers of calls to these functions with this index; remembered: requests of a dialog share them."""
    return HeaderTokens(names, index, vocabulary)
