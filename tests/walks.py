"""A model with random logits under the mask."""

import random

from constrained_k2 import ToolCallMatcher, Vocabulary
from constrained_k2.bitmask import TokenSet, allocate_bitmask, allowed_ids
from constrained_k2.matcher import Phase

_CLOSERS = (b'"', b"}", b"]", b"0", b"1")


def walk(matcher: ToolCallMatcher, vocabulary: Vocabulary, seed: int, limit: int = 4000) -> list[int]:
    """Take allowed tokens at random until a stop.

    Half of the choices are uniform over the mask; the other half prefer what ends strings, arrays and objects, so
    that walks through open-ended schemas end.
    """
    chance = random.Random(seed)
    row = allocate_bitmask(1, vocabulary.size)[0]
    closing = allocate_bitmask(1, vocabulary.size)[0]
    TokenSet(
        [token for token in range(vocabulary.size) if vocabulary.ordinary_bytes(token).startswith(_CLOSERS)]
        + [vocabulary.format.call_end, vocabulary.format.section_end],
        vocabulary.size,
    ).fill(closing)
    ids: list[int] = []
    while not matcher.is_terminated():
        assert len(ids) < limit, f"no stop after {limit} tokens: …{vocabulary.decode(ids[-100:])!r}"
        matcher.fill_bitmask(row[None], 0)
        assert row.any(), f"nothing is allowed after {vocabulary.decode(ids)!r}"
        prefers = matcher.phase in (Phase.ARGUMENTS, Phase.BETWEEN) and chance.random() < 0.5
        allowed = allowed_ids(row & closing if prefers and (row & closing).any() else row)
        token = int(allowed[chance.randrange(len(allowed))])
        assert matcher.accept_tokens([token]), f"{token} is in the mask but is refused"
        ids.append(token)
    return ids
