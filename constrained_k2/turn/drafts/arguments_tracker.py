"""Tracks the position in a call's arguments as JSON, or in an answer that follows a schema, through a turn's tokens."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from constrained_k2.turn.drafts.json_tracker import JsonTracker
from constrained_k2.turn.drafts.prompt_text import SPECIAL
from constrained_k2.turn.drafts.schema_view import decoded
from constrained_k2.turn.matcher import ToolCallMatcher

MAX_WRITTEN = 4096  # stored characters
_Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class ArgumentsTracker:
    """The position in the arguments or the answer after the first ``num_tokens`` tokens of a turn."""

    num_tokens: int = 0
    written: str = ""  # the end of all arguments of the turn so far, with SPECIAL before each call's
    tracker: JsonTracker | None = None  # the position in what is being written of them; None elsewhere
    _outside: bool = False  # in reasoning or after a section's beginning, where no answer begins
    _call_id: tuple[int, ...] | None = None  # tokens of the call id that is being written; None elsewhere
    _decoder: codecs.IncrementalDecoder = field(default_factory=partial(_Decoder, "replace"))

    def copy(self) -> "ArgumentsTracker":
        """An independent copy."""
        other = ArgumentsTracker(
            self.num_tokens, self.written, self.tracker and self.tracker.copy(), self._outside, self._call_id
        )
        other._decoder.setstate(self._decoder.getstate())
        return other

    def follow(self, ids: Sequence[int], turn: ToolCallMatcher) -> None:
        """Follow the next tokens of the turn."""
        markers, vocabulary, answer = turn.vocabulary.format, turn.vocabulary, turn.spec.answer
        if not self.num_tokens:
            self._outside = turn.begins_in_reasoning
        for token_id in ids:
            if token_id == markers.call_begin:
                self._call_id, self.tracker = (), None
            elif token_id == markers.argument_begin and self._call_id is not None:
                name, _ = markers.parse_call_id(vocabulary.decode(self._call_id))
                schema = next((tool.schema for tool in turn.spec.tools if tool.name == name), "{}")
                self._call_id, self.tracker = None, JsonTracker(decoded(schema))
                self.written += SPECIAL
                self._decoder.reset()
            elif token_id == markers.call_end:
                self._call_id, self.tracker = None, None
            elif self._call_id is not None:
                self._call_id += (token_id,)
            elif token_id in {markers.think_begin, markers.think_end, markers.section_begin}:
                self._outside = token_id != markers.think_end
            elif self.tracker is None and not self._outside and answer is not None and answer.kind == "json":
                self.tracker = JsonTracker(decoded(answer.text))
                self._decoder.reset()
                self._feed(self._decoder.decode(vocabulary.token_bytes(token_id)))
            elif self.tracker is not None:
                self._feed(self._decoder.decode(vocabulary.token_bytes(token_id)))
        self.num_tokens += len(ids)

    def _feed(self, text: str) -> None:
        assert self.tracker is not None
        self.tracker.feed(text)
        self.written = (self.written + text)[-MAX_WRITTEN:]
