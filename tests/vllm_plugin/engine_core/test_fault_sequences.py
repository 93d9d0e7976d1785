"""Any sequence of a scheduler's calls, with faults at random points: no row is empty, and others' rows stay right."""

import random
from collections.abc import Callable
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vllm_plugin.engine_core.grammar import ToolCallGrammar, fill_batch
from constrained_k2.vocabulary.bitmask import allowed_ids, words_per_row
from tests.kit.walks import row_of
from tests.vllm_plugin.engine_core.test_faults import body
from tests.vllm_plugin.faults import ERRORS, STEPS, Fault
from tests.vllm_plugin.masks import grammar_of

LIMIT = 60
ENGINES: dict[str, dict[str, Any]] = {"llguidance": {"mask_cache_bytes": 0}, "cached": {}, "xgrammar": {}}


@pytest.fixture(scope="module")
def compiler_of(vocabulary: Vocabulary) -> Callable[[str], Compiler]:
    return cache(lambda name: Compiler(vocabulary, name.replace("cached", "llguidance"), **ENGINES[name]))


@cache
def budgets(vocabulary: Vocabulary) -> tuple[FinishBudget, ThinkingBudget]:
    return FinishBudget(vocabulary), ThinkingBudget(vocabulary)


class Turn:
    """A grammar under test, and the tokens that it has accepted; ``fresh`` compiles what it is compared with."""

    def __init__(self, compiler: Compiler, fresh: Compiler, *, limited: bool) -> None:
        self._limited = limited
        spec = ToolCallSpec.from_openai(body("victim" if limited else "other") | {"thinking": limited})
        self._fresh = fresh.compile(spec)
        self.ids: list[int] = []
        self.grammar = grammar_of(self._matcher(compiler.compile(spec)))
        self.is_over = False

    def _matcher(self, compiled: CompiledToolCalls) -> ToolCallMatcher:
        matcher = compiled.matcher(in_reasoning=self._limited)
        if self._limited:
            finish_budget, thinking_budget = budgets(matcher.vocabulary)
            finish_budget.apply(matcher, LIMIT, 50)
            thinking_budget.apply(matcher, 5)
            matcher.limits = TokenRestriction(matcher.vocabulary.size, None, [[5], [6, 7]], lambda: None)
        return matcher

    def expected(self, drafts: list[int]) -> np.ndarray:
        """The mask of a matcher that nothing but the tokens has happened to."""
        matcher = self._matcher(self._fresh)
        assert matcher.accept_tokens([*self.ids, *drafts])
        return row_of(matcher)


@pytest.mark.slow
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    engine=st.sampled_from(sorted(ENGINES)),
    seed=st.integers(0, 2**32),
    fault=st.builds(
        Fault, st.sampled_from(sorted(STEPS)), st.sampled_from(sorted(ERRORS)), st.integers(0, 9), lasting=st.booleans()
    ),
    with_drafts=st.lists(st.booleans(), min_size=1, max_size=30),
)
def test_no_row_is_empty_and_no_other_row_changes(
    compiler_of: Callable[[str], Compiler], engine: str, seed: int, fault: Fault, with_drafts: list[bool]
) -> None:
    compiler, fresh = compiler_of(engine), compiler_of(engine.replace("cached", "llguidance"))
    turns = [Turn(compiler, fresh, limited=limited) for limited in (True, False)]
    scheduler = Scheduler(turns, fault, random.Random(seed))
    victim, other = scheduler.turns
    with fault.in_request(lambda: victim.grammar.matcher):
        for drafting in with_drafts:
            scheduler.step(drafting=drafting)
    assert other.grammar.matcher is not None


class Scheduler:
    """Calls grammars in the order in which vLLM's scheduler does; of its two turns, the first one has the fault."""

    def __init__(self, turns: list[Turn], fault: Fault, chance: random.Random) -> None:
        self.turns, self._fault, self._chance = turns, fault, chance
        vocabulary = turns[0].grammar._drafter._matcher.vocabulary
        self._size, self._stops, self._stop = vocabulary.size, vocabulary.format.stop_ids, vocabulary.format.turn_end
        self._bitmask = torch.zeros((8, words_per_row(self._size)), dtype=torch.int32)

    def step(self, *, drafting: bool) -> None:
        """Drafts or none, masks, and what is sampled from them."""
        rubbish = bytearray(self._chance.randbytes(self._bitmask.nbytes))  # of an earlier step
        self._bitmask.copy_(torch.frombuffer(rubbish, dtype=torch.int32).view_as(self._bitmask))
        running = [turn for turn in self.turns if not turn.is_over]
        drafts = [self._propose(turn.grammar) if drafting else [] for turn in running]
        if drafting:
            rows = [self._masks(turn.grammar, ids) for turn, ids in zip(running, drafts, strict=True)]
        else:
            fill_batch([turn.grammar for turn in running], self._bitmask)
            rows = [[row.numpy().copy()] for row in self._bitmask[: len(running)]]
        for turn, ids, masks in zip(running, drafts, rows, strict=True):
            self._sample(turn, ids, masks)

    def _propose(self, grammar: ToolCallGrammar) -> list[int]:
        """Drafts that the scheduler has checked: the grammar's, or some model's."""
        if self._chance.random() < 0.5:
            return grammar.draft(4)
        return grammar.validate_tokens([self._chance.randrange(self._size) for _ in range(3)])

    def _masks(self, grammar: ToolCallGrammar, drafts: list[int]) -> list[np.ndarray]:
        """A row for each draft and one more."""
        bitmask, taken, refused = self._bitmask, 0, False
        for at in range(len(drafts) + 1):
            if refused:
                bitmask[at].copy_(bitmask[at - 1])
                continue
            grammar.fill_bitmask(bitmask, at)
            if at < len(drafts):
                refused = not grammar.accept_tokens("", [drafts[at]])
                taken += not refused
        if taken:
            grammar.rollback(taken)
        return [row.numpy().copy() for row in bitmask[: len(drafts) + 1]]

    def _sample(self, turn: Turn, drafts: list[int], rows: list[np.ndarray]) -> None:
        """Take drafts that their rows allow, and one token more; check the rows, as far as they are used."""
        is_victim, is_right, sampled = turn is self.turns[0], True, list[int]()
        assert all(row.any() for row in rows)
        for row, draft in zip_longest(rows, drafts):
            self._fault.is_paused = True
            is_right = np.array_equal(row, turn.expected(sampled))
            self._fault.is_paused = False
            if not is_right or draft is None or not row[draft >> 5] >> (draft & 31) & 1 or self._chance.random() < 0.2:
                sampled.append(int(self._chance.choice(allowed_ids(row))))
                break
            sampled.append(draft)
            if draft in self._stops:
                break
        accepted = turn.grammar.accept_tokens("", sampled)
        assert (accepted and is_right) or (is_victim and self._fault.raised)
        assert is_right or drafts or allowed_ids(row).tolist() == [self._stop]  # behind drafts vLLM copies rows
        assert is_right or not accepted, "the request goes on although a mask has failed"
        turn.ids += sampled
        turn.is_over = not accepted or sampled[-1] in self._stops or len(turn.ids) >= LIMIT
