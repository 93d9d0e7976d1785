"""Limits the tokens of a request with ``stop`` strings to those that vLLM's text covers.

vLLM looks for stop strings in the text and shortens it, and buffers in a stream what may become one; the token ids that
it hands over are always all of them.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Sequence

from constrained_k2.vocabulary.vocabulary import Vocabulary


class TextBudget:
    """Lets tokens through as far as vLLM's text reaches."""

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str]) -> None:
        self._vocabulary = vocabulary
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._recent = ""  # the end of the text shown, as long as a stop string may reach back
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[int, str]] = deque()  # token, the text it completes
        self._left = 0  # characters of vLLM's text that no token has used up

    def take(self, token_ids: Iterable[int], text: str, *, finished: bool) -> list[int]:
        """The tokens that may be shown now, where vLLM adds ``text`` with these, markers spelled out.

        At the end, a token that the text covers in part is shown in that part; where no stop string has ended the text,
        all is: vLLM leaves out a character that was not completed, and with it what else its token holds.
        """
        self._left += len(text)
        for token_id in token_ids:
            self._waiting.append((token_id, self._decoder.decode(self._vocabulary.token_bytes(token_id))))
        shown: list[int] = []
        while self._waiting and len(self._waiting[0][1]) <= self._left:
            token_id, piece = self._waiting.popleft()
            self._left -= len(piece)
            shown.append(token_id)
            self._recent = (self._recent + piece)[-self._longest :]
        if finished and self._waiting:
            end = self._recent + "".join(piece for _, piece in self._waiting)
            if not any(stop in end for stop in self._stop):
                return [*shown, *(token_id for token_id, _ in self._waiting)]
            token_id, piece = self._waiting[0]
            if self._vocabulary.is_ordinary(token_id):
                shown += self._vocabulary.encode(piece[: self._left])
        return shown
