"""Finds the tokens that may continue a call header, such as ``functions.NAME:0``, in any tokenization.

A header is a *stem* ``functions.NAME:`` and an *end*: the digits of the index, which is known, and the format's text
after them. The tokens that continue a stem do not depend on the index. They are cached, and shared by all requests
that declare the same names.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from constrained_k2.turn.intent import Spellings, TokenIds
from constrained_k2.turn.stems import End, begin_with, follow
from constrained_k2.vocabulary.bitmask import TokenSet
from constrained_k2.vocabulary.vocabulary import Vocabulary

# Cache limits per name: a call writes about 13 prefixes of a name, each with the digits of a few indexes.
# Measured on 257 names of public tools, each called at two indexes: 10 KB per name, and up to 42 KB for ``meant``.
_PREFIXES_A_NAME = 32
_SETS_A_NAME = 64
_NAME_BYTES = 56 << 10

# Cache limits of name endings, 1 to 2 KB each, and the longest ending that is cached, in bytes.
_MAX_ENDINGS = 4096
_MAX_ENDING_BYTES = 128


class Continuations(NamedTuple):
    """The tokens that may follow a prefix of some stems."""

    tokens: TokenSet  # the tokens that stay within a stem
    ends: tuple[bytes, ...]  # token prefixes that end a stem, if a longer token continues them with a digit


NameEndings = dict[bytes, Continuations]
"""Suffix of the only remaining stem -> its continuations, which any list of tools can use. At most about 8 MB."""


class CallIdTrie:
    """The stems of a request's functions, such as ``functions.NAME:``, with caches of the tokens that continue them.

    Attributes:
        names: Stem -> function.
        ordered: The stems, ascending.
        after_name: The text that ends every stem.
        cost_bytes: Estimated size once its caches are full.
        max_sets: The most entries of ``sets`` and of ``steps``.
        sets: Cache: ``(prefix, digits)`` -> the tokens that may follow.
        steps: Cache: ``(prefix, token, digits)`` -> the result of :meth:`CallIdMatcher.step` for a legal token.
    """

    def __init__(self, names: Sequence[str], vocabulary: Vocabulary, endings: NameEndings | None = None) -> None:
        self._endings = {} if endings is None else endings
        self.names = {vocabulary.format.header_stem(name).encode(): name for name in names}
        self.after_name = vocabulary.format.header_index.encode()
        self._header_end = vocabulary.format.header_end
        self.ordered = sorted(self.names)
        self.vocabulary = vocabulary
        self.cost_bytes = _NAME_BYTES * (1 + len(self.names))
        self.max_sets = _SETS_A_NAME * (1 + len(self.names))
        self._max_prefixes = _PREFIXES_A_NAME * (1 + len(self.names))
        self.sets: dict[tuple[bytes, bytes], TokenSet] = {}
        self.steps: dict[tuple[bytes, int, bytes], tuple[bytes, str | None]] = {}
        self._continuations: dict[bytes, Continuations] = {}
        self._meant: dict[bytes, tuple[TokenIds | None]] = {}
        self._spellings: Spellings | None = None  # made when first needed

    def with_index(self, index: int) -> "CallIdMatcher":
        """The call ids with this index."""
        return CallIdMatcher(self, f"{index}{self._header_end}".encode())

    def span(self, prefix: bytes) -> tuple[int, int]:
        """The range of sorted stems that start with these bytes."""
        return begin_with(self.ordered, prefix, 0, len(self.ordered))

    def continuations(self, prefix: bytes) -> Continuations:
        """The tokens that may follow a prefix of some stems."""
        found = self._continuations.get(prefix)
        if found is None:
            if len(self._continuations) >= self._max_prefixes:
                self._continuations.clear()
            found = self._continuations[prefix] = self._follow(prefix)
        return found

    def meant(self, prefix: bytes) -> TokenIds | None:
        """The tokens consistent with a declared name in any spelling, int32 ``[n]``; None after the name's end."""
        found = self._meant.get(prefix)
        if found is None:
            if len(self._meant) >= self._max_prefixes:
                self._meant.clear()
            found = self._meant[prefix] = (self._find_meant(prefix),)
        return found[0]

    def _find_meant(self, prefix: bytes) -> TokenIds | None:
        low, high = self.span(prefix)
        ends = (len(stem) - len(self.after_name) for stem in self.ordered[low:high])
        if not any(len(prefix) <= end for end in ends):
            return None
        legal = np.fromiter(self.continuations(prefix).tokens.listed, np.int32)
        return np.union1d(self._spelled().meant(prefix), legal)

    def _spelled(self) -> Spellings:
        if self._spellings is None:
            before = len(self.vocabulary.format.header_begin.encode())
            self._spellings = Spellings(self.ordered, self.after_name, before, self.vocabulary)
        return self._spellings

    def _follow(self, prefix: bytes) -> Continuations:
        low, high = self.span(prefix)
        rest = self.ordered[low][len(prefix) :] if high - low == 1 else None
        if rest is not None and (known := self._endings.get(rest)):
            return known
        tokens, ids = self.vocabulary.sorted_tokens
        positions, ends = follow(self.ordered, prefix, tokens)
        running_on = tuple(end.text for end in ends if _has_digit_after(end, tokens))
        found = Continuations(TokenSet((ids[position] for position in positions), self.vocabulary.size), running_on)
        if rest is not None and len(rest) <= _MAX_ENDING_BYTES:
            if len(self._endings) >= _MAX_ENDINGS:
                self._endings.clear()
            self._endings[rest] = found
        return found


