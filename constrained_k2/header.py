"""The header of a call, ``functions.NAME:INDEX``: which tokens may continue it, whatever the tokenization.

The index is due exactly, so a header is one of a finite set of byte strings: a *stem* ``functions.NAME:`` and the
index's digits. The tokens that may follow a prefix are found by walking the sorted stems and the sorted vocabulary down
together, byte by byte: the cost is that of the paths both share, not of the vocabulary. What the stems allow is the
same for every index, and is shared by all calls of all requests that declare the same names.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from constrained_k2.bitmask import TokenSet
from constrained_k2.format import ToolCallFormat
from constrained_k2.vocabulary import Vocabulary

_CACHED_PREFIXES = 256


class _Continuations(NamedTuple):
    """How the stems go on behind a prefix.

    Attributes:
        tokens: Those that stay within a stem.
        ends: What is left of each stem that some token runs out of, into the digits.
    """

    tokens: TokenSet
    ends: tuple[bytes, ...]


class HeaderStems:
    """The stems ``functions.NAME:`` of a request's functions.

    Args:
        names: The functions that may be called.
        vocabulary: The vocabulary to write them in.
    """

    def __init__(self, names: Sequence[str], vocabulary: Vocabulary) -> None:
        self._names = {ToolCallFormat.call_id(name, 0)[:-1].encode(): name for name in names}
        self._sorted = sorted(self._names)
        self._vocabulary = vocabulary
        self._continuations: dict[bytes, _Continuations] = {}
        self._sets: dict[tuple[bytes, bytes], TokenSet] = {}

    def due(self, index: int) -> "Headers":
        """The headers with this index."""
        return Headers(self, str(index).encode())

    def name_of(self, header: bytes, digits: bytes) -> str | None:
        """The function that a whole header calls; None if the bytes are no whole header."""
        return self._names.get(header[: -len(digits)]) if header.endswith(digits) else None

    def candidates(self, prefix: bytes, digits: bytes) -> tuple[int, str]:
        """How many headers begin with these bytes, and the function of one of them (empty if there is none)."""
        low, high = _range(self._sorted, prefix, 0, len(self._sorted))
        count, name = high - low, self._names[self._sorted[low]] if low < high else ""
        for stem in self._left_behind(prefix, digits):
            if len(stem) < len(prefix):  # else it is counted above
                count, name = count + 1, self._names[stem]
        return count, name

    def forced(self, prefix: bytes, digits: bytes) -> tuple[bytes, bool]:
        """What all headers that begin with these bytes go on with, and whether they are whole with it."""
        low, high = _range(self._sorted, prefix, 0, len(self._sorted))
        begun = {stem for stem in self._left_behind(prefix, digits) if len(stem) < len(prefix)}
        headers = [stem + digits for stem in (*self._sorted[low:high], *begun)]
        first, last, end = min(headers), max(headers), len(prefix)
        while end < len(first) and end < len(last) and first[end] == last[end]:
            end += 1
        return first[len(prefix) : end], len(headers) == 1

    def allowed(self, prefix: bytes, digits: bytes) -> TokenSet:
        """The tokens that may follow ``prefix``; the argument marker among them where a header is whole."""
        going_on = self._continuations.get(prefix)
        if going_on is None:
            if len(self._continuations) >= _CACHED_PREFIXES:
                self._continuations.clear()
            going_on = self._continuations[prefix] = self._follow(prefix)
        left_behind = self._left_behind(prefix, digits)
        if not (left_behind or going_on.ends):
            return going_on.tokens
        found = self._sets.get((prefix, digits))
        if found is None:
            if len(self._sets) >= _CACHED_PREFIXES:
                self._sets.clear()
            found = self._sets[prefix, digits] = TokenSet(
                [*going_on.tokens.ids.tolist(), *self._with_digits(prefix, digits, left_behind, going_on.ends)],
                self._vocabulary.size,
            )
        return found

    def _left_behind(self, prefix: bytes, digits: bytes) -> list[bytes]:
        """The stems that ``prefix`` has whole, with nothing but a beginning of the digits behind them.

        Several where a name holds a colon: index 12 of ``a`` and ``a:1`` share ``functions.a:1``.
        """
        stems: list[bytes] = []
        end = prefix.rfind(b":") + 1
        while end:
            if prefix[:end] in self._names and digits.startswith(prefix[end:]):
                stems.append(prefix[:end])
            end = prefix.rfind(b":", 0, end - 1) + 1
        return stems

    def _with_digits(self, prefix: bytes, digits: bytes, stems: list[bytes], ends: tuple[bytes, ...]) -> list[int]:
        """The tokens that write digits, and the argument marker where all are written."""
        tokens = [end + digits[:length] for end in ends for length in range(1, len(digits) + 1)]
        ids: list[int] = []
        for stem in stems:
            rest = digits[len(prefix) - len(stem) :]
            tokens += [rest[:length] for length in range(1, len(rest) + 1)]
            if not rest:
                ids.append(self._vocabulary.format.argument_begin)
        known, known_ids = self._vocabulary.sorted_tokens
        for token in tokens:
            place = bisect_left(known, token)
            if place < len(known) and known[place] == token:
                ids.append(known_ids[place])
        return ids

    def _follow(self, prefix: bytes) -> _Continuations:
        ids: list[int] = []
        ends: list[bytes] = []
        low, high = _range(self._sorted, prefix, 0, len(self._sorted))
        self._collect(prefix, (low, high), b"", (0, len(self._vocabulary.sorted_tokens[0])), ids, ends)
        return _Continuations(TokenSet(ids, self._vocabulary.size), tuple(ends))

    def _collect(  # noqa: PLR0913, PLR0917 - a recursion's state
        self,
        prefix: bytes,
        stems: tuple[int, int],
        token: bytes,
        tokens: tuple[int, int],
        ids: list[int],
        ends: list[bytes],
    ) -> None:
        """Gather the tokens that begin with ``token`` and continue ``prefix`` into some stems.

        Args:
            prefix: What is written.
            stems: The span of the sorted stems that begin with ``prefix + token``.
            token: What is gathered.
            tokens: The span of the sorted tokens that begin with ``token``; not empty.
            ids: Takes the ids.
            ends: Takes ``token`` where a stem ends with it and longer tokens go on with a digit.
        """
        known, known_ids = self._vocabulary.sorted_tokens
        (low, high), (first, last) = stems, tokens
        if token and known[first] == token:
            ids.append(known_ids[first])
        taken = len(prefix) + len(token)
        while low < high:
            stem = self._sorted[low]
            if len(stem) == taken:
                if token and bisect_left(known, token + b"0", first, last) < bisect_left(
                    known, token + b":", first, last
                ):  # a colon follows the nine
                    ends.append(token)
                low += 1
                continue
            longer = stem[len(prefix) : taken + 1]
            _, end = _range(self._sorted, prefix + longer, low, high)
            begin, stop = _range(known, longer, first, last)
            if begin < stop:
                self._collect(prefix, (low, end), longer, (begin, stop), ids, ends)
            low = end


class Headers:
    """The headers that may stand at one position of a turn. Made by :meth:`HeaderStems.due`."""

    __slots__ = ("_digits", "_stems")

    def __init__(self, stems: HeaderStems, digits: bytes) -> None:
        self._stems = stems
        self._digits = digits

    def name_of(self, header: bytes) -> str | None:
        """The function that a whole header calls; None if the bytes are no whole header."""
        return self._stems.name_of(header, self._digits)

    def candidates(self, prefix: bytes) -> tuple[int, str]:
        """How many headers begin with these bytes, and the function of one of them (empty if there is none)."""
        return self._stems.candidates(prefix, self._digits)

    def forced(self, prefix: bytes) -> tuple[bytes, bool]:
        """What all headers that begin with these bytes go on with, and whether they are whole with it."""
        return self._stems.forced(prefix, self._digits)

    def allowed(self, prefix: bytes) -> TokenSet:
        """The tokens that may follow ``prefix``; the argument marker among them where a header is whole."""
        return self._stems.allowed(prefix, self._digits)


def _range(items: Sequence[bytes], prefix: bytes, low: int, high: int) -> tuple[int, int]:
    """The span of the sorted ``items[low:high]`` that begin with ``prefix``."""
    low = bisect_left(items, prefix, low, high)
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return low, high
    return low, bisect_left(items, stripped[:-1] + bytes((stripped[-1] + 1,)), low, high)
