"""The law of examined rows, on vLLM's own schedulers: every override is counted, and none is invented."""

import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from constrained_k2 import Compiler, ToolCallSpec, Vocabulary
from constrained_k2.vllm_plugin.engine_core import scheduler
from constrained_k2.vllm_plugin.shared import row_plan
from constrained_k2.vllm_plugin.shared.counters import EngineCounters
from constrained_k2.vllm_plugin.shared.row_plan import SAMPLED_ROWS
from constrained_k2.vllm_plugin.shared.row_probe import RowProbe
from constrained_k2.vllm_plugin.worker import patched_rows
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.walks import walk
from tests.vllm_plugin.declining import MaskingEngine
from tests.vllm_plugin.masks import mask_after
from tests.vllm_plugin.patched import patch_vllm
from tests.vllm_plugin.scheduling import admitted, config_of, drafter

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


def is_overridden(prefix: Sequence[int], mask: np.ndarray, size: int) -> bool:
    """True if a mask, int32 ``[words]``, forbids the likeliest token after a prefix."""
    likeliest = int(logits_after(prefix, size).argmax())
    return not mask[likeliest >> 5] >> (likeliest & 31) & 1


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
    monkeypatch.setattr(patched_rows, "row_probe", probe)
    monkeypatch.setattr(scheduler, "row_probe", probe)
    return found


def overridden(vocabulary: Vocabulary, ids: list[int]) -> int:
    """The overrides of a turn, found one by one."""
    masks = (mask_after(vocabulary, SPEC, ids[:at]) for at in range(len(ids)))
    return sum(is_overridden(ids[:at], mask, vocabulary.size) for at, mask in enumerate(masks))


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


def test_nothing_is_examined_where_it_is_off(model: Path, vocabulary: Vocabulary, counters: EngineCounters) -> None:
    engine = engine_of(model, vocabulary, interval=0)
    scripts = scripts_of(vocabulary, 1)
    engine.add("0", admitted(vocabulary, SPEC, max_tokens=LENGTH), scripts["0"], PROMPT)
    engine.run()
    assert counters.examined_rows == 0
