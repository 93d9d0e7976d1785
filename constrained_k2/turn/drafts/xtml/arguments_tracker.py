"""Tracks the position in a call's arguments, or in an answer that follows a schema, through the tokens of a turn."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from constrained_k2.formats.kimi_k3 import RESPONSE
from constrained_k2.turn.drafts.arguments_tracker import MAX_WRITTEN
from constrained_k2.turn.drafts.json_tracker import JsonTracker
from constrained_k2.turn.drafts.prompt_text import SPECIAL
from constrained_k2.turn.drafts.schema_view import decoded
from constrained_k2.turn.drafts.xtml.tracker import Place, XtmlTracker
from constrained_k2.turn.matcher import ToolCallMatcher

_Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class XtmlArgumentsTracker:
    """The position in the arguments or the answer after the first ``num_tokens`` tokens of a turn."""

    num_tokens: int = 0
    written: str = ""  # the end of all arguments of the turn so far, with SPECIAL for each marker
    tracker: XtmlTracker | JsonTracker | None = None  # the position in what is being written of them; None elsewhere
    _tag: bytes | None = None  # the text of an opening tag outside arguments; None elsewhere
    _answers: bool = False  # in the response
    _decoder: codecs.IncrementalDecoder = field(default_factory=partial(_Decoder, "replace"))

    def copy(self) -> "XtmlArgumentsTracker":
        """An independent copy."""
        other = XtmlArgumentsTracker(
            self.num_tokens, self.written, self.tracker and self.tracker.copy(), self._tag, self._answers
        )
        other._decoder.setstate(self._decoder.getstate())
        return other

    def follow(self, ids: Sequence[int], turn: ToolCallMatcher) -> None:
        """Follow the next tokens of the turn."""
        markers, vocabulary, answer = turn.vocabulary.format, turn.vocabulary, turn.spec.answer
        if not self.num_tokens:
            self._answers = not turn.begins_in_reasoning
        for token_id in ids:
            tracker = self.tracker
            if token_id in markers.argument_markers:
                self._decoder.reset()
                self.written += SPECIAL
                if isinstance(tracker, XtmlTracker) and (
                    token_id != markers.call_end or tracker.place is not Place.BETWEEN
                ):
                    tracker.feed(token_id)
                else:
                    self._mark(token_id, turn)
            elif self._tag is not None:
                self._tag += vocabulary.token_bytes(token_id)
            elif tracker is not None:
                text = self._decoder.decode(vocabulary.token_bytes(token_id))
                tracker.feed(text)
                self.written = (self.written + text)[-MAX_WRITTEN:]
            elif self._answers and answer is not None and answer.kind == "json":
                self.tracker = JsonTracker(decoded(answer.text))
                self.tracker.feed(self._decoder.decode(vocabulary.token_bytes(token_id)))
        self.num_tokens += len(ids)

    def _mark(self, token_id: int, turn: ToolCallMatcher) -> None:
        """Follow a marker outside arguments."""
        markers = turn.vocabulary.format
        self.tracker, self._answers = None, False
        if token_id != markers.argument_begin:
            self._tag = b"" if token_id == markers.call_begin else None
            return
        tag = (self._tag or b"").decode(errors="replace")
        self._tag, self._answers = None, tag == RESPONSE
        if tag.startswith(markers.header_begin):
            name = tag.removeprefix(markers.header_begin).rpartition(markers.header_index)[0]
            schemas = (tool.schema for tool in turn.spec.tools if markers.escape_name(tool.name) == name)
            self.tracker = XtmlTracker(decoded(next(schemas, "{}")), markers)
