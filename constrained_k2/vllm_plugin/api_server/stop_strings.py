"""Has ``stop`` strings end the text alone, and limits a request's tokens to those that vLLM's text covers.

vLLM looks for stop strings in all that the model writes, the reasoning included, shortens it there, and buffers in a
stream what may become one; the token ids that it hands over are always all of them.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from constrained_k2.parsing import ToolCallParser
from constrained_k2.parsing.events import ReasoningDelta
from constrained_k2.vocabulary.vocabulary import Vocabulary


class TextStart:
    """Finds where the reasoning of a turn has ended and something else is written: a text, or a call."""

    def __init__(self, vocabulary: Vocabulary, prompt_ids: Sequence[int]) -> None:
        self._parser = ToolCallParser(vocabulary, in_reasoning=vocabulary.opens_reasoning(prompt_ids))
        self._is_reached = False

    def is_reached(self, token_id: int) -> bool:
        """Read the next token; True if it, or an earlier one, is the first behind the reasoning and its markers."""
        if not self._is_reached:
            events = self._parser.feed((token_id,))
            self._is_reached = any(not isinstance(event, ReasoningDelta) for event in events)
        return self._is_reached


def stop_in_text(detokenizer: Any, start: TextStart) -> None:
    """Have one of vLLM's detokenizers look for stop strings behind the reasoning alone, in place.

    It decodes the reasoning without stop strings, and then sees the text alone while it looks for them, until no match
    can reach back into the reasoning.
    """
    update, longest = detokenizer.update, max(map(len, detokenizer.stop))
    hidden = 0  # characters before the text

    def update_text(new_token_ids: list[int], stop_terminated: bool) -> str | None:  # noqa: FBT001 - vLLM's signature
        nonlocal hidden
        before = next((at for at, token_id in enumerate(new_token_ids) if start.is_reached(token_id)), None)
        if before is None:
            before = len(new_token_ids)
        if before:
            stop, detokenizer.stop = detokenizer.stop, []
            update(new_token_ids[:before], stop_terminated and before == len(new_token_ids))
            detokenizer.stop, hidden = stop, len(detokenizer.output_text)
            new_token_ids = new_token_ids[before:]
        written, detokenizer.output_text = detokenizer.output_text, detokenizer.output_text[hidden:]
        found: str | None = update(new_token_ids, stop_terminated)
        if len(detokenizer.output_text) >= longest:
            del detokenizer.update  # the class's own again
        detokenizer.output_text = written[:hidden] + detokenizer.output_text
        return found

    detokenizer.update = update_text


class TextBudget:
    """Lets tokens through as far as vLLM's text reaches; ``start`` if stop strings end the text alone."""

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str], start: TextStart | None = None) -> None:
        self._vocabulary = vocabulary
        self._stop = stop
        self._start = start
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
            self._waiting.append((token_id, piece, self._start is None or self._start.is_reached(token_id)))
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
