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

from constrained_k2.explain.records import ExaminedRow
from constrained_k2.vllm_plugin.metrics.row_plan import OUTPUT_FIELD
from tests.vllm_plugin.scheduling import ScriptedEngine


def logits_after(prefix: Sequence[int], size: int) -> torch.Tensor:
    """float32 ``[size]``: other ones after every other prefix."""
    chance = np.random.default_rng(zlib.crc32(np.asarray(prefix, dtype=np.int64).tobytes()))
    logits = torch.zeros(size)
    likely = chance.integers(0, size, 12)
    logits[torch.from_numpy(likely)] = torch.from_numpy(chance.uniform(8.0, 16.0, 12).astype(np.float32))
    return logits


def expected_row(position: int, prefix: Sequence[int], mask: np.ndarray, size: int) -> ExaminedRow:
    """The row that an examination under this mask, int32 ``[words]``, must yield."""
    probabilities = torch.softmax(logits_after(prefix, size).double(), 0)
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[:size].astype(bool)
    of_forbidden = probabilities * torch.from_numpy(~allowed)
    wanted, is_overridden = int(of_forbidden.argmax()), not allowed[int(probabilities.argmax())]
    forbidden = float(of_forbidden.sum())
    return ExaminedRow(position, (), wanted, is_overridden, float(of_forbidden[wanted]), forbidden, int(allowed.sum()))


class ExaminingEngine(ScriptedEngine):
    """Masks rows of logits as a V1 model runner does; what is sampled is the script's token, whatever is likeliest.

    ``sent`` holds the examined rows that came with the outputs, by the keys of their requests.
    """

    def __init__(self, *args: Any, size: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.size = size
        self.sent: dict[str, list[ExaminedRow]] = {}

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

    def _update(self, scheduled: SchedulerOutput, sampled: ModelRunnerOutput) -> None:
        for outputs in self.scheduler.update_from_output(scheduled, sampled).values():
            for output in outputs.outputs:
                if output.finish_reason is not None:
                    self.reasons[output.request_id] = str(output.finish_reason)
                if output.kv_transfer_params is not None:
                    sent = output.kv_transfer_params[OUTPUT_FIELD]
                    self.sent.setdefault(sent["key"], []).extend(map(ExaminedRow.from_list, sent["rows"]))
