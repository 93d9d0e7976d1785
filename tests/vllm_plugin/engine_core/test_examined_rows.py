"""Examined rows: what is found of each, which are chosen, and by the law that every override is counted and none is invented."""

import inspect
import itertools
import math
import pickle
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import model_runner as gpu_model_runner_v2

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.turn.intent import Intent
from constrained_k2.vllm_plugin.shared import row_plan, row_probe
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.row_plan import SAMPLED_ROWS, NamedRow, PlannedRow, planned_ids, plans_of
from constrained_k2.vllm_plugin.shared.row_probe import STEPS
from constrained_k2.vllm_plugin.worker import patched
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.walks import walk
from tests.vllm_plugin.declining import MaskingEngine
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.scheduling import admitted, config_of, drafter
from tests.vllm_plugin.served import left

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


def examine(logits: torch.Tensor, rows: list[int], forbidden: torch.Tensor) -> None:
    with row_probe.row_probe.around(logits, rows):
        logits[forbidden] = -INF


def counted(counters: EngineCounters) -> tuple[float, float]:
    """The examined rows, and those of them whose likeliest token was forbidden."""
    row_probe.row_probe.count()
    return counters.examined_rows, counters.changed_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_found_of_a_row(counters: EngineCounters, dtype: torch.dtype) -> None:
    """Rows that are missing, or whose logits are NaN, count as none."""
    torch.manual_seed(7)
    examined = changed = 0
    for _ in range(10):
        logits = (torch.randn(7, 500) * 4).to(dtype)
        logits[:, 490:] = -INF  # what others have forbidden
        logits[6] = math.nan
        forbidden = torch.rand(7, 500) < torch.tensor([0.0, 0.1, 0.5, 0.9, 0.99, 0.5, 0.5])[:, None]
        rows = [4, 0, 3, 2]
        examined += len(rows)
        changed += sum(bool(forbidden[row, int(logits[row].argmax())]) for row in rows)
        examine(logits, [-1, 6, *rows], forbidden)
        assert counted(counters) == (examined, changed)
    examine(torch.zeros(0, 8), [], torch.zeros(0, 8, dtype=torch.bool))  # nothing is planned
    assert counted(counters) == (examined, changed)
    assert 0 < changed < examined


def test_a_device_that_lags_behind_costs_rows_not_time(counters: EngineCounters) -> None:
    steps = row_probe.row_probe._results._steps
    for _ in range(STEPS + 5):
        examine(torch.zeros(1, 8), [0], torch.zeros(1, 8, dtype=torch.bool))
        steps[-1] = steps[-1]._replace(done=Mock(**{"query.return_value": False}))
    assert counted(counters) == (0, 0)
    for number, step in enumerate(steps):
        steps[number] = step._replace(done=None)
    assert counted(counters) == (STEPS, 0)


@pytest.mark.parametrize(("interval", "sampled"), [(0, 0), (1, 12), (4, 3), (16, 0)])
def test_one_step_in_some_is_sampled(interval: int, sampled: int) -> None:
    sampler = row_plan.RowSampler(interval)
    assert sum(sampler.begin_step() for _ in range(12)) == sampled


def test_every_row_has_its_turn() -> None:
    sampler, rows = row_plan.RowSampler(1), range(SAMPLED_ROWS * 3 + 1)
    chosen = [sampler.choose(rows) for _ in range(4)]
    assert {len(each) for each in chosen} == {SAMPLED_ROWS}
    assert set(itertools.chain(*chosen)) == set(rows)


PLAN = [PlannedRow(*row) for row in (("b", 0), ("b", 1), ("a", 0), ("gone", 0))]
INTENT = Intent(np.arange(4, dtype=np.int32), 9, 0.5)


@pytest.mark.parametrize(("ends", "found"), [([0, 1, 3, 4], (3, 2)), ([0, 1, 2, 3], (2, 1))])
def test_rows_in_the_v2_runner(counters: EngineCounters, ends: list[int], found: tuple[int, int]) -> None:
    """Requests a, b and c. Of the two drafts of b, the device verifies one or none: its other rows are none.

    Its first row means its call; the second one does not, and is declined.
    """

    def forbid_token_0(worker: Any, logits: torch.Tensor, batch: Any, ids: list[str], masks: Any) -> None:
        logits[:, 0] = -INF  # in the place of the runner's method, which needs CUDA streams

    batch = SimpleNamespace(req_ids=["a", "b", "c"], cu_num_logits=torch.tensor(ends, dtype=torch.int32))
    named = {row: NamedRow((row.request_id, 0), INTENT) for row in (*PLAN[:2], PlannedRow("b", 2), PLAN[3])}
    logits = torch.zeros(ends[-1], 32)
    logits[0, 0] = logits[1, 2] = 9.0
    logits[2:, 1] = 0.5
    ids = planned_ids(["b", "a", "gone"], PLAN, named)
    patched.apply_grammar_bitmask_v2(forbid_token_0)(None, logits, batch, ids, np.zeros((4, 1)))
    assert counted(counters) == found
    expected = [{*range(1, 32)}] * len(logits)
    if len(logits) == 4:
        expected[2] = {INTENT.closing}
    assert [left(row) for row in logits] == expected


def test_a_plan_travels_with_the_ids() -> None:
    """Through pickling, and where a runner keeps a part of the ids, as vLLM 0.33's sharded sampling does."""
    ids = planned_ids(["b", "a", "gone", "d"], PLAN, {PLAN[2]: NamedRow(("a", 0), INTENT)})
    assert ids == ["b", "a", "gone", "d"] and type(ids[3]) is str
    sent = pickle.loads(pickle.dumps(ids))
    assert sent == ids and {each: number for number, each in enumerate(sent)}["a"] == 1
    plan, named = plans_of([sent[at] for at in (1, 2)])
    ((row, (_, intent)),) = named.items()
    assert (plan, row, intent.meant.tolist()) == (PLAN[2:], PLAN[2], [0, 1, 2, 3])


def test_what_is_replaced_is_what_the_runners_call() -> None:
    v1 = inspect.unwrap(gpu_model_runner.GPUModelRunner.sample_tokens).__code__.co_names
    v2 = inspect.unwrap(gpu_model_runner_v2.GPUModelRunner.sample).__code__.co_names
    assert "apply_grammar_bitmask" in v1
    assert {"structured_outputs_worker", "apply_grammar_bitmask"} <= set(v2)
