"""Normalizes names and tokens to lower case without separators, so all spellings of a name are equal.

``searchFiles`` and ``search_files`` both become ``searchfiles``.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_LOWER = bytes(range(256)).lower()
_SEPARATORS = b"_-. \t"


def spelled(raw: bytes) -> bytes:
    """A text in lower case (ASCII), without separators; the same for all spellings of a name."""
    return raw.translate(_LOWER, _SEPARATORS)


class SpelledTokens(NamedTuple):
    """The ordinary tokens of a vocabulary by their normalized text.

    Attributes:
        texts: The normalized texts: distinct, ascending, none empty.
        ids: The tokens of each text.
        separators: The tokens that consist of separators alone.
    """

    texts: Sequence[bytes]
    ids: Sequence[Sequence[int]]
    separators: Sequence[int]

    @classmethod
    def of(cls, tokens: Iterable[tuple[int, bytes]]) -> "SpelledTokens":
        """Collect pairs of an id and its bytes."""
        ids: dict[bytes, list[int]] = {}
        for token_id, raw in tokens:
            ids.setdefault(spelled(raw), []).append(token_id)
        separators = ids.pop(b"", [])
        texts = sorted(ids)
        return cls(texts, [ids[text] for text in texts], separators)
