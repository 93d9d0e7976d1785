"""The header of a call, ``functions.NAME:INDEX``: which tokens may continue it, whatever the tokenization.

The index is due exactly, so a header is one of a finite set of byte strings: a *stem* ``functions.NAME:`` and the
index's digits. The tokens that may follow a prefix are found by walking the sorted stems and the sorted vocabulary down
together, byte by byte: the cost is that of the paths both share, not of the vocabulary. What the stems allow is the
same for every index, and is shared by all calls of all requests that declare the same names.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from constrained_k2.bitmask import TokenSet
from constrained_k2.format import ToolCallFormat
from constrained_k2.vocabulary import Vocabulary

# What is remembered for each name, at most: some 13 prefixes of a name are met, each with the digits of a few indexes.
# Measured on 257 names of public tools, each called at two indexes: 10 KB a name.
_PREFIXES_A_NAME = 32
_SETS_A_NAME = 64
_NAME_BYTES = 24 << 10


# Ends of names that are remembered across lists of tools, 1 to 2 KB each, and how long they may be.
_MOST_ENDS = 4096
_END_BYTES = 128


class Continuations(NamedTuple):
    """How the stems go on behind a prefix.

    Attributes:
        tokens: Those that stay within a stem.
        ends: What is left of each stem that some token runs out of, into the digits.
    """

    tokens: TokenSet
    ends: tuple[bytes, ...]


class NameEnds:
    """How names go on where one is left, which what stands before it has no part in: shared by all lists of tools.

    Holds some 8 MB at most.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, Continuations] = {}

    def get(self, rest: bytes, build: Callable[[], Continuations]) -> Continuations:
        """What may follow where ``rest`` is all that is left of the one stem; if it is not known, ``build()``."""
        found = self._found.get(rest)
        if found is None:
            found = build()
            if len(self._found) >= _MOST_ENDS:
                self._found.clear()
            if len(rest) <= _END_BYTES:
                self._found[rest] = found
        return found

    def clear(self) -> None:
        """Forget them."""
        self._found.clear()


class HeaderStems:
    """The stems ``functions.NAME:`` of a request's functions, and what of their continuations no index changes.

    Args:
        names: The functions that may be called.
        vocabulary: The vocabulary to write them in.
        ends: What lists of tools over this vocabulary share; of its own where none is given.

    Attributes:
        names: Stem -> function.
        ordered: The stems, ascending.
        vocabulary: As given.
        cost_bytes: What it comes to hold, estimated.
        most_sets: How many ``sets`` and ``steps`` are remembered.
        sets: ``(prefix, digits)`` -> the tokens that may follow; a cache.
        steps: ``(prefix, token, digits)`` -> what :meth:`Headers.step` says of legal tokens; a cache.
    """

    def __init__(self, names: Sequence[str], vocabulary: Vocabulary, ends: NameEnds | None = None) -> None:
        self._ends = ends or NameEnds()
        self.names = {ToolCallFormat.call_id(name, 0)[:-1].encode(): name for name in names}
        self.ordered = sorted(self.names)
        self.vocabulary = vocabulary
        self.cost_bytes = _NAME_BYTES * (1 + len(self.names))
        self.most_sets = _SETS_A_NAME * (1 + len(self.names))
        self._most_prefixes = _PREFIXES_A_NAME * (1 + len(self.names))
        self.sets: dict[tuple[bytes, bytes], TokenSet] = {}
        self.steps: dict[tuple[bytes, int, bytes], tuple[bytes, str | None]] = {}
        self._continuations: dict[bytes, Continuations] = {}

    def due(self, index: int) -> "Headers":
        """The headers with this index."""
        return Headers(self, str(index).encode())

    def beginning_with(self, prefix: bytes) -> tuple[int, int]:
        """The span of the stems that begin with these bytes."""
        return _range(self.ordered, prefix, 0, len(self.ordered))

    def going_on(self, prefix: bytes) -> Continuations:
        """How the stems go on behind a prefix."""
        found = self._continuations.get(prefix)
        if found is None:
            if len(self._continuations) >= self._most_prefixes:
                self._continuations.clear()
            found = self._continuations[prefix] = self._follow(prefix)
        return found

    def _follow(self, prefix: bytes) -> Continuations:
        stems = self.beginning_with(prefix)

        def build() -> Continuations:
            ids: list[int] = []
            ends: list[bytes] = []
            self._collect(prefix, stems, b"", (0, len(self.vocabulary.sorted_tokens[0])), ids, ends)
            return Continuations(TokenSet(ids, self.vocabulary.size), tuple(ends))

        low, high = stems
        return self._ends.get(self.ordered[low][len(prefix) :], build) if high - low == 1 else build()

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
        known, known_ids = self.vocabulary.sorted_tokens
        (low, high), (first, last) = stems, tokens
        if token and known[first] == token:
            ids.append(known_ids[first])
        taken = len(prefix) + len(token)
        while low < high:
            stem = self.ordered[low]
            if len(stem) == taken:
                if token and bisect_left(known, token + b"0", first, last) < bisect_left(
                    known, token + b":", first, last
                ):  # a colon follows the nine
                    ends.append(token)
                low += 1
                continue
            longer = stem[len(prefix) : taken + 1]
            _, end = _range(self.ordered, prefix + longer, low, high)
            begin, stop = _range(known, longer, first, last)
            if begin < stop:
                self._collect(prefix, (low, end), longer, (begin, stop), ids, ends)
            low = end


