"""Rows that are examined, on tensors: what is found of each, which are chosen, and behind vLLM's own functions that mask."""

import inspect
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import model_runner as gpu_model_runner_v2
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

from constrained_k2.turn.intent import Intent
from constrained_k2.vllm_plugin.shared import arriving
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.row_plan import (
    SAMPLED_ROWS,
    NamedRow,
    PlannedRow,
    RowSampler,
    planned_ids,
    plans_of,
)
from constrained_k2.vllm_plugin.shared.row_probe import RowProbe
from constrained_k2.vllm_plugin.worker import patched_rows as replacements
from tests.vllm_plugin.patched import patch_vllm

INF = float("inf")


def planned(*numbers: int) -> list[PlannedRow]:
    return [PlannedRow(number, 0) for number in numbers]


def examine(probe: RowProbe, logits: torch.Tensor, rows: list[int], forbidden: torch.Tensor) -> None:
    with probe.around(logits, rows, planned(*range(len(rows)))):
        logits[forbidden] = -INF


def counted(probe: RowProbe) -> tuple[float, float]:
    """The examined rows, and those of them whose likeliest token was forbidden."""
    probe.count()
    totals = probe._counters.snapshot()["totals"]
    return totals["examined_rows"], totals["changed_rows"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_found_of_a_row(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    probe = RowProbe(EngineCounters())
    examined = changed = 0
    for _ in range(10):
        logits = (torch.randn(6, 500) * 4).to(dtype)
        logits[:, 490:] = -INF  # what others have forbidden
        forbidden = torch.rand(6, 500) < torch.tensor([0.0, 0.1, 0.5, 0.9, 0.99, 0.5])[:, None]
        rows = [4, 0, 3, 2]
        examined += len(rows)
        changed += sum(bool(forbidden[row, int(logits[row].argmax())]) for row in rows)
        examine(probe, logits, rows, forbidden)
        assert counted(probe) == (examined, changed)
    assert 0 < changed < examined


def test_rows_that_are_not_there_and_logits_that_are_no_numbers() -> None:
    probe = RowProbe(EngineCounters())
    logits = torch.zeros(2, 8)
    logits[1] = math.nan
    examine(probe, logits, [-1, 1, 0], torch.zeros(2, 8, dtype=torch.bool))
    assert counted(probe) == (1, 0)


def test_nothing_is_planned() -> None:
    probe = RowProbe(EngineCounters())
    examine(probe, torch.zeros(0, 8), [], torch.zeros(0, 8, dtype=torch.bool))
    assert counted(probe) == (0, 0)


class Unfinished:
    """An event of a device that is never done."""

    def query(self) -> bool:
        return False


def test_a_device_that_lags_behind_costs_rows_not_time() -> None:
    probe = RowProbe(EngineCounters())
    steps = probe._results._steps
    for _ in range(arriving._STEPS + 5):
        examine(probe, torch.zeros(1, 8), [0], torch.zeros(1, 8, dtype=torch.bool))
        steps[-1] = steps[-1]._replace(done=Unfinished())
    assert counted(probe) == (0, 0)
    assert len(steps) == arriving._STEPS
    for number, step in enumerate(steps):
        steps[number] = step._replace(done=None)
    assert counted(probe) == (arriving._STEPS, 0)


# Which rows are chosen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "sampled"), [(0, 0), (1, 12), (4, 3), (16, 0)])
def test_one_step_in_some_is_sampled(interval: int, sampled: int) -> None:
    sampler = RowSampler(interval)
    found = []
    for _ in range(12):
        found += sampler.choose(planned(0)) if sampler.begin_step() else []
    assert len(found) == sampled


def test_every_row_has_its_turn() -> None:
    sampler, rows = RowSampler(1), planned(*range(SAMPLED_ROWS * 3 + 1))
    seen: set[int] = set()
    for _ in range(4):
        sampler.begin_step()
        chosen = sampler.choose(rows)
        assert len(chosen) == SAMPLED_ROWS
        seen |= {row.request for row in chosen}
    assert seen == {row.request for row in rows}


# vLLM's functions that mask --------------------------------------------------------------------------------------------


def forbid_token_0(worker: Any, logits: torch.Tensor, batch: Any, ids: list[str], masks: Any) -> None:
    """In the place of the V2 runner's method, which needs CUDA streams."""
    logits[:, 0] = -INF


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> RowProbe:
    """The probe of a worker that has just started; vLLM's objects are as before afterwards."""
    patch_vllm()
    probe = RowProbe(EngineCounters())
    monkeypatch.setattr(replacements, "row_probe", probe)
    unpatched = inspect.unwrap(gpu_model_runner.apply_grammar_bitmask)
    for owner, name, replaced, original in (
        (gpu_model_runner, "apply_grammar_bitmask", replacements.apply_grammar_bitmask, unpatched),
        (StructuredOutputsWorker, "apply_grammar_bitmask", replacements.apply_grammar_bitmask_v2, forbid_token_0),
    ):
        monkeypatch.setattr(owner, name, replaced(original))
    return probe


PLAN = [
    PlannedRow(0, 0, "b"),
    PlannedRow(0, 1, "b"),
    PlannedRow(1, 0, "a"),
    PlannedRow(2, 0, "gone"),
]


def test_masks_in_the_v1_runner(probe: RowProbe) -> None:
    """Requests a, b and c, b with a draft token; the list of ids has another order than the batch."""
    bitmask = np.full((4, 1), ~1, dtype=np.int32)
    output = SimpleNamespace(scheduled_spec_decode_tokens={"b": [1]})
    batch = SimpleNamespace(req_ids=["a", "b", "c"])
    logits = torch.zeros(4, 32)
    logits[range(4), [0, 3, 0, 4]] = 5.0
    masks = GrammarOutput(planned_ids(["b", "a", "gone"], PLAN, []), bitmask)
    gpu_model_runner.apply_grammar_bitmask(output, masks, batch, logits)
    assert counted(probe) == (3, 2)
    gpu_model_runner.apply_grammar_bitmask(output, GrammarOutput(["b", "a"], bitmask), batch, logits)
    assert counted(probe) == (3, 2)


def test_masks_in_the_v2_runner(probe: RowProbe) -> None:
    """The same; and where the device verifies fewer drafts than were scheduled."""
    for ends, examined in (([0, 1, 3, 4], 3), ([0, 1, 2, 3], 2)):
        batch = SimpleNamespace(req_ids=["a", "b", "c"], cu_num_logits=torch.tensor(ends, dtype=torch.int32))
        logits = torch.zeros(ends[-1], 32)
        logits[:, 1] = 0.5
        logits[0, 0] = 1.0
        before = counted(probe)
        StructuredOutputsWorker.apply_grammar_bitmask(
            None, logits, batch, planned_ids(["b", "a", "gone"], PLAN, [])[:2], np.zeros((4, 1))
        )
        after = counted(probe)
        assert (after[0] - before[0], after[1] - before[1]) == (examined, 1)


def test_a_plan_travels_with_the_ids() -> None:
    """Through pickling, and where a runner keeps a part of the ids, as vLLM 0.33's sharded sampling does."""
    intent = Intent(np.arange(3, dtype=np.int32), 9, 0.5)
    ids = planned_ids(["b", "a", "gone", "d"], PLAN, [NamedRow(PLAN[2], ("a", 0), intent)])
    assert ids == ["b", "a", "gone", "d"] and type(ids[3]) is str
    sent = pickle.loads(pickle.dumps(ids))
    assert sent == ids and {each: number for number, each in enumerate(sent)}["a"] == 1
    plan, named = plans_of([sent[at] for at in (1, 2)])
    assert plan == PLAN[2:]
    assert [row.planned for row in named] == [PLAN[2]]
    assert named[0].intent.meant.tolist() == [0, 1, 2]


def test_what_is_replaced_is_what_the_runners_call() -> None:
    v1 = inspect.unwrap(gpu_model_runner.GPUModelRunner.sample_tokens).__code__.co_names
    v2 = inspect.unwrap(gpu_model_runner_v2.GPUModelRunner.sample).__code__.co_names
    assert "apply_grammar_bitmask" in v1
    assert {"structured_outputs_worker", "apply_grammar_bitmask"} <= set(v2)
