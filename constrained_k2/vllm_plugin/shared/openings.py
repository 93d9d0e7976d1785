"""Finds in token ids, or forbids, the beginnings of tool calls; checks that a prompt begins a turn.

Kimi K2 has a marker for each. Kimi K3's marker opens every tag, so that the tag's name tells them apart; a name may be
written in any tokens.
"""

from collections.abc import Iterable, Iterator, Sequence

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


def begins_turn(prompt_ids: Sequence[int], vocabulary: Vocabulary) -> bool:
    """False for a prompt that ends inside reasoning or calls (``continue_final_message``): a matcher begins a turn."""
    markers = vocabulary.format
    tail = list(prompt_ids[::-1])
    tail = tail[: tail.index(markers.turn_end)] if markers.turn_end in tail else tail
    opening = markers.located(markers.text_opening)
    if opening:
        return vocabulary.opens_reasoning(prompt_ids) or _is_in_text(tail[::-1], opening, vocabulary)
    seen = {marker: tail.index(marker) for marker in (markers.think_begin, markers.think_end) if marker in tail}
    in_reasoning = 0 < seen.get(markers.think_begin, 0) < seen.get(markers.think_end, len(tail))
    return not in_reasoning and markers.section_begin not in tail


def _is_in_text(ids: Sequence[int], opening: tuple[int | bytes, ...], vocabulary: Vocabulary) -> bool:
    """True if the last tag of an open message is the opening of its text."""
    marker, name, end = opening
    markers = vocabulary.format
    tags = [at for at, token_id in enumerate(ids) if token_id in (marker, markers.call_end)]
    if not tags or ids[tags[-1]] != marker:
        return False
    tag = list(ids[tags[-1] + 1 :])
    return end in tag and b"".join(_text(tag[: tag.index(end)], vocabulary)) == name


def _section_name(vocabulary: Vocabulary) -> bytes:
    """The name of the tag that opens a section."""
    transitions = (each for found in vocabulary.format.transitions.values() for each in found)
    to_section = (each.pieces for each in transitions if each.to is Phase.SECTION)
    return next(piece for piece in min(to_section, key=len) if isinstance(piece, bytes))


def _text(ids: Iterable[int], vocabulary: Vocabulary) -> Iterator[bytes]:
    """The bytes of the ordinary tokens at the beginning of these."""
    for token_id in ids:
        raw = vocabulary.ordinary_bytes(token_id)
        if not raw:
            return
        yield raw
