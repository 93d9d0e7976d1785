"""Random walks over matchers, their masks beside LLGuidance's own, and vocabularies of tokens that reach far."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from constrained_k2 import Vocabulary, allocate_bitmask
from constrained_k2.engines.llguidance.grammar import LLGuidanceGrammar
from constrained_k2.engines.llguidance.matcher import LLGuidanceMatcher
from constrained_k2.vocabulary.bitmask import allowed_ids

# Tokens that end a value and reach far into what follows.
CROSSING = (
    '","', '":"', '","a":"', '"a":', '":{"', '":[],"', '":{},"b', '"},{"', '"]}', "}}", "}]", '""', '"":"', ',"', ', "b',
    '{"', "{}", '{"a', '[{"', '[["', "[]", "],[", '":[1,', "1,", "2]", "12", "001", "0.5", "-1", "e1", "1}", "true,", "tru",
    "rue}", "null", "false]", ": ", ", ", "  ", "\n\n", "\t ", ' "', " }", '": "', "ab", 'a"', 'b":', 'c"}', "\\u00", "\\n",
    '\\"', "a\\", '"\\', 'é"', "/", '",,', '"20', "24-", "-0", "01-", '1-01"', '1"}', "00", '0,"', '"abc', "aab", '"12', '"a"', "[1", "[true", ":true}", '": null, "', '"}', '{"":',
)  # fmt: skip
PARTS = "é".encode()[:1], "é".encode()[1:], "😀".encode()[:2], "😀".encode()[2:], b'"\xf0'


class Walk(NamedTuple):
    """The text of a walk, None if it did not end; the number of its masks, of those without an engine, of direct ones."""

    text: bytes | None
    masks: int
    known: int
    direct: int


def fresh_mask(grammar: LLGuidanceGrammar, ids: Sequence[int]) -> npt.NDArray[np.int32] | None:
    """The mask that a new matcher of LLGuidance computes behind tokens; None if it meets a limit."""
    alone = grammar.copy()
    taken = alone.try_consume_tokens(list(ids))
    mask = np.frombuffer(alone.compute_bitmask(), dtype=np.int32)
    assert alone.is_error() or taken == len(ids), ids
    return None if alone.is_error() else mask


def is_direct(matcher: LLGuidanceMatcher, ids: Sequence[int], expected: npt.NDArray[np.int32]) -> bool:
    """True if the next mask is computed directly; then it is the expected one."""
    dfa = matcher.grammar.dfa
    direct = None if dfa is None else dfa.direct_mask(matcher._state, ids[-1] if ids else -1)
    assert direct is None or np.array_equal(direct, expected[: len(direct)]), (ids, matcher._state.position)
    return direct is not None


def walk(
    matcher: LLGuidanceMatcher,
    vocabulary: Vocabulary,
    draw: random.Random,
    likely: Callable[[bytes], bytes],
    limit: int,
    alone: LLGuidanceGrammar | None = None,
) -> Walk:
    """Write at random, with rollbacks and forks, and prefer tokens of the likely bytes, which depend on the text.

    In each state the mask is what the matcher accepts. With ``alone`` it is also that of a new matcher of LLGuidance.
    """
    row, ids, masks, known, direct = allocate_bitmask(1, vocabulary.size)[0], list[int](), 0, 0, 0
    stop = vocabulary.format.engine_stop
    while len(ids) < limit:
        text = b"".join(map(vocabulary.ordinary_bytes, ids))
        expected = None if alone is None else fresh_mask(alone, ids)
        if alone is not None and expected is None:
            break
        masks += 1
        cached = matcher.mask_without_engine()
        known += cached is not None
        if expected is not None and draw.random() < 0.2:  # LLGuidance behaves differently if a mask is skipped
            row[:] = expected[: len(row)]
        else:
            matcher.fill(row)
        assert row.any(), text
        assert cached is None or np.array_equal(cached, row), text
        if expected is not None:
            assert np.array_equal(row, expected[: len(row)]), text
            direct += is_direct(matcher, ids, expected)
        allowed = allowed_ids(row).tolist()
        assert matcher.is_complete() == (stop in allowed), text
        if draw.random() < 0.1:
            others = draw.sample(range(vocabulary.size), 20) if alone is not None else []
            legal, some = {*allowed}, draw.sample(allowed, min(200, len(allowed)))
            for token in {*some, *filter(vocabulary.is_ordinary, others)} - {stop}:
                is_legal = token in legal or _is_forced(alone, [*ids, token])
                taken = matcher.accept(token)
                matcher.rollback(int(taken))
                assert taken == is_legal, (text, vocabulary.ordinary_bytes(token))
            matcher = matcher.fork()
            other = np.empty_like(row)
            matcher.fill(other)
            assert np.array_equal(row, other), text
        going_on = [token for token in allowed if token != stop]
        if not going_on or (alone is None and stop in allowed and draw.random() < 0.9):
            return Walk(text, masks, known, direct)
        if ids and draw.random() < 0.1:
            back = draw.randint(1, min(12, len(ids)))
            matcher.rollback(back)
            del ids[-back:]
            continue
        ids.append(_choose(going_on, vocabulary, likely(text), draw))
        assert matcher.accept(ids[-1]), (text, vocabulary.ordinary_bytes(ids[-1]))
    return Walk(None, masks, known, direct)


def _is_forced(alone: LLGuidanceGrammar | None, ids: list[int]) -> bool:
    """True if LLGuidance accepts tokens whose last one is in no mask: any tokenization of a forced text."""
    return alone is not None and alone.copy().try_consume_tokens(ids) == len(ids)


def _choose(allowed: Sequence[int], vocabulary: Vocabulary, preferred: bytes, draw: random.Random) -> int:
    """Prefer tokens of these bytes, and tokens of several bytes."""
    likely = [one for one in allowed if (raw := vocabulary.ordinary_bytes(one)) and {*raw} <= {*preferred}]
    long = [one for one in allowed if len(vocabulary.ordinary_bytes(one)) > 1]
    tier = draw.random()
    return draw.choice((likely if tier < 0.65 else long if tier < 0.96 else allowed) or allowed)


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
