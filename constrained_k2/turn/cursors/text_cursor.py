r"""Incrementally parses text under a client's Lark or regex grammar, and the JSON or XTML around it.

{"input": "(ab      Kimi K2: inside the text, after (ab
"""

import json
from dataclasses import dataclass, replace
from typing import Literal

from constrained_k2.grammar.lark.text_state import TextState

_QUOTES = 3  # quotes before the text of a custom tool in JSON: {"input": "
_MARKERS = 2  # markers before the text of a custom tool in XTML
_UNICODE = len("\\u0000")


@dataclass(frozen=True, slots=True)
class TextCursor:
    """The parser state of a text, and of the JSON or XTML around it."""

    state: TextState
    form: Literal["json", "xtml", "answer"]
    before: int = 0  # quotes (JSON) or markers (XTML) so far
    escape: str = ""  # the incomplete JSON escape at the end

    @property
    def is_inside(self) -> bool:
        """True inside the text."""
        return self.before == {"json": _QUOTES, "xtml": _MARKERS, "answer": 0}[self.form]

    def after(self, piece: str | int) -> "TextCursor":
        """Return the parser state after more characters, or after a marker's id."""
        if isinstance(piece, int):
            return replace(self, before=self.before + 1)
        if self.form == "json":
            return self._after_json(piece)
        return replace(self, state=self.state.after(piece)) if self.is_inside else self

    def _after_json(self, piece: str) -> "TextCursor":
        state, before, escape = self.state, self.before, self.escape
        for character in piece:
            if before != _QUOTES:
                before += character == '"'
            elif escape or character == "\\":
                escape += character
                if len(escape) == (_UNICODE if escape.startswith("\\u") else 2):
                    state, escape = state.after(json.loads(f'"{escape}"')), ""
            elif character == '"':
                before += 1
            else:
                state = state.after(character)
        return TextCursor(state, self.form, before, escape)
