r"""Shortest completions of text in a client's grammar: a custom tool's input, or an answer.

{"input": "(ab      Kimi K2: the parser state of (ab. Its completion is ;) and the object's end is added:  ;)"}
"""

import json
from collections.abc import Iterator

from constrained_k2.formats.base import WireFormat
from constrained_k2.turn.cursors.text_cursor import TextCursor


def text_endings(position: TextCursor, markers: WireFormat) -> Iterator[str | int]:
    """Yield completions of a text, the best first: characters, or a marker's id if no characters are missing."""
    for text, is_whole in position.state.completions():
        if position.form == "json":
            spelled = json.dumps(text, ensure_ascii=False)[1:-1] + ('"}' if is_whole else "")
            if spelled.startswith(position.escape):
                yield spelled[len(position.escape) :]
        else:
            yield text or markers.call_end
