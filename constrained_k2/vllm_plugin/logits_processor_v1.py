"""The logits processor for vLLM's V1 model runner."""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from constrained_k2.vllm_plugin.first_choices import FirstChoices
from constrained_k2.vllm_plugin.row_masks import RowMasks
from constrained_k2.vllm_plugin.turn import Turn
from constrained_k2.vllm_plugin.turns import Prompt, TurnMaker


class _Request:
    """One row of the batch: its turn, and vLLM's own list of its output, which grows as vLLM samples."""

    def __init__(self, turn: Turn, output_ids: list[int]) -> None:
        self.turn = turn
        self._output_ids = output_ids

    def catch_up(self) -> None:
        """Take the tokens that vLLM has sampled, or taken back, since the last time."""
        turn, ids = self.turn, self._output_ids
        if len(ids) < turn.num_tokens:
            turn.take_back(turn.num_tokens - len(ids))
        known = len(ids)
        while known > turn.num_tokens and ids[known - 1] < 0:  # -1 stands for a token not known yet
            known -= 1
        turn.take(ids[turn.num_tokens : known])


class KimiK2LogitsProcessorV1(LogitsProcessor):
    """Masks the rows of constrained requests. Rows of other requests are neither read nor written.

    Made by :class:`constrained_k2.vllm_plugin.KimiK2LogitsProcessor`.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001 - vLLM's
        self._maker = TurnMaker(vllm_config)
        self._requests: dict[int, _Request] = {}
        rows = vllm_config.scheduler_config.max_num_seqs
        counted = FirstChoices(self._maker.settings.first_choices)
        self._masks = RowMasks(self._maker.vocabulary.size, rows, device, counted, pin=is_pin_memory)

    def is_argmax_invariant(self) -> bool:
        """A mask changes which token is likeliest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests as they enter, leave and move in the batch."""
        process_dict_updates(self._requests, batch_update, self._new_request)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the constrained rows in place.

        Args:
            logits: float32 ``[batch, width]`` on the model's device.
        """
        if self._requests:
            self._masks.begin()
            for row, request in self._requests.items():
                request.catch_up()
                request.turn.mask(self._masks, row)
            self._masks.apply(logits)
        return logits

    def _new_request(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> _Request | None:
        try:
            compiled = self._maker.compile(params)
            if compiled is None:
                return None
            prompt = Prompt(len(prompt_ids), prompt_ids[-1]) if prompt_ids else Prompt(0, None)
            turn = self._maker.start(compiled, prompt, params)
        except Exception as error:  # noqa: BLE001 - an error that leaves a logits processor ends the whole engine
            turn = self._maker.failed(error)
        return _Request(turn, output_ids)
