"""Detects repeated object keys and array items by length and hash, and tokens that would repeat one.

``{"ab":1,"a`` has written the key ``ab`` and is within the key ``a``: a token ``b":`` would repeat ``ab``. The hash is
a polynomial with a secret base, modulo a prime of 127 bits: a client cannot find two texts with one hash, and the hash
of a prefix can be computed from the hash of the whole text.
"""

import secrets
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from constrained_k2.engines.llguidance.uniqueness.spelled import unescaped, whole_end
from constrained_k2.engines.llguidance.uniqueness.tokens import Closing, Ids

_PRIME = (1 << 127) - 1
_BASE = (1 << 64) + secrets.randbelow(_PRIME - (1 << 64))
_INVERSE = pow(_BASE, -1, _PRIME)
_NONE: Ids = np.array([], dtype=np.int64)

Identity = tuple[int, int]
"""A text's size in bytes and its hash."""


class Text(NamedTuple):
    """A text that is being written, without its quotes."""

    size: int = 0  # bytes of the text with its escapes decoded
    number: int = 0  # the hash of the decoded text
    tail: bytes = b""  # the last bytes of the decoded text
    escape: bytes = b""  # an unfinished escape at the end, not part of the decoded text

    @property
    def identity(self) -> Identity:
        """Size and hash: different texts have different identities."""
        return self.size, self.number

    @property
    def whole(self) -> bytes | None:
        """The text if it is short, else None."""
        return self.tail if len(self.tail) == self.size else None

    def longer(self, spelled: bytes, reach: int, *, has_escapes: bool = True) -> "Text":
        """Return the text after more bytes; ``reach`` is the number of last bytes to keep."""
        spelled = self.escape + spelled
        end = whole_end(spelled) if has_escapes else len(spelled)
        return self._with(unescaped(spelled[:end]) if has_escapes else spelled, reach, spelled[end:])

    def ended(self, reach: int) -> "Text":
        """Return the text at its end, where half of a surrogate pair stays alone."""
        return self._with(unescaped(self.escape), reach, b"") if self.escape else self

    def _with(self, text: bytes, reach: int, escape: bytes) -> "Text":
        size = len(text)
        number = (self.number * _power(size) + _number(text)) % _PRIME
        return Text(self.size + size, number, (self.tail + text)[-reach:], escape)


EMPTY = Text()


def identity_of(text: bytes) -> Identity:
    """Return the identity of a whole text without escapes."""
    return len(text), _number(text)


class TokensAfter(dict[Hashable, list[Ids]]):
    """Prefix -> the tokens that may not follow it. The latest addition must be removed first."""

    def add(self, found: Iterable[tuple[Hashable, Ids]]) -> None:
        """Forbid more tokens after each of these prefixes."""
        for beginning, ids in found:
            self.setdefault(beginning, []).append(ids)

    def remove(self, found: Iterable[tuple[Hashable, Ids]]) -> None:
        """Undo the latest :meth:`add`, with the same argument."""
        for beginning, _ in found:
            alternatives = self[beginning]
            alternatives.pop()
            if not alternatives:
                del self[beginning]


class SeenTexts:
    """Seen texts of one kind: an object's keys, an array's strings, or an array's numbers and literals."""

    __slots__ = ("_closers", "_closing", "_texts")

    def __init__(self, closing: Closing) -> None:
        self._closing = closing
        self._closers = TokensAfter()  # proper prefix of a seen text -> tokens that complete and end that text
        self._texts: set[Identity] = set()

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __contains__(self, text: Text) -> bool:
        return text.identity in self._texts

    def has(self, identity: Identity) -> bool:
        """Return True if a text with this identity was added."""
        return identity in self._texts

    def add(self, text: Text) -> None:
        """Add a new text."""
        self._texts.add(text.identity)
        self._closers.add(self._alternatives_to_end(text))

    def remove(self, text: Text) -> None:
        """Remove the text that was added last."""
        self._texts.discard(text.identity)
        self._closers.remove(self._alternatives_to_end(text))

    def repeating(self, beginning: Text) -> list[Ids]:
        """Return the tokens that complete the prefix ``beginning`` to a seen text and end the text."""
        found = self._closers.get(beginning.identity, [])
        return [self._closing.ids.get(b"", _NONE), *found] if beginning in self else found

    def _alternatives_to_end(self, text: Text) -> Iterator[tuple[Identity, Ids]]:
        for rest, ids in self._closing.rests_of(text.tail):
            size = len(rest)
            yield (text.size - size, (text.number - _number(rest)) * _power(-size) % _PRIME), ids


@lru_cache(1 << 16)
def _number(text: bytes) -> int:
    number = 0
    for byte in text:
        number = (number * _BASE + byte + 1) % _PRIME
    return number


@lru_cache(1 << 12)
def _power(size: int) -> int:
    return pow(_BASE if size >= 0 else _INVERSE, abs(size), _PRIME)
