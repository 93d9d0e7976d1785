"""A client's limits on tokens: kept where the mask leaves a token, else ignored and counted; never an empty mask."""

import json
import random
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, parse_completion
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.tools import tool
from tests.kit.turns import check_states, matcher_of, steps
from tests.kit.walks import ids_of

WEATHER = TOOLS[0]
LETTERS = {"type": "object", "properties": {"n": {"type": "string", "pattern": "^[ab]{1,8}$"}}, "required": ["n"],
           "additionalProperties": False}  # fmt: skip


class Limited:
    """A matcher without limits and one with them, at the same tokens."""

    def __init__(self, compiler: Compiler, body: dict[str, Any], allowed: Any = None, bad_words: Any = ()) -> None:
        compiled = compiler.compile(ToolCallSpec.from_openai(body))
        self.ignored = 0
        self.free, self.limited = compiled.matcher(), compiled.matcher()
        self.limited.limits = TokenRestriction(compiler.vocabulary.size, allowed, bad_words, self._count)
        self.bad_words = [list(word) for word in bad_words]
        self.allowed = allowed

    def _count(self) -> None:
        self.ignored += 1

    def accept(self, ids: list[int]) -> None:
        assert self.free.accept_tokens(ids) and self.limited.accept_tokens(ids)

    def expected(self) -> tuple[set[int], bool]:
        """The mask under the limits, by their definition, and whether one is ignored."""
        left, ignored = set(ids_of(self.free)), False
        if self.allowed is not None:
            kept = left & set(self.allowed)
            left, ignored = kept or left, not kept
        written = list(self.free.token_ids())
        bad = {word[-1] for word in self.bad_words if (written[-len(word) + 1 :] if word[1:] else []) == word[:-1]}
        kept = left - bad
        return kept or left, ignored or not kept


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    choice=st.sampled_from(["auto", "required"]),
    number_allowed=st.sampled_from([None, 1, 5, 300, 900]),
    lengths=st.lists(st.integers(1, 4), max_size=40),
)
def test_masks_are_what_the_limits_leave(
    small_compiler: Compiler, seed: int, choice: str, number_allowed: int | None, lengths: list[int]
) -> None:
    """In every phase; half of the bad words are made of what was written, so that they are completed."""
    chance, size = random.Random(seed), small_compiler.vocabulary.size
    body = {"tools": list(TOOLS[:3]), "tool_choice": choice, "thinking": seed % 2 == 0}
    written = walk(small_compiler, body, chance, 60)
    words = []
    for length in lengths:
        start = chance.randrange(len(written))
        word = written[start : start + length] if chance.random() < 0.5 else []
        words.append(word or [chance.randrange(size) for _ in range(length)])
    allowed = None if number_allowed is None else chance.sample(range(size), number_allowed)
    limited = Limited(small_compiler, body, allowed, words)
    for token in written:
        before = limited.ignored
        left, ignored = limited.expected()
        assert set(ids_of(limited.limited)) == left
        assert limited.ignored - before == ignored
        if limited.free.is_terminated():
            break
        limited.accept([token])
        if chance.random() < 0.1:
            assert limited.limited.rollback(1) is None and limited.free.rollback(1) is None
            limited.accept([token])


def walk(compiler: Compiler, body: dict[str, Any], chance: random.Random, limit: int) -> list[int]:
    section = compiler.vocabulary.format.section_begin
    return steps(
        matcher_of(compiler, body), chance, limit, lambda allowed: [section] if section in allowed else allowed
    )


def test_a_bad_word_in_arguments_is_not_written(small_compiler: Compiler) -> None:
    """Also one of several tokens, and where every other token leads on."""
    vocabulary = small_compiler.vocabulary
    (a,), (b,) = vocabulary.encode("a"), vocabulary.encode("b")
    body = {"tools": [tool("f", LETTERS)], "tool_choice": "required"}
    for seed in range(30):
        limited = Limited(small_compiler, body, None, [[a, b], [vocabulary.format.call_begin]])
        matcher, chance = limited.limited, random.Random(seed)
        FinishBudget(vocabulary).apply(matcher, 100, 40)
        ids = steps(matcher, chance)
        assert (a, b) not in list(pairwise(ids))
        (call,) = parse_completion(ids, vocabulary).tool_calls
        assert re.fullmatch("[ab]+", json.loads(call.arguments)["n"])
        assert limited.ignored == 1  # the call has to begin, whatever the client forbids


def test_batches_and_forks_are_limited_alike(small_compiler: Compiler) -> None:
    body = {"tools": list(TOOLS[:3]), "tool_choice": "required"}
    written = walk(small_compiler, body, random.Random(3), 40)
    allowed = random.Random(4).sample(range(small_compiler.vocabulary.size), 200)

    def make() -> ToolCallMatcher:
        return Limited(small_compiler, body, allowed, [written[2:4], written[9:12], written[5:6]]).limited

    check_states(make, written, random.Random(5))


@pytest.mark.parametrize("words", [[], [[]], [[], []]])
def test_words_without_tokens_forbid_nothing(small_compiler: Compiler, words: Any) -> None:
    limited = Limited(small_compiler, {"tools": [WEATHER]}, None, words)
    assert ids_of(limited.limited) == ids_of(limited.free)
    assert not limited.ignored


def test_a_long_bad_word_is_matched_only_whole(small_compiler: Compiler) -> None:
    """As vLLM does: against the output alone, which has to be at least as long."""
    (token,) = small_compiler.vocabulary.encode("a")
    limited = Limited(small_compiler, {"tools": [WEATHER]}, None, [[token] * 20])
    for _ in range(19):
        assert token in ids_of(limited.limited)
        limited.accept([token])
    assert token not in ids_of(limited.limited)
    assert np.count_nonzero(ids_of(limited.limited)) > 500
