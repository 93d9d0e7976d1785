"""A logits processor for tests: counts, in whichever process masks, what no request of the tests makes ours count."""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.row_plan import SAMPLED_ROWS
from constrained_k2.vllm_plugin.shared.row_probe import row_probe


class CountingLogitsProcessor(LogitsProcessor):
    """Says of each request with ``vllm_xargs["counted"]`` that it was ended early, and examines its rows as if all were masked."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, bool] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._new_request)

    @staticmethod
    def _new_request(params: SamplingParams, prompt_ids: Any, output_ids: Any) -> bool | None:
        if "counted" not in (params.extra_args or {}):
            return None
        engine_counters.ended_early += 1
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._rows:
            engine_counters.masked_steps += 1
            with row_probe.around(logits, list(self._rows)[:SAMPLED_ROWS]):
                for row in self._rows:
                    if logits[row].isfinite().sum() > 1:  # a marker that is due is left: another token would be illegal
                        logits[row, logits[row].argmax()] = -float("inf")
        return logits