@dataclass(frozen=True, slots=True)
class CallIdMatcher:
    """The call ids that one call of a turn may have: the stems of a :class:`CallIdTrie` with one index."""

    _trie: CallIdTrie
    _digits: bytes  # the digits of the index, and the format's text after them

    def name_of(self, call_id: bytes) -> str | None:
        """The function of a whole call id; None if the bytes are not one."""
        digits = self._digits
        return self._trie.names.get(call_id[: -len(digits)]) if call_id.endswith(digits) else None

    def candidates(self, prefix: bytes) -> tuple[int, str]:
        """The number of call ids that start with these bytes, and the function of one such id (empty if none)."""
        low, high = self._trie.span(prefix)
        begun = self._begun(prefix)
        stems = begun or self._trie.ordered[low : min(low + 1, high)]
        return high - low + len(begun), self._trie.names[stems[-1]] if stems else ""

    def step(self, prefix: bytes, token_id: int) -> tuple[bytes, str | None] | None:
        """Append an ordinary token; None if no call id starts with the result.

        Returns the longer prefix, and the name of the function that is probably called: the only declared name that is
        still possible, or a name that is complete although longer names begin with it. The name is None if there is
        none.
        """
        steps = self._trie.steps
        found = steps.get((prefix, token_id, self._digits))
        if found is None:
            token = self._trie.vocabulary.ordinary_bytes(token_id)
            count, name = self.candidates(prefix + token) if token else (0, "")
            if not count:
                return None
            if len(steps) >= self._trie.max_sets:
                steps.clear()
            written = prefix + token
            likely = name if count == 1 else self._trie.names.get(written + self._trie.after_name)
            found = steps[prefix, token_id, self._digits] = (written, likely)
        return found

    def forced(self, prefix: bytes) -> tuple[bytes, bool]:
        """The common continuation of all call ids that start with these bytes, and True if there is only one id."""
        low, high = self._trie.span(prefix)
        call_ids = [stem + self._digits for stem in (*self._trie.ordered[low:high], *self._begun(prefix))]
        first, last, end = min(call_ids), max(call_ids), len(prefix)
        while end < len(first) and end < len(last) and first[end] == last[end]:
            end += 1
        return first[len(prefix) : end], len(call_ids) == 1

    def meant(self, prefix: bytes) -> TokenIds | None:
        """As :meth:`CallIdTrie.meant`, with all tokens that the mask allows."""
        found = self._trie.meant(prefix)
        if found is None or not self._whole_stems(prefix):
            return found
        return np.union1d(found, np.fromiter(self.allowed(prefix).listed, np.int32))  # a name may be another's prefix

    def allowed(self, prefix: bytes) -> TokenSet:
        """The tokens that may follow ``prefix``, including the argument marker after a whole call id."""
        sets = self._trie.sets
        found = sets.get((prefix, self._digits))
        if found is None:
            if len(sets) >= self._trie.max_sets:
                sets.clear()
            found = sets[prefix, self._digits] = self._allowed(prefix)
        return found

    def _allowed(self, prefix: bytes) -> TokenSet:
        tokens, ends = self._trie.continuations(prefix)
        stems = self._whole_stems(prefix)
        if not (stems or ends):
            return tokens
        return TokenSet([*tokens.listed, *self._with_digits(prefix, stems, ends)], self._trie.vocabulary.size)

    def _begun(self, prefix: bytes) -> list[bytes]:
        """The stems that ``prefix`` contains whole and continues with a digit: they do not start with ``prefix``."""
        return [stem for stem in self._whole_stems(prefix) if len(stem) < len(prefix)]

    def _whole_stems(self, prefix: bytes) -> list[bytes]:
        """The stems that ``prefix`` contains whole, followed by nothing, or by the first digits of the index.

        Several if a name contains a colon: at index 12, ``a`` and ``a:1`` share ``functions.a:1``.
        """
        stems: list[bytes] = []
        after_name = self._trie.after_name
        at = prefix.rfind(after_name)
        while at >= 0:
            end = at + len(after_name)
            if prefix[:end] in self._trie.names and self._digits.startswith(prefix[end:]):
                stems.append(prefix[:end])
            at = prefix.rfind(after_name, 0, end - 1)
        return stems

    def _with_digits(self, prefix: bytes, stems: list[bytes], ends: tuple[bytes, ...]) -> list[int]:
        """The tokens that continue the digits and the header's end, and the argument marker after a whole header."""
        digits = self._digits
        tokens = [end + digits[:length] for end in ends for length in range(1, len(digits) + 1)]
        ids: list[int] = []
        for stem in stems:
            rest = digits[len(prefix) - len(stem) :]
            tokens += [rest[:length] for length in range(1, len(rest) + 1)]
            if not rest:
                ids.append(self._trie.vocabulary.format.argument_begin)
        found = map(self._trie.vocabulary.find, tokens)
        return ids + [token_id for token_id in found if token_id is not None]


def _has_digit_after(end: End, known: Sequence[bytes]) -> bool:
    """True if some token contains the end of a stem and a digit after it."""
    first, behind = (bisect_left(known, end.text + limit, end.first, end.last) for limit in (b"0", b":"))
    return first < behind
