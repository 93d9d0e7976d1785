"""Counts of masks that forbid the model's first choice, on tensors and behind vLLM's own function that applies masks."""

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm import SamplingParams
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import model_runner as gpu_model_runner_v2
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker
from vllm.v1.worker.worker_base import WorkerWrapperBase

from constrained_k2.vllm_plugin.metrics.argmax_probe import ArgmaxProbe, WorkerProbe
from constrained_k2.vllm_plugin.metrics.counters import EngineCounters
from constrained_k2.vllm_plugin.patches import argmax as replacements
from tests.vllm_plugin.patched import patch_vllm

INF = float("inf")


def counted(counters: EngineCounters) -> tuple[float, float]:
    totals = counters.snapshot()["totals"]
    return totals["examined_rows"], totals["changed_rows"]


def step(counter: ArgmaxProbe, logits: torch.Tensor, forbidden: list[tuple[int, int]]) -> None:
    likeliest = counter.before(logits)
    for row, token in forbidden:
        logits[row, token] = -INF
    counter.after(logits, likeliest, len({row for row, _ in forbidden}))


def test_rows_whose_likeliest_token_is_forbidden() -> None:
    counters = EngineCounters()
    counter = ArgmaxProbe(1, counters)
    logits = torch.zeros(4, 10)
    logits[range(4), [3, 5, 7, 9]] = 1.0
    step(counter, logits.clone(), [(0, 3), (1, 4), (3, 9), (3, 1)])
    assert counted(counters) == (3, 2)
    step(counter, logits.clone(), [(2, 7)])
    assert counted(counters) == (4, 3)


def test_what_others_have_forbidden_does_not_count() -> None:
    counters = EngineCounters()
    counter = ArgmaxProbe(1, counters)
    logits = torch.zeros(2, 4)
    logits[0, 2] = -INF
    step(counter, logits, [(1, 3)])
    assert counted(counters) == (1, 0)


@pytest.mark.parametrize(("every", "examined"), [(0, 0), (1, 12), (4, 3), (16, 0)])
def test_one_step_in_some_is_examined(every: int, examined: int) -> None:
    counters = EngineCounters()
    counter = ArgmaxProbe(every, counters)
    for _ in range(12):
        step(counter, torch.zeros(1, 4), [(0, 0)])
    assert counted(counters)[0] == examined


def test_no_rows_at_all() -> None:
    counters = EngineCounters()
    step(ArgmaxProbe(1, counters), torch.zeros(0, 4), [])
    assert counted(counters) == (0, 0)


def test_two_that_count_into_the_same_counters() -> None:
    counters = EngineCounters()
    for counter in (ArgmaxProbe(1, counters), ArgmaxProbe(1, counters)):
        step(counter, torch.zeros(1, 4), [(0, 0)])
    assert counted(counters) == (2, 2)


# The structured-output route -------------------------------------------------------------------------------------------


def request(name: str, **extra: Any) -> Any:
    return SimpleNamespace(req_id=name, sampling_params=SamplingParams(extra_args=extra or None))


def scheduled(*new: Any, finished: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        scheduled_new_reqs=list(new), finished_req_ids=set(finished), scheduled_spec_decode_tokens={"b": [1]}
    )


def forbid_token_0(worker: Any, logits: torch.Tensor, batch: Any, ids: list[str], masks: Any) -> None:
    """In the place of the V2 runner's method, which needs CUDA streams."""
    logits[: len(masks), 0] = -INF


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> EngineCounters:
    """Counters of a worker's process that has just started; vLLM's classes are as before afterwards."""
    patch_vllm()
    counters = EngineCounters()
    monkeypatch.setattr(ArgmaxProbe.__init__, "__defaults__", (counters,))
    monkeypatch.setattr(replacements, "worker_probe", WorkerProbe())
    unpatched = inspect.unwrap(gpu_model_runner.apply_grammar_bitmask)
    for owner, name, replaced, original in (
        (gpu_model_runner, "apply_grammar_bitmask", replacements.apply_grammar_bitmask, unpatched),
        (StructuredOutputsWorker, "apply_grammar_bitmask", replacements.apply_grammar_bitmask_v2, forbid_token_0),
        (WorkerWrapperBase, "execute_model", replacements.execute_model, lambda self, output: "executed"),
    ):
        monkeypatch.setattr(owner, name, replaced(original))
    return counters


def worker(**settings: Any) -> WorkerWrapperBase:
    wrapper = WorkerWrapperBase()
    wrapper.vllm_config = SimpleNamespace(
        additional_config={"constrained_k2": {"argmax_sample_interval": 1} | settings}
    )
    return wrapper


def masked(output: Any, ids: list[str]) -> torch.Tensor:
    """Requests a, b and c, b with a draft token, through vLLM's function: token 0 is forbidden everywhere."""
    rows = sum(2 if name == "b" else 1 for name in ids)
    bitmask = np.full((rows, 1), ~1, dtype=np.int32)
    logits = torch.zeros(4, 32)
    logits[:3, 0] = 1.0
    batch = SimpleNamespace(req_ids=["a", "b", "c"])
    gpu_model_runner.apply_grammar_bitmask(output, GrammarOutput(ids, bitmask), batch, logits)
    return logits


def test_masks_from_the_engine_core(counters: EngineCounters) -> None:
    here = worker()
    output = scheduled(request("a", constrained_k2="{}"), request("b", constrained_k2="{}"), request("c"))
    assert here.execute_model(output) == "executed"
    logits = masked(output, ["b", "a"])
    assert (logits[:, 0] == torch.tensor([-INF, -INF, -INF, 0])).all()
    assert counted(counters) == (3, 3)


def test_steps_that_mask_others_too_are_left_out(counters: EngineCounters) -> None:
    here = worker()
    output = scheduled(request("a", constrained_k2="{}"), request("b", constrained_k2="off"), request("c", other=1))
    here.execute_model(output)
    masked(output, ["a", "b"])
    masked(output, ["c"])
    assert counted(counters) == (0, 0)
    masked(output, ["a"])
    assert counted(counters) == (1, 1)
    here.execute_model(scheduled(finished=("a",)))
    masked(output, ["a"])
    assert counted(counters) == (1, 1)


def test_switched_off(counters: EngineCounters) -> None:
    here, output = worker(argmax_sample_interval=0), scheduled(request("a", constrained_k2="{}"))
    here.execute_model(output)
    masked(output, ["a"])
    assert counted(counters) == (0, 0)


def test_masks_from_the_engine_core_in_the_v2_runner(counters: EngineCounters) -> None:
    worker().execute_model(scheduled(request("a", constrained_k2="{}"), request("c")))
    for ids in (["a"], ["c"], ["a", "c"]):
        logits = torch.eye(3, 32)
        StructuredOutputsWorker.apply_grammar_bitmask(None, logits, None, ids, np.zeros((2, 1)))
        assert logits[0, 0] == -INF
    assert counted(counters) == (2, 1)


def test_what_is_replaced_is_what_the_runners_call() -> None:
    v1 = inspect.unwrap(gpu_model_runner.GPUModelRunner.sample_tokens).__code__.co_names
    v2 = inspect.unwrap(gpu_model_runner_v2.GPUModelRunner.sample).__code__.co_names
    assert "apply_grammar_bitmask" in v1
    assert {"structured_outputs_worker", "apply_grammar_bitmask"} <= set(v2)
