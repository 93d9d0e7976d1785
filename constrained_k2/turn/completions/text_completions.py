r"""Proposes short texts that complete tool input or an answer in a client's Lark or regex grammar.

{"input": "(ab      Kimi K2: a completion of (ab is ;) in the client's grammar. With the object's end:  ;)"}
"""

import json
from collections.abc import Iterator

from constrained_k2.formats.base import WireFormat
from constrained_k2.turn.cursors.text_cursor import TextCursor


def text_completions(position: TextCursor, markers: WireFormat) -> Iterator[str | int]:
    """Yield completions of a text, best first: characters, or the end marker's id if the text is complete."""
    for text, is_whole in position.state.completions():
        if position.form == "json":
            spelled = json.dumps(text, ensure_ascii=False)[1:-1] + ('"}' if is_whole else "")
            if spelled.startswith(position.escape):
                yield spelled[len(position.escape) :]
        else:
            yield text or markers.call_end
