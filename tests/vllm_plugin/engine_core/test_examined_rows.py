"""Examined rows: what is found of each, which are chosen, and by the law that every override is counted and none is invented."""

import inspect
import math
import pickle
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import model_runner as gpu_model_runner_v2
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.turn.intent import Intent
from constrained_k2.vllm_plugin.engine_core import patched as scheduler
from constrained_k2.vllm_plugin.shared import row_plan
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.row_plan import SAMPLED_ROWS, NamedRow, PlannedRow, planned_ids, plans_of
from constrained_k2.vllm_plugin.shared.row_probe import STEPS, RowProbe
from constrained_k2.vllm_plugin.worker import patched
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.walks import walk
from tests.vllm_plugin.declining import MaskingEngine
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.patched import patch_vllm
from tests.vllm_plugin.scheduling import admitted, config_of, drafter

# The law, on vLLM's own schedulers


SPEC = {"tools": list(TOOLS[:3]), "tool_choice": "required"}
PARAMETERS = [tool["function"].get("parameters", {}) for tool in TOOLS[:3]]
LENGTH = 110
PROMPT = [1] * 20


def logits_after(prefix: Sequence[int], size: int) -> torch.Tensor:
    """float32 ``[size]``: other ones after every other prefix."""
    chance = np.random.default_rng(zlib.crc32(np.asarray(prefix, dtype=np.int64).tobytes()))
    logits = torch.zeros(size)
    likely = chance.integers(0, size, 12)
    logits[torch.from_numpy(likely)] = torch.from_numpy(chance.uniform(8.0, 16.0, 12).astype(np.float32))
    return logits


