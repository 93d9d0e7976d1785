"""Rows that are examined, on tensors: what is found of each, which are chosen, and behind vLLM's own functions that mask."""

import inspect
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import model_runner as gpu_model_runner_v2
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

from constrained_k2.vllm_plugin.metrics import row_probe as module
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters
from constrained_k2.vllm_plugin.metrics.row_plan import ASKED_ROWS, SAMPLED_ROWS, PlannedIds, PlannedRow, RowSampler
from constrained_k2.vllm_plugin.metrics.row_probe import RowProbe
from constrained_k2.vllm_plugin.patches import rows as replacements
from tests.vllm_plugin.patched import patch_vllm

INF = float("inf")


def planned(*numbers: int, sampled: bool = True) -> list[PlannedRow]:
    return [
        PlannedRow(number, 0, "abcdefgh"[number % 8], number, (), asked=False, sampled=sampled) for number in numbers
    ]


def examine(probe: RowProbe, logits: torch.Tensor, rows: list[int], forbidden: torch.Tensor, **given: Any) -> None:
    with probe.around(logits, rows, planned(*range(len(rows)), **given)):
        logits[forbidden] = -INF


def counted(counters: EngineCounters) -> tuple[float, float]:
    totals = counters.snapshot()["totals"]
    return totals["examined_rows"], totals["changed_rows"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_found_of_a_row(dtype: torch.dtype) -> None:
    """Against sums in double precision, for rows in any order."""
    torch.manual_seed(7)
    counters = EngineCounters()
    probe = RowProbe(counters)
    logits = (torch.randn(6, 500) * 4).to(dtype)
    logits[:, 490:] = -INF  # what others have forbidden
    forbidden = torch.rand(6, 500) < torch.tensor([0.0, 0.1, 0.5, 0.9, 0.99, 0.5])[:, None]
    unmasked = logits.double()
    examine(probe, logits, [4, 0, 3, 2, 1], forbidden)
    found = probe.take()
    assert [row.request_id for row in found] == ["a", "b", "c", "d", "e"]
    for (_, row), number in zip(found, [4, 0, 3, 2, 1], strict=True):
        expected = torch.softmax(unmasked[number], 0)
        of_forbidden = expected * forbidden[number]
        assert row.wanted == int(of_forbidden.argmax())
        assert row.is_overridden == bool(forbidden[number, int(unmasked[number].argmax())])
        assert math.isclose(row.probability, float(of_forbidden[row.wanted]), rel_tol=1e-4)
        assert math.isclose(row.forbidden, float(expected[forbidden[number]].sum()), rel_tol=1e-4, abs_tol=1e-9)
        assert row.allowed == int((~forbidden[number, :490]).sum())
    assert counted(counters) == (5, sum(row.is_overridden for _, row in found))
    assert probe.take() == []


def test_rows_of_requests_that_ask_are_not_sampled() -> None:
    counters = EngineCounters()
    probe = RowProbe(counters)
    examine(probe, torch.eye(2, 8), [0, 1], torch.eye(2, 8, dtype=torch.bool), sampled=False)
    assert [row.is_overridden for _, row in probe.take()] == [True, True]
    assert counted(counters) == (0, 0)


def test_rows_that_are_not_there_and_logits_that_are_no_numbers() -> None:
    probe = RowProbe(EngineCounters())
    logits = torch.zeros(2, 8)
    logits[1] = math.nan
    examine(probe, logits, [-1, 1, 0], torch.zeros(2, 8, dtype=torch.bool))
    assert [row.request_id for row in probe.take()] == ["c"]


def test_nothing_is_planned() -> None:
    probe = RowProbe(EngineCounters())
    examine(probe, torch.zeros(0, 8), [], torch.zeros(0, 8, dtype=torch.bool))
    assert probe.take() == []


class Unfinished:
    """An event of a device that is never done."""

    def query(self) -> bool:
        return False


def test_results_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_ROWS", 20)
    probe = RowProbe(EngineCounters())
    for _ in range(30):
        examine(probe, torch.zeros(3, 8), [0, 1, 2], torch.zeros(3, 8, dtype=torch.bool))
    assert len(probe._steps) <= module._BUFFERS
    assert 20 <= len(probe.take()) <= 20 + 3 * module._BUFFERS


def test_a_device_that_lags_behind_costs_rows_not_time() -> None:
    probe = RowProbe(EngineCounters())
    for _ in range(module._BUFFERS + 5):
        examine(probe, torch.zeros(1, 8), [0], torch.zeros(1, 8, dtype=torch.bool))
        for step in probe._steps:
            step.done = Unfinished()
    assert len(probe._steps) == module._BUFFERS
    assert probe.take() == []
    for step in probe._steps:
        step.done = None
    assert len(probe.take()) == module._BUFFERS


# Which rows are chosen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "sampled"), [(0, 0), (1, 12), (4, 3), (16, 0)])
def test_one_step_in_some_is_sampled(interval: int, sampled: int) -> None:
    sampler = RowSampler(interval)
    found = []
    for _ in range(12):
        sampler.begin_step()
        found += sampler.choose(planned(0, sampled=False))
    assert len(found) == sampled
    assert all(row.sampled for row in found)


def test_every_row_has_its_turn() -> None:
    sampler, rows = RowSampler(1), planned(*range(SAMPLED_ROWS * 3 + 1), sampled=False)
    seen: set[int] = set()
    for _ in range(4):
        sampler.begin_step()
        chosen = sampler.choose(rows)
        assert len(chosen) == SAMPLED_ROWS
        seen |= {row.request for row in chosen}
    assert seen == {row.request for row in rows}


def test_all_rows_of_requests_that_ask() -> None:
    sampler = RowSampler(2)
    rows = [row._replace(asked=row.request % 2 == 0) for row in planned(*range(40), sampled=False)]
    sampler.begin_step()
    assert [row.request for row in sampler.choose(rows)] == [*range(0, 40, 2)]
    sampler.begin_step()
    chosen = sampler.choose(rows)
    assert {row.request for row in chosen if not row.sampled} | {*range(SAMPLED_ROWS)} >= {*range(0, 40, 2)}
    assert sum(row.sampled for row in chosen) == SAMPLED_ROWS
    crowd = [row._replace(asked=True) for row in planned(*range(ASKED_ROWS + 9), sampled=False)]
    assert len(sampler.choose(crowd)) <= module.MAX_ROWS


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
    PlannedRow(0, 0, "b", 5, (), asked=True),
    PlannedRow(0, 1, "b", 6, (1,), asked=True),
    PlannedRow(1, 0, "a", 9, (), asked=True),
    PlannedRow(2, 0, "gone", 1, (), asked=True),
]


