"""Random walks over matchers that filter the engine's masks."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from constrained_k2 import Vocabulary, allocate_bitmask
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.vocabulary.bitmask import allowed_ids


def choose(allowed: Sequence[int], vocabulary: Vocabulary, preferred: bytes, draw: random.Random) -> int:
    """Prefer pieces of these bytes, and tokens of several bytes."""
    likely = [one for one in allowed if (raw := vocabulary.ordinary_bytes(one)) and raw in preferred]
    long = [one for one in allowed if len(vocabulary.ordinary_bytes(one)) > 1]
    tier = draw.random()
    return draw.choice((likely if tier < 0.65 else long if tier < 0.96 else allowed) or allowed)


def walk(
    matcher: LLGuidanceMatcher,
    vocabulary: Vocabulary,
    draw: random.Random,
    preferred: Callable[[bytes], bytes],
    limit: int,
) -> bytes | None:
    """Write at random, with rollbacks; in each state the mask is what the matcher accepts. None if it did not end."""
    row = allocate_bitmask(1, vocabulary.size)[0]
    ids: list[int] = []
    stop = vocabulary.format.engine_stop
    while len(ids) < limit:
        matcher.fill(row)
        allowed = [int(one) for one in allowed_ids(row)]
        text = b"".join(map(vocabulary.ordinary_bytes, ids))
        assert allowed, text
        if (cached := matcher.mask_without_engine()) is not None:
            assert np.array_equal(cached, row), text
        if draw.random() < 0.1:
            other = np.empty_like(row)
            fork = matcher.fork()
            fork.fill(other)
            assert np.array_equal(row, other), text
            LLGuidanceMatcher.fill(matcher, other)  # where a text is forced, it allows one of its splits
            for one in map(int, allowed_ids(other)):
                if one != stop:
                    taken = matcher.accept(one)
                    assert taken == (one in allowed), (text, vocabulary.ordinary_bytes(one))
                    if taken:
                        matcher.rollback(1)
            if ids and draw.random() < 0.3:
                back = draw.randrange(len(ids)) + 1
                fork.rollback(back)
                matcher, ids = fork, ids[:-back]
                continue
        if matcher.is_complete() and draw.random() < 0.9:
            assert stop in allowed
            return text
        one = choose([one for one in allowed if one != stop] or [stop], vocabulary, preferred(text), draw)
        if one == stop:
            return text
        assert matcher.accept(one), (text, vocabulary.ordinary_bytes(one))
        ids.append(one)
        if draw.random() < 0.05:
            back = draw.randrange(min(len(ids), 12)) + 1
            matcher.rollback(back)
            del ids[-back:]
    return None


def write(matcher: Any, vocabulary: Vocabulary, *parts: str) -> str:
    """Write bytes, and the markers of Kimi K3; the part that is refused, up to its last byte, or nothing."""
    for part in parts:
        if part in vocabulary.special_tokens:
            assert matcher.accept(vocabulary.special_tokens[part])
            continue
        for end, byte in enumerate(part.encode(), 1):
            if not matcher.accept(byte):
                return part.encode()[:end].decode()
    return ""


def vocabulary_of(pieces: Sequence[str], *parts: bytes) -> Vocabulary:
    """The bytes, tokens of these texts, and tokens that are parts of characters or more."""
    bytes_ = Vocabulary.of_bytes()
    tokens = {token_id: bytes_.ordinary_bytes(token_id) for token_id in range(256)}
    tokens |= {300 + number: piece.encode() for number, piece in enumerate(dict.fromkeys(pieces))}
    tokens |= dict(enumerate(parts, 290))
    return Vocabulary(tokens, bytes_.special_tokens, 512, bytes_.encoder)
