"""A scripted engine with known logits: vLLM's own scheduler and its function that masks, and a row's logits by its prefix."""

import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker import gpu_model_runner

from tests.vllm_plugin.scheduling import ScriptedEngine


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


class ExaminingEngine(ScriptedEngine):
    """Masks rows of logits as a V1 model runner does; what is sampled is the script's token, whatever is likeliest."""

    def __init__(self, *args: Any, size: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.size = size

    def _sample(self, scheduled: SchedulerOutput, masks: GrammarOutput | None) -> ModelRunnerOutput:
        if masks is not None:
            names = list(reversed(scheduled.num_scheduled_tokens))  # the runner's batch has an order of its own
            rows = [
                logits_after([*self.outputs[name], *drafts[:offset]], self.size)
                for name in names
                for drafts in [scheduled.scheduled_spec_decode_tokens.get(name, [])]
                for offset in range(len(drafts) + 1)
            ]
            batch = SimpleNamespace(req_ids=names)
            gpu_model_runner.apply_grammar_bitmask(scheduled, masks, batch, torch.stack(rows))
        return super()._sample(scheduled, masks)
