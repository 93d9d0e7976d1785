"""A turn's tokens as they are read by what only has to guess: which arguments stand at their end."""

import codecs
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from constrained_k2.drafting.cursor import Cursor
from constrained_k2.matcher import ToolCallMatcher


class FollowedTurn:
    """What guessing and closing need to know of the tokens so far: where the arguments stand that are being written.

    Attributes:
        seen: How many tokens have been followed.
        cursor: Where the arguments stand that are being written; None elsewhere.
    """

    __slots__ = ("_decoder", "_header", "cursor", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self._header: list[int] | None = None  # the tokens of the header that is being written; None elsewhere
        self.cursor: Cursor | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def copy(self) -> "FollowedTurn":
        """An independent copy."""
        other = FollowedTurn()
        other.seen = self.seen
        other._header = None if self._header is None else self._header.copy()
        other.cursor = None if self.cursor is None else self.cursor.copy()
        other._decoder.setstate(self._decoder.getstate())
        return other

    def follow(self, ids: Sequence[int], matcher: ToolCallMatcher) -> None:
        """Take the next tokens."""
        markers, vocabulary = matcher.vocabulary.format, matcher.vocabulary
        for token_id in ids:
            if token_id == markers.call_begin:
                self._header, self.cursor = [], None
            elif token_id == markers.argument_begin and self._header is not None:
                name, _ = markers.parse_call_id(vocabulary.decode(self._header))
                self._header, self.cursor = None, Cursor(_schema(matcher, name))
                self._decoder.reset()
            elif token_id == markers.call_end:
                self._header, self.cursor = None, None
            elif self._header is not None:
                self._header.append(token_id)
            elif self.cursor is not None:
                self.cursor.feed(self._decoder.decode(vocabulary.token_bytes(token_id)))
        self.seen += len(ids)


def _schema(matcher: ToolCallMatcher, name: str) -> Any:
    return _decoded(next((tool.schema for tool in matcher.spec.tools if tool.name == name), "{}"))


@lru_cache(maxsize=32)  # decoded, a large one takes megabytes
def _decoded(schema: str) -> Any:
    return json.loads(schema)
