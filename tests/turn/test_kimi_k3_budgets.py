"""Finish and thinking budgets in Kimi K3's turns: filtered masks are legal and not empty, and calls end valid in time."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_k2 import Compiler, ToolCallMatcher, Vocabulary
from constrained_k2.testing import write_tokenizer
from constrained_k2.turn.batch import fill_bitmasks
from constrained_k2.turn.finish_budget import FinishBudget
from constrained_k2.turn.phases import Phase
from constrained_k2.turn.thinking_budget import ThinkingBudget
from constrained_k2.turn.token_restriction import TokenRestriction
from constrained_k2.vocabulary.bitmask import allocate_bitmask, allowed_ids
from tests.data import mcp_servers
from tests.turn.k3_turns import CLOSE, OPEN, SEP, as_k3, ids_of, read
from tests.turn.test_finish_budget import EVERY, RESERVE, SCHEMAS, mask, matcher_of, required, steps, tool


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """A compiler over a thousand tokens with Kimi K3's special tokens behind them."""
    directory = tmp_path_factory.mktemp("k2")
    write_tokenizer(directory)
    return Compiler(Vocabulary.from_pretrained(as_k3(directory, tmp_path_factory.mktemp("k3"))))


@pytest.fixture(scope="module")
def real(real_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """A compiler over Kimi K3's own vocabulary."""
    return Compiler(Vocabulary.from_pretrained(as_k3(real_tokenizer, tmp_path_factory.mktemp("real"))))


@pytest.fixture(scope="module")
def budget(small: Compiler) -> FinishBudget:
    return FinishBudget(small.vocabulary)


def check_calls(ids: list[int], vocabulary: Vocabulary, schemas: dict[str, Any], *, in_reasoning: bool = False) -> None:
    """Each call of a whole turn is valid by its tool's schema, and no key is written twice."""
    turn = read(ids, vocabulary, in_reasoning=in_reasoning)
    assert turn.calls
    for name, _, blocks in turn.calls:
        arguments = {
            key: value.decode() if kind == "string" else json.loads(value) for key, kind, value in blocks
        }
        assert len(arguments) == len(blocks)
        jsonschema.validate(arguments, schemas[name])


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry["function"]["name"])
@pytest.mark.parametrize("tokens", [RESERVE, RESERVE + 20, RESERVE + 75])
def test_a_random_turn_ends_valid_within_its_budget(
    small: Compiler, budget: FinishBudget, entry: dict[str, Any], tokens: int
) -> None:
    for seed in range(6):
        in_reasoning = seed % 3 == 0
        matcher = matcher_of(small, required(entry, thinking=in_reasoning), in_reasoning=in_reasoning)
        tokens_in_all = tokens + 100
        budget.apply(matcher, tokens_in_all, RESERVE + 40)
        ids = steps(matcher, random.Random(seed), tokens_in_all)
        assert matcher.is_terminated(), small.vocabulary.decode(ids)
        check_calls(ids, small.vocabulary, SCHEMAS, in_reasoning=in_reasoning)
