"""A model with random logits under the mask."""

import json
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from constrained_k2 import ToolCallMatcher, Vocabulary
from constrained_k2.turn.phases import Phase
from constrained_k2.vocabulary.bitmask import TokenSet, allocate_bitmask, allowed_ids


def keys_of(schema: Any) -> set[str]:
    """Every property name in a schema."""
    if isinstance(schema, list):
        return set().union(*map(keys_of, schema))
    if not isinstance(schema, dict):
        return set()
    named = schema.get("properties")
    return set(named if isinstance(named, dict) else ()).union(*map(keys_of, schema.values()))


def row_of(matcher: ToolCallMatcher) -> npt.NDArray[np.int32]:
    """The mask: int32 ``[words]``."""
    bitmask = allocate_bitmask(1, matcher.vocabulary.size)
    matcher.fill_bitmask(bitmask)
    found: npt.NDArray[np.int32] = bitmask[0]
    return found


def ids_of(matcher: ToolCallMatcher) -> list[int]:
    """The tokens in the mask."""
    found: list[int] = allowed_ids(row_of(matcher)).tolist()
    return found


def walk(
    matcher: ToolCallMatcher, vocabulary: Vocabulary, seed: int, schema: Any = None, limit: int = 20_000
) -> list[int]:
    """Take allowed tokens at random until a stop.

    Three in ten of the choices inside arguments are uniform over the mask. The others prefer what ends objects, arrays and
    strings, and keys that the schema names, whole: a uniform choice among 160,000 tokens would hardly ever write a key
    that an open object requires, and so never end it.
    """
    chance = random.Random(seed)
    row = allocate_bitmask(1, vocabulary.size)[0]
    markers = [vocabulary.format.call_end, vocabulary.format.section_end]
    tiers = [
        _row((*_starting(vocabulary, (b"}", b"]")), *markers), vocabulary),
        _row(_starting(vocabulary, (b'"',)), vocabulary),
    ]
    keys = [vocabulary.encode(json.dumps(key, ensure_ascii=False) + ":") for key in sorted(keys_of(schema))]
    ids: list[int] = []
    while not matcher.is_terminated():
        assert len(ids) < limit, f"no stop after {limit} tokens: …{vocabulary.decode(ids[-100:])!r}"
        matcher.fill_bitmask(row[None], 0)
        assert row.any(), f"nothing is allowed after {vocabulary.decode(ids)!r}"
        choices = row
        if matcher.phase in (Phase.ARGUMENTS, Phase.BETWEEN, Phase.ANSWER) and chance.random() < 0.7:
            in_string = int(np.bitwise_count(row).sum()) > vocabulary.size // 4
            ends = tiers[in_string]
            if (row & ends).any():
                choices = row & ends
            elif key := next((key for key in chance.sample(keys, len(keys)) if matcher.accept_tokens(key)), []):
                ids += key
                continue
        allowed = allowed_ids(choices)
        token = int(allowed[chance.randrange(len(allowed))])
        assert matcher.accept_tokens([token]), f"{token} is in the mask but is refused"
        ids.append(token)
    return ids


def _starting(vocabulary: Vocabulary, starts: tuple[bytes, ...]) -> Iterable[int]:
    return (token for token in range(vocabulary.size) if vocabulary.ordinary_bytes(token).startswith(starts))


def _row(ids: Iterable[int], vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    row = allocate_bitmask(1, vocabulary.size)[0]
    TokenSet(ids, vocabulary.size).fill(row)
    return row
