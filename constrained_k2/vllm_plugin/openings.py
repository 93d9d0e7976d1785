"""The tokens that open a section of tool calls, or a call.

Kimi K2 has a marker for each. Kimi K3's marker opens every tag, so that the tag's name tells them apart; a name may be
written in any tokens.
"""

from collections.abc import Iterator, Sequence

from constrained_k2.formats.phases import Phase
from constrained_k2.vocabulary.vocabulary import Vocabulary


def bad_words(vocabulary: Vocabulary) -> list[list[int]]:
    """Sequences of tokens that forbid a model every section and every call, as vLLM's bad words."""
    markers = vocabulary.format
    if markers.section_begin != markers.call_begin:
        return [[markers.section_begin], [markers.call_begin]]
    names = (_section_name(vocabulary), markers.header_begin.encode())
    begun = (vocabulary.find(name[:end]) for name in names for end in range(1, len(name) + 1))
    return [[markers.call_begin, token_id] for token_id in dict.fromkeys(begun) if token_id is not None]


def count_calls(ids: Sequence[int], vocabulary: Vocabulary) -> int:
    """The number of calls that these tokens begin."""
    markers = vocabulary.format
    if markers.section_begin != markers.call_begin:
        return ids.count(markers.call_begin)
    header = markers.header_begin.encode()
    opened = (at for at, token_id in enumerate(ids, 1) if token_id == markers.call_begin)
    return sum(b"".join(_text(ids[at : at + len(header)], vocabulary)).startswith(header) for at in opened)


def _section_name(vocabulary: Vocabulary) -> bytes:
    """The name of the tag that opens a section."""
    exits = (each for found in vocabulary.format.exits.values() for each in found)
    joints = (each.joint for each in exits if each.to is Phase.SECTION)
    return next(piece for piece in min(joints, key=len) if isinstance(piece, bytes))


def _text(ids: Sequence[int], vocabulary: Vocabulary) -> Iterator[bytes]:
    """The bytes of the ordinary tokens at the beginning of these."""
    for token_id in ids:
        raw = vocabulary.ordinary_bytes(token_id)
        if not raw:
            return
        yield raw
