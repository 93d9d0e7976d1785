"""Parses a call's arguments, or an answer in a response format, as the matcher accepts its tokens.

{"city": "Os     in the string of ``city``, by the schema of the called function
"""

import codecs
from dataclasses import dataclass, field
from functools import partial

from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.grammar.lark.text_state import begun_text
from constrained_k2.grammar.spelling import JSON
from constrained_k2.turn.cursors.json_cursor import JsonCursor
from constrained_k2.turn.cursors.schema_view import decoded
from constrained_k2.turn.cursors.text_cursor import TextCursor
from constrained_k2.turn.cursors.xtml_cursor import XtmlCursor
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.turn.phases import Phase

MAX_WRITTEN = 4096  # stored characters
SPECIAL = "\0"
"""The character that replaces a special token."""
Cursor = JsonCursor | XtmlCursor
_Decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class ArgumentsCursor:
    """The parser state in the arguments or the answer after the first ``num_tokens`` tokens of a turn.

    ``follows_text``: True to parse texts of clients' own grammars too, which takes longer.
    """

    num_tokens: int = 0
    written: str = ""  # the last characters of the turn, with SPECIAL before each call and for each marker
    cursor: Cursor | None = None  # the parser state in the current arguments or answer; None elsewhere
    text: TextCursor | None = None  # the parser state in a text of a client's grammar; None elsewhere
    follows_text: bool = False
    _matcher: ArgumentMatcher | None = None  # the matcher that is followed
    _followed: int = 0  # the number of the matcher's tokens that were followed
    _decoder: codecs.IncrementalDecoder = field(default_factory=partial(_Decoder, "replace"))

    def copy(self) -> "ArgumentsCursor":
        """An independent copy."""
        cursor = self.cursor and self.cursor.copy()
        other = ArgumentsCursor(
            self.num_tokens, self.written, cursor, self.text, self.follows_text, self._matcher, self._followed
        )
        other._decoder.setstate(self._decoder.getstate())
        return other

    @property
    def depth(self) -> int:
        """The number of open objects and arrays, plus the number of open grammar rules that need more text."""
        return (0 if self.cursor is None else self.cursor.depth) + (0 if self.text is None else self.text.state.depth)

    @property
    def begun_character(self) -> bytes:
        """The bytes of an incomplete UTF-8 character at the end of the text."""
        return self._decoder.getstate()[0]

    def follow(self, turn: ToolCallMatcher, num_tokens: int | None = None) -> None:
        """Follow a turn from here until its first ``num_tokens`` tokens are followed; by default all tokens."""
        self.num_tokens = turn.num_tokens if num_tokens is None else num_tokens
        matcher = turn.arguments
        if matcher is not self._matcher:
            if self._matcher is not None:  # one step may have accepted a call's last tokens and the next call's first
                self._take(turn, self._matcher, len(self._matcher.written()))
            self._matcher, self._followed, self.cursor, self.text = matcher, 0, None, None
            self._decoder.reset()
            self.written += SPECIAL
        if matcher is not None:
            self._take(turn, matcher, len(matcher.written()) - (turn.num_tokens - self.num_tokens))

    def _take(self, turn: ToolCallMatcher, matcher: ArgumentMatcher, count: int) -> None:
        """Follow a matcher's tokens until its first ``count`` tokens are followed."""
        vocabulary, markers = turn.vocabulary, turn.vocabulary.format
        if self._followed == 0 and matcher is turn.arguments:
            self.cursor = self.cursor or _begun(turn, count)
            if self.follows_text and self.text is None:
                self.text = _begun_text(turn, matcher, count)
        if (self.cursor is None and self.text is None) or count <= self._followed:
            return
        for token_id in matcher.written()[self._followed : count]:
            piece: str | int = token_id
            if isinstance(self.cursor, XtmlCursor) and token_id in markers.argument_markers:
                self._decoder.reset()
                self.cursor.feed(token_id)
            else:
                piece = self._decoder.decode(vocabulary.token_bytes(token_id))
                if self.cursor is not None:
                    self.cursor.feed(piece)
            if self.text is not None:
                self.text = self.text.after(piece)
            self.written = (self.written + (SPECIAL if isinstance(piece, int) else piece))[-MAX_WRITTEN:]
        self._followed = count


def _begun(turn: ToolCallMatcher, count: int) -> Cursor | None:
    """A cursor at the start of the current arguments or answer; None before an answer, or if it has no schema."""
    markers, answer = turn.vocabulary.format, turn.spec.answer
    if turn.phase is Phase.ARGUMENTS and count >= 0:
        schema = decoded(next((tool.schema for tool in turn.spec.tools if tool.name == turn.state.name), "{}"))
        return XtmlCursor(schema, markers) if markers.argument_encoding == "xtml" else JsonCursor(schema)
    is_answer = turn.phase is not Phase.ARGUMENTS and answer is not None and answer.kind == "json"
    return JsonCursor(decoded(answer.text)) if answer is not None and is_answer and count > 0 else None


def _begun_text(turn: ToolCallMatcher, matcher: ArgumentMatcher, count: int) -> TextCursor | None:
    """The parser state before a text of a client's grammar; None for other texts, and if the rules were not parsed."""
    grammar = matcher.text_grammar
    if grammar is None or (turn.phase is not Phase.ARGUMENTS and count <= 0):
        return None
    form = turn.vocabulary.format.argument_encoding if turn.phase is Phase.ARGUMENTS else "answer"
    escaped = map(chr, JSON.escapes) if form == "json" else ()
    return TextCursor(begun_text(grammar, frozenset(escaped)), form)