class Headers:
    """The headers that may stand at one position of a turn: its stems with the index that is due.

    Made by :meth:`HeaderStems.due`.
    """

    __slots__ = ("_digits", "_stems")

    def __init__(self, stems: HeaderStems, digits: bytes) -> None:
        self._stems = stems
        self._digits = digits

    def name_of(self, header: bytes) -> str | None:
        """The function that a whole header calls; None if the bytes are no whole header."""
        digits = self._digits
        return self._stems.names.get(header[: -len(digits)]) if header.endswith(digits) else None

    def candidates(self, prefix: bytes) -> tuple[int, str]:
        """How many headers begin with these bytes, and the function of one of them (empty if there is none)."""
        low, high = self._stems.beginning_with(prefix)
        begun = self._begun(prefix)
        stems = begun or self._stems.ordered[low : min(low + 1, high)]
        return high - low + len(begun), self._stems.names[stems[-1]] if stems else ""

    def step(self, prefix: bytes, token_id: int) -> tuple[bytes, str | None] | None:
        """What is written behind an ordinary token; None if no header begins with that.

        Returns:
            The bytes, and the function that a header which begins with them likely calls, if there is one: the only
            one that is left, or one whose name is whole, though longer ones may go on from there.
        """
        steps = self._stems.steps
        found = steps.get((prefix, token_id, self._digits))
        if found is None:
            token = self._stems.vocabulary.ordinary_bytes(token_id)
            count, name = self.candidates(prefix + token) if token else (0, "")
            if not count:
                return None
            if len(steps) >= self._stems.most_sets:
                steps.clear()
            written = prefix + token
            likely = name if count == 1 else self._stems.names.get(written + b":")
            found = steps[prefix, token_id, self._digits] = (written, likely)
        return found

    def forced(self, prefix: bytes) -> tuple[bytes, bool]:
        """What all headers that begin with these bytes go on with, and whether they are whole with it."""
        low, high = self._stems.beginning_with(prefix)
        headers = [stem + self._digits for stem in (*self._stems.ordered[low:high], *self._begun(prefix))]
        first, last, end = min(headers), max(headers), len(prefix)
        while end < len(first) and end < len(last) and first[end] == last[end]:
            end += 1
        return first[len(prefix) : end], len(headers) == 1

    def allowed(self, prefix: bytes) -> TokenSet:
        """The tokens that may follow ``prefix``; the argument marker among them where a header is whole."""
        sets = self._stems.sets
        found = sets.get((prefix, self._digits))
        if found is None:
            if len(sets) >= self._stems.most_sets:
                sets.clear()
            found = sets[prefix, self._digits] = self._allowed(prefix)
        return found

    def _allowed(self, prefix: bytes) -> TokenSet:
        going_on = self._stems.going_on(prefix)
        left_behind = self._left_behind(prefix)
        if not (left_behind or going_on.ends):
            return going_on.tokens
        ids = [*going_on.tokens.listed, *self._with_digits(prefix, left_behind, going_on.ends)]
        return TokenSet(ids, self._stems.vocabulary.size)

    def _begun(self, prefix: bytes) -> list[bytes]:
        """The stems behind which ``prefix`` has begun to write the digits; they no longer begin with it."""
        return [stem for stem in self._left_behind(prefix) if len(stem) < len(prefix)]

    def _left_behind(self, prefix: bytes) -> list[bytes]:
        """The stems that ``prefix`` has whole, with nothing but a beginning of the digits behind them.

        Several where a name holds a colon: index 12 of ``a`` and ``a:1`` share ``functions.a:1``.
        """
        stems: list[bytes] = []
        end = prefix.rfind(b":") + 1
        while end:
            if prefix[:end] in self._stems.names and self._digits.startswith(prefix[end:]):
                stems.append(prefix[:end])
            end = prefix.rfind(b":", 0, end - 1) + 1
        return stems

    def _with_digits(self, prefix: bytes, stems: list[bytes], ends: tuple[bytes, ...]) -> list[int]:
        """The tokens that write digits, and the argument marker where all are written."""
        digits = self._digits
        tokens = [end + digits[:length] for end in ends for length in range(1, len(digits) + 1)]
        ids: list[int] = []
        for stem in stems:
            rest = digits[len(prefix) - len(stem) :]
            tokens += [rest[:length] for length in range(1, len(rest) + 1)]
            if not rest:
                ids.append(self._stems.vocabulary.format.argument_begin)
        known, known_ids = self._stems.vocabulary.sorted_tokens
        for token in tokens:
            place = bisect_left(known, token)
            if place < len(known) and known[place] == token:
                ids.append(known_ids[place])
        return ids


def _range(items: Sequence[bytes], prefix: bytes, low: int, high: int) -> tuple[int, int]:
    """The span of the sorted ``items[low:high]`` that begin with ``prefix``."""
    low = bisect_left(items, prefix, low, high)
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return low, high
    return low, bisect_left(items, stripped[:-1] + bytes((stripped[-1] + 1,)), low, high)
