"""Finds tokens that may spell a declared function name; if they are improbable, the call is dropped.

Upper and lower case, and the separators ``_``, ``-``, ``.`` and blanks, make no difference. So ``searchFiles`` means
``search_files``, and ``files_list`` does not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from constrained_k2.turn.stems import begin_with, follow
from constrained_k2.vocabulary.spelling import spelled
from constrained_k2.vocabulary.vocabulary import Vocabulary

TokenIds = npt.NDArray[np.int32]


class Intent(NamedTuple):
    """The tokens and the threshold that decide, for one row of the logits, whether a call is made.

    Attributes:
        meant: The tokens consistent with a declared name, int32 ``[n]``, distinct. They include all allowed tokens.
        closing: The token that closes the section. If ``meant`` is too improbable, only this token stays allowed. None
            if the call cannot be declined.
        threshold: The call is made if the tokens of ``meant`` together have at least this probability, before
            temperature.
    """

    meant: TokenIds
    closing: int | None
    threshold: float


class Spellings:
    """The prefixes of a request's call headers, in any spelling of the functions' names.

    Args:
        stems: The call headers up to the index, such as ``functions.NAME:``.
        after_name: The text that ends every stem.
        before_name: The length in bytes of the text before the name, such as ``functions.``. Models may leave it out.
        vocabulary: The vocabulary.
    """

    def __init__(self, stems: Sequence[bytes], after_name: bytes, before_name: int, vocabulary: Vocabulary) -> None:
        self._stems = sorted(set(map(spelled, stems)))
        self._bare = sorted({spelled(stem[before_name:]) for stem in stems})
        self._ending = len(spelled(after_name))
        self._tokens = vocabulary.spelled_tokens
        self._without_index = vocabulary.format.argument_begin

    def meant(self, prefix: bytes) -> TokenIds:
        """The tokens that may follow the prefix of a stem, int32 ``[n]``, ascending."""
        written = spelled(prefix)
        low, high = begin_with(self._stems, written, 0, len(self._stems))
        left = {len(stem) - len(written) - self._ending for stem in self._stems[low:high]}  # missing bytes of names
        found = self._following(self._stems, written)
        if not prefix:
            found |= self._following(self._bare, b"")
        if max(left, default=0) > 0:
            found.update(self._tokens.separators)
        if 0 in left:
            found.add(self._without_index)
        return np.array(sorted(found), dtype=np.int32)

    def _following(self, stems: Sequence[bytes], written: bytes) -> set[int]:
        """The tokens that continue a stem, or complete it and continue past its end."""
        positions, ends = follow(stems, written, self._tokens.texts)
        running_on = (position for end in ends for position in range(end.first, end.last))
        return {token_id for position in (*positions, *running_on) for token_id in self._tokens.ids[position]}
