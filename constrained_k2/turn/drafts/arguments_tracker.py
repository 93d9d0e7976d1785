"""Tracks the position in a call's arguments through the tokens of a turn."""

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from constrained_k2.turn.drafts.json_tracker import JsonTracker
from constrained_k2.turn.matcher import ToolCallMatcher

_Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class ArgumentsTracker:
    """The position in the arguments after the first ``num_tokens`` tokens of a turn."""

    num_tokens: int = 0
    tracker: JsonTracker | None = None  # the position in the arguments that are being written; None elsewhere
    _call_id: tuple[int, ...] | None = None  # tokens of the call id that is being written; None elsewhere
    _decoder: codecs.IncrementalDecoder = field(default_factory=partial(_Decoder, "replace"))

    def copy(self) -> "ArgumentsTracker":
        """An independent copy."""
        other = ArgumentsTracker(self.num_tokens, self.tracker and self.tracker.copy(), self._call_id)
        other._decoder.setstate(self._decoder.getstate())
        return other

    def follow(self, ids: Sequence[int], turn: ToolCallMatcher) -> None:
        """Follow the next tokens of the turn."""
        markers, vocabulary = turn.vocabulary.format, turn.vocabulary
        for token_id in ids:
            if token_id == markers.call_begin:
                self._call_id, self.tracker = (), None
            elif token_id == markers.argument_begin and self._call_id is not None:
                name, _ = markers.parse_call_id(vocabulary.decode(self._call_id))
                schema = next((tool.schema for tool in turn.spec.tools if tool.name == name), "{}")
                self._call_id, self.tracker = None, JsonTracker(_decoded(schema))
                self._decoder.reset()
            elif token_id == markers.call_end:
                self._call_id, self.tracker = None, None
            elif self._call_id is not None:
                self._call_id += (token_id,)
            elif self.tracker is not None:
                self.tracker.feed(self._decoder.decode(vocabulary.token_bytes(token_id)))
        self.num_tokens += len(ids)


@lru_cache(maxsize=32)  # a large one takes megabytes
def _decoded(schema: str) -> Any:
    return json.loads(schema)