def test_masks_in_the_v1_runner(probe: RowProbe) -> None:
    """Requests a, b and c, b with a draft token; the list of ids has another order than the batch."""
    bitmask = np.full((4, 1), ~1, dtype=np.int32)
    output = SimpleNamespace(scheduled_spec_decode_tokens={"b": [1]})
    batch = SimpleNamespace(req_ids=["a", "b", "c"])
    logits = torch.zeros(4, 32)
    logits[range(4), [0, 3, 0, 4]] = 5.0
    masks = GrammarOutput(PlannedIds(["b", "a", "gone"], PLAN), bitmask)
    gpu_model_runner.apply_grammar_bitmask(output, masks, batch, logits)
    assert [(name, row.position, row.wanted, row.is_overridden, row.allowed) for name, row in probe.take()] == [
        ("b", 5, 0, False, 31),
        ("b", 6, 0, True, 31),
        ("a", 9, 0, True, 31),
    ]
    gpu_model_runner.apply_grammar_bitmask(output, GrammarOutput(["b", "a"], bitmask), batch, logits)
    assert probe.take() == []


def test_masks_in_the_v2_runner(probe: RowProbe) -> None:
    """The same; and where the device verifies fewer drafts than were scheduled."""
    for ends, positions in (([0, 1, 3, 4], [5, 6, 9]), ([0, 1, 2, 3], [5, 9])):
        batch = SimpleNamespace(req_ids=["a", "b", "c"], cu_num_logits=torch.tensor(ends, dtype=torch.int32))
        logits = torch.zeros(ends[-1], 32)
        logits[0, 0] = 1.0
        StructuredOutputsWorker.apply_grammar_bitmask(
            None, logits, batch, PlannedIds(["b", "a"], PLAN), np.zeros((4, 1))
        )
        found = probe.take()
        assert [row.position for _, row in found] == positions
        assert [row.is_overridden for name, row in found if name == "a"] == [True]


def test_what_is_replaced_is_what_the_runners_call() -> None:
    v1 = inspect.unwrap(gpu_model_runner.GPUModelRunner.sample_tokens).__code__.co_names
    v2 = inspect.unwrap(gpu_model_runner_v2.GPUModelRunner.sample).__code__.co_names
    assert "apply_grammar_bitmask" in v1
    assert {"structured_outputs_worker", "apply_grammar_bitmask"} <= set(v2)
