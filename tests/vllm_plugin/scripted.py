"""A logits processor for tests: pushes the tokens of a script through real vLLM, as far as other masks let them."""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

_PUSH = 1000.0


class ScriptedLogitsProcessor(LogitsProcessor):
    """Raises the logit of the script's token of this step by so much that only -inf can win against it.

    The script is ``vllm_xargs["script"]``, a flat list of token ids; behind its end nothing is raised.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._scripts: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._scripts, batch_update, self._new_request)

    @staticmethod
    def _new_request(
        params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> tuple[list[int], list[int]] | None:
        script = (params.extra_args or {}).get("script")
        return None if script is None else (script, output_ids)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (script, output_ids) in self._scripts.items():
            if len(output_ids) < len(script):
                logits[row, script[len(output_ids)]] += _PUSH
        return logits
