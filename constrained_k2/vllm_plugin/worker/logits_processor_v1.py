"""The logits processor for vLLM's V1 model runner."""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from constrained_k2.vllm_plugin.shared.matcher_factory import PROMPT_END, MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.worker.device_masks import row_masks
from constrained_k2.vllm_plugin.worker.masked_request import MaskedRequest


def _catch_up(turn: MaskedRequest, ids: list[int]) -> None:
    """Take the tokens that vLLM has sampled, or taken back, since the last time."""
    if len(ids) < turn.num_tokens:
        turn.take_back(turn.num_tokens - len(ids))
    known = len(ids)
    while known > turn.num_tokens and ids[known - 1] < 0:  # -1 stands for a token not known yet
        known -= 1
    turn.take(ids[turn.num_tokens : known])


class KimiK2LogitsProcessorV1(LogitsProcessor):
    """Masks the rows of constrained requests. Rows of other requests are neither read nor written."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001 - vLLM's
        self._factory = MatcherFactory(vllm_config)
        # The rows of the batch: each with vLLM's own list of its output, which grows as vLLM samples.
        self._requests: dict[int, tuple[MaskedRequest, list[int]]] = {}
        rows = vllm_config.scheduler_config.max_num_seqs
        self._masks = row_masks(self._factory, rows, device, pin=is_pin_memory)

    def is_argmax_invariant(self) -> bool:
        """A mask changes which token is likeliest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests as they enter, leave and move in the batch."""
        process_dict_updates(self._requests, batch_update, self._new_request)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the constrained rows of float32 ``[batch, width]`` in place."""
        if self._requests:
            self._masks.begin()
            for row, (turn, output_ids) in self._requests.items():
                _catch_up(turn, output_ids)
                turn.mask(self._masks, row)
            self._masks.apply(logits)
        return logits

    def _new_request(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> tuple[MaskedRequest, list[int]] | None:
        try:
            compiled = self._factory.compile(params)
        except Exception as error:  # noqa: BLE001 - an error that leaves a logits processor ends the whole engine
            return MaskedRequest.refused(self._factory, error), output_ids
        if compiled is None:
            return None
        prompt = PromptInfo(len(prompt_ids), prompt_ids[-PROMPT_END:]) if prompt_ids else PromptInfo(0, ())
        turn = MaskedRequest.start(self._factory, compiled, prompt, params)
        turn.take([token for token in output_ids if token >= 0], is_replayed=True)
        return turn, output_ids