class ExaminingEngine(MaskingEngine):
    """Samples the script's token, whatever is likeliest."""

    def __init__(self, *args: Any, size: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.size = size

    def _sample(self, scheduled: SchedulerOutput, masks: GrammarOutput | None) -> ModelRunnerOutput:
        if masks is not None:
            names = reversed(scheduled.num_scheduled_tokens)  # the runner's batch has an order of its own
            drafts = {name: scheduled.scheduled_spec_decode_tokens.get(name, []) for name in names}
            self.masked_logits(scheduled, masks, drafts, lambda _, ids: logits_after(ids, self.size))
        return super()._sample(scheduled, masks)


def engine_of(
    model: Path, vocabulary: Vocabulary, *, interval: int, asynchronous: bool = False, blocks: int = 512, **fields: Any
) -> ExaminingEngine:
    patch_vllm()
    config = config_of(model, max_model_len=160, **fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_plan, "INTERVAL", interval)
        return ExaminingEngine(config, asynchronous=asynchronous, blocks=blocks, size=vocabulary.size)


def scripts_of(vocabulary: Vocabulary, count: int) -> dict[str, list[int]]:
    """Whole turns of one call or more, the longest ones that are no longer than ``LENGTH`` tokens."""
    compiled = Compiler(vocabulary).compile(ToolCallSpec.from_openai(SPEC))
    turns = [walk(compiled.matcher(), vocabulary, seed, PARAMETERS) for seed in range(60)]
    fitting = sorted((ids for ids in turns if len(ids) <= LENGTH), key=len)[-count:]
    assert len(fitting) == count
    return {str(number): ids for number, ids in enumerate(fitting)}


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> EngineCounters:
    """Those of a probe that has just started."""
    probe = RowProbe(found := EngineCounters())
    monkeypatch.setattr(patched, "row_probe", probe)
    monkeypatch.setattr(scheduler, "row_probe", probe)
    return found


def overridden(vocabulary: Vocabulary, ids: list[int]) -> int:
    """The tokens of a turn at which the mask forbids the likeliest one."""
    likeliest = [int(logits_after(ids[:at], vocabulary.size).argmax()) for at in range(len(ids))]
    masks = (mask_after(vocabulary, SPEC, ids[:at]) for at in range(len(ids)))
    return sum(not mask[token >> 5] >> (token & 31) & 1 for token, mask in zip(likeliest, masks, strict=True))


@pytest.mark.slow
def test_every_override_is_counted_and_none_is_invented(
    model: Path, vocabulary: Vocabulary, counters: EngineCounters, *, asynchronous: bool
) -> None:
    engine = engine_of(model, vocabulary, interval=1, asynchronous=asynchronous, speculative_config=None)
    scripts = scripts_of(vocabulary, 3)
    for name, ids in scripts.items():
        engine.add(name, admitted(vocabulary, SPEC, max_tokens=len(ids)), ids, PROMPT)
    engine.run(lambda *_: [])
    assert counters.examined_rows == sum(map(len, scripts.values()))
    assert counters.changed_rows == sum(overridden(vocabulary, ids) for ids in scripts.values()) > 20


def test_rows_of_drafts_and_of_requests_that_are_preempted(
    model: Path, vocabulary: Vocabulary, counters: EngineCounters, *, asynchronous: bool
) -> None:
    """At most four rows of a sampled step are examined, those behind drafts among them."""
    engine = engine_of(model, vocabulary, interval=3, asynchronous=asynchronous, blocks=9)
    scripts = scripts_of(vocabulary, 4)
    requests = [
        engine.add(name, admitted(vocabulary, SPEC, max_tokens=len(ids)), ids, PROMPT) for name, ids in scripts.items()
    ]
    engine.run(drafter(scripts, random.Random(3), vocabulary))
    assert sum(request.num_preemptions for request in requests) > 0, "no request was preempted"
    assert 0 < counters.changed_rows <= counters.examined_rows <= SAMPLED_ROWS * (engine.steps // 3)


# On tensors, behind vLLM's functions that mask


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
    examine(probe, torch.zeros(0, 8), [], torch.zeros(0, 8, dtype=torch.bool))  # nothing is planned
    assert counted(probe) == (1, 0)


class Unfinished:
    """An event of a device that is never done."""

    def query(self) -> bool:
        return False


def test_a_device_that_lags_behind_costs_rows_not_time() -> None:
    probe = RowProbe(EngineCounters())
    steps = probe._results._steps
    for _ in range(STEPS + 5):
        examine(probe, torch.zeros(1, 8), [0], torch.zeros(1, 8, dtype=torch.bool))
        steps[-1] = steps[-1]._replace(done=Unfinished())
    assert counted(probe) == (0, 0)
    assert len(steps) == STEPS
    for number, step in enumerate(steps):
        steps[number] = step._replace(done=None)
    assert counted(probe) == (STEPS, 0)


# Which rows are chosen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "sampled"), [(0, 0), (1, 12), (4, 3), (16, 0)])
def test_one_step_in_some_is_sampled(interval: int, sampled: int) -> None:
    sampler = row_plan.RowSampler(interval)
    found = []
    for _ in range(12):
        found += sampler.choose(planned(0)) if sampler.begin_step() else []
    assert len(found) == sampled


def test_every_row_has_its_turn() -> None:
    sampler, rows = row_plan.RowSampler(1), planned(*range(row_plan.SAMPLED_ROWS * 3 + 1))
    seen: set[int] = set()
    for _ in range(4):
        sampler.begin_step()
        chosen = sampler.choose(rows)
        assert len(chosen) == row_plan.SAMPLED_ROWS
        seen |= {row.request for row in chosen}
    assert seen == {row.request for row in rows}


# vLLM's functions that mask --------------------------------------------------------------------------------------------


def forbid_token_0(worker: Any, logits: torch.Tensor, batch: Any, ids: list[str], masks: Any) -> None:
    """In the place of the V2 runner's method, which needs CUDA streams."""
    logits[:, 0] = -INF


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> RowProbe:
    """The probe of a worker that has just started; vLLM's method is as before afterwards."""
    patch_vllm()
    probe = RowProbe(EngineCounters())
    monkeypatch.setattr(patched, "row_probe", probe)
    replaced = patched.apply_grammar_bitmask_v2(forbid_token_0)
    monkeypatch.setattr(StructuredOutputsWorker, "apply_grammar_bitmask", replaced)
    return probe


PLAN = [PlannedRow(*row) for row in ((0, 0, "b"), (0, 1, "b"), (1, 0, "a"), (2, 0, "gone"))]


def test_masks_in_the_v2_runner(probe: RowProbe) -> None:
    """Requests a, b and c, b with a draft token; also where the device verifies fewer drafts than were scheduled."""
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
