"""The workers and the engine core choose the same drafts, and only those whose guess came true."""

import random
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch

from constrained_k2.turn.drafts.lookahead import Guess
from constrained_k2.vllm_plugin.draft_table import DraftTable, attach, tables_of
from constrained_k2.vllm_plugin.worker.drafts import place_drafts

SLOTS, WIDTH = 6, 4


def random_table(chance: random.Random) -> DraftTable:
    guesses = {}
    for _ in range(chance.randint(1, 4)):
        drafts = tuple(chance.randint(1, 2) for _ in range(chance.randint(1, WIDTH)))
        guess = Guess(chance.randint(1, 3), chance.randint(1, 2), drafts, chance.randint(0, len(drafts)))
        guesses[guess[:2]] = guess
    return DraftTable(chance.randint(10, 12), tuple(guesses.values()))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("seed", range(50))
def test_workers_and_engine_core_choose_the_same(seed: int, alone: bool) -> None:
    chance = random.Random(seed)
    names = {f"r{slot}": slot for slot in chance.sample(range(SLOTS), 4)}
    tables = {name: random_table(chance) for name in list(names)[:3]}
    states = SimpleNamespace(
        req_id_to_index=names,
        draft_tokens=torch.tensor([[chance.randint(1, 2) for _ in range(WIDTH)] for _ in range(SLOTS)]),
        total_len=SimpleNamespace(gpu=torch.tensor([chance.randint(11, 14) for _ in range(SLOTS)], dtype=torch.int32)),
        last_sampled_tokens=torch.tensor([[chance.randint(1, 2)] for _ in range(SLOTS)]),
    )
    proposed = states.draft_tokens.tolist()
    place_drafts(states, tables, alone=alone)
    used = 0
    for slot, before in enumerate(proposed):
        name = next((name for name, at in names.items() if at == slot), "")
        found = states.draft_tokens[slot].tolist()
        if name not in tables:
            assert found == before
            continue
        outcome = int(states.total_len.gpu[slot]), int(states.last_sampled_tokens[slot, 0])
        chosen = list(tables[name].chosen(*outcome, [] if alone else before))
        assert found[: len(chosen)] == chosen
        used += found != before
        if alone and not chosen:
            assert found == before
    assert states.draft_tokens.shape == (SLOTS, WIDTH) and used <= len(tables)


def test_the_choice() -> None:
    table = DraftTable(10, (Guess(1, 7, (5, 6), 1), Guess(3, 7, (8,), 0)))
    assert table.chosen(11, 7, []) == (5, 6)
    assert table.chosen(13, 7, []) == (8,)
    assert table.chosen(12, 7, []) == table.chosen(11, 6, []) == []
    assert table.chosen(11, 7, [4, 4, 4]) == (5, 6), "the proposed drafts break off where the grammar forces a token"
    assert table.chosen(11, 7, [5, 4, 4]) == [5, 4, 4], "the model chooses where the grammar does not"
    assert table.chosen(13, 7, [4]) == [4]
    preferred = DraftTable(10, (Guess(1, 7, (5, 6), 2),))
    assert preferred.chosen(11, 7, [5, 4, 4]) == (5, 6), "all of the grammar's drafts count"
    assert table.width == 2


def test_tables_go_with_a_schedule() -> None:
    scheduled = SimpleNamespace()
    assert tables_of(scheduled) == {}
    tables = {"a": DraftTable(1, (Guess(1, 2, (3,)),))}
    attach(scheduled, tables)
    assert tables_of(scheduled) == tables
