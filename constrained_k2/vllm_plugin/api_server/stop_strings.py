"""Matches ``stop`` strings in the answer's text only, not in reasoning or calls.

vLLM looks for stop strings in all that the model writes, reasoning and calls included, shortens it there, and buffers
in a stream what may become one; the token ids that it hands over are always all of them. Tokens past the point where
vLLM cut the text are withheld here.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from constrained_k2.parsing import ToolCallParser
from constrained_k2.parsing.events import ContentDelta
from constrained_k2.vocabulary.vocabulary import Vocabulary


class TextTokens:
    """Tells the tokens of a turn's text from those of its reasoning, calls and markers."""

    def __init__(self, vocabulary: Vocabulary, prompt_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._parser = ToolCallParser(vocabulary, in_reasoning=vocabulary.opens_reasoning(prompt_ids))
        self._in_text = False

    def is_text(self, token_id: int) -> bool:
        """True if the next token belongs to the text; a part of a character does if the text has begun."""
        events = self._parser.feed((token_id,))
        if events:
            self._in_text = isinstance(events[-1], ContentDelta)
        elif not self._vocabulary.is_ordinary(token_id):
            self._in_text = False
        return self._in_text


def stop_in_text(detokenizer: Any, tokens: TextTokens) -> None:
    """Have one of vLLM's detokenizers look for stop strings in the text alone, in place.

    It decodes all else without stop strings. They are not found across the beginning of a text either: as long as one
    could reach back behind it, the detokenizer sees only the text.
    """
    update, stop = detokenizer.update, detokenizer.stop
    longest = max(map(len, stop))
    begin = 0  # of the text, in characters

    def update_text(new_token_ids: list[int], stop_terminated: bool) -> str | None:  # noqa: FBT001 - vLLM's signature
        nonlocal begin
        left = len(new_token_ids)
        for is_text, run in groupby(new_token_ids, tokens.is_text):
            part = list(run)
            left -= len(part)
            written = detokenizer.output_text
            hidden = begin if is_text and len(written) - begin < longest else 0
            detokenizer.output_text = written[hidden:]
            detokenizer.stop = stop if is_text else []
            found: str | None = update(part, stop_terminated and not left)
            detokenizer.output_text = written[:hidden] + detokenizer.output_text
            if found is not None:
                return found
            if not is_text:
                begin = len(detokenizer.output_text)
        return None

    detokenizer.update = update_text


class TextBudget:
    """Lets tokens through as far as vLLM's text reaches; ``tokens`` if stop strings end texts alone."""

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str], tokens: TextTokens | None) -> None:
        self._vocabulary = vocabulary
        self._stop = stop
        self._tokens = tokens
        self._longest = max(map(len, stop), default=0)
        self._recent = ""  # the end of the text shown, as long as a stop string may reach back
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[int, str, bool]] = deque()  # token, the text it completes, whether a stop may end it
        self._left = 0  # characters of vLLM's text that no token has used up

    def take(self, token_ids: Iterable[int], text: str, *, finished: bool) -> list[int]:
        """The tokens that may be shown now, where vLLM adds ``text`` with these, markers spelled out.

        At the end, a token that the text covers in part is shown in that part; where no stop string has ended the text,
        all is: vLLM leaves out a character that was not completed, and with it what else its token holds.
        """
        self._left += len(text)
        for token_id in token_ids:
            piece = self._decoder.decode(self._vocabulary.token_bytes(token_id))
            self._waiting.append((token_id, piece, self._tokens is None or self._tokens.is_text(token_id)))
        shown: list[int] = []
        while self._waiting and len(self._waiting[0][1]) <= self._left:
            token_id, piece, is_text = self._waiting.popleft()
            self._left -= len(piece)
            shown.append(token_id)
            self._recent = (self._recent + piece * is_text)[-self._longest :]
        if finished and self._waiting:
            end = self._recent + "".join(piece for _, piece, is_text in self._waiting if is_text)
            if not any(stop in end for stop in self._stop):
                return [*shown, *(token_id for token_id, *_ in self._waiting)]
            token_id, piece, _ = self._waiting[0]
            if self._vocabulary.is_ordinary(token_id):
                shown += self._vocabulary.encode(piece[: self._left])
        return shown
