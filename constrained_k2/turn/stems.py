"""Finds the tokens that extend a partial call header or run past its end, using two sorted lists.

After functions.ge, the token ``t_t`` continues the header functions.get_time:0, and the token ``te`` does not.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

Range = tuple[int, int]


class End(NamedTuple):
    """A suffix of a stem (a header up to the index), and the non-empty range of sorted tokens that begin with it."""

    text: bytes
    first: int
    last: int


def begin_with(items: Sequence[bytes], prefix: bytes, low: int, high: int) -> Range:
    """The range of the sorted ``items[low:high]`` that start with ``prefix``."""
    low = bisect_left(items, prefix, low, high)
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return low, high
    return low, bisect_left(items, stripped[:-1] + bytes((stripped[-1] + 1,)), low, high)


def follow(stems: Sequence[bytes], prefix: bytes, tokens: Sequence[bytes]) -> tuple[list[int], list[End]]:
    """The indices of tokens that stay within a stem, and the stem suffixes past which some tokens continue.

    Args:
        stems: Headers up to the index, such as ``functions.NAME:``, distinct, ascending.
        prefix: The prefix of a header that is written already.
        tokens: Distinct, ascending, not empty.
    """
    found: list[int] = []
    ends: list[End] = []
    span = begin_with(stems, prefix, 0, len(stems))
    _collect(stems, tokens, prefix, span, b"", (0, len(tokens)), found, ends)
    return found, ends


def _collect(  # noqa: PLR0913, PLR0917 - a recursion's state
    stems: Sequence[bytes],
    known: Sequence[bytes],
    prefix: bytes,
    span: Range,
    token: bytes,
    tokens: Range,
    found: list[int],
    ends: list[End],
) -> None:
    """Collect the tokens that start with ``token`` and continue ``prefix`` within some stems.

    ``span``: the stems that start with ``prefix + token``; ``tokens``: the tokens that start with ``token``, not empty.
    """
    (low, high), (first, last) = span, tokens
    if token and known[first] == token:
        found.append(first)
    taken = len(prefix) + len(token)
    while low < high:
        stem = stems[low]
        if len(stem) == taken:
            if token:
                ends.append(End(token, first, last))
            low += 1
            continue
        longer = stem[len(prefix) : taken + 1]
        _, end = begin_with(stems, prefix + longer, low, high)
        begin, stop = begin_with(known, longer, first, last)
        if begin < stop:
            _collect(stems, known, prefix, (low, end), longer, (begin, stop), found, ends)
        low = end
