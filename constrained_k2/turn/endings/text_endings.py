r"""Shortest completions of a text of a client's grammar: of a custom tool's input, in JSON or XTML, or of an answer.

{"input": "(ab      Kimi K2: the parser state of (ab. Its completion is ;) and the object's end is added:  ;)"}
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from constrained_k2.formats.base import WireFormat
from constrained_k2.grammar.lark.text_state import TextState

_QUOTES = 3  # quotes before the text of a custom tool in JSON: {"input": "
_MARKERS = 2  # markers before the text of a custom tool in XTML
_UNICODE = len("\\u0000")


@dataclass(frozen=True, slots=True)
class TextPosition:
    """The position in the JSON or XTML around a text, and the parser state of the text."""

    state: TextState
    form: Literal["json", "xtml", "answer"]
    before: int = 0  # quotes or markers so far
    escape: str = ""  # the incomplete JSON escape at the end

    @property
    def is_inside(self) -> bool:
        """True inside the text."""
        return self.before == {"json": _QUOTES, "xtml": _MARKERS, "answer": 0}[self.form]

    def after(self, piece: str | int) -> "TextPosition":
        """Return the position after more characters, or after a marker's id."""
        if isinstance(piece, int):
            return replace(self, before=self.before + 1)
        if self.form == "json":
            return self._after_json(piece)
        return replace(self, state=self.state.after(piece)) if self.is_inside else self

    def _after_json(self, piece: str) -> "TextPosition":
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
        return TextPosition(state, self.form, before, escape)


def text_endings(position: TextPosition, markers: WireFormat) -> Iterator[str | int]:
    """Yield completions of a text, the best first: characters, or a marker's id if no characters are missing."""
    for text, is_whole in position.state.completions():
        if position.form == "json":
            spelled = json.dumps(text, ensure_ascii=False)[1:-1] + ('"}' if is_whole else "")
            if spelled.startswith(position.escape):
                yield spelled[len(position.escape) :]
        else:
            yield text or markers.call_end
