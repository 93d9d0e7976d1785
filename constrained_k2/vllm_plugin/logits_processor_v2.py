"""The logits processor for vLLM's V2 model runner.

That runner keeps what it sampled on the device, and prepares a step while the one before still runs. So the newest
tokens are fetched at the start of a step, ahead of its forward pass, and their masks are made while it runs: the host
waits for the sampling of the last step, never for the device. Draft tokens are an exception: they can be had only
behind the forward pass.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.utils.torch_utils import PIN_MEMORY
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from constrained_k2.compiler import CompiledToolCalls
from constrained_k2.vllm_plugin.first_choices import FirstChoices
from constrained_k2.vllm_plugin.row_masks import RowMasks
from constrained_k2.vllm_plugin.token_history import DraftRows, TokenHistory
from constrained_k2.vllm_plugin.turn import Turn
from constrained_k2.vllm_plugin.turns import Prompt, TurnMaker


class _Entering:
    """A request between its entering a slot and the first step that samples for it.

    Args:
        compiled: Its grammar.
        params: Its sampling parameters.
        prompt_end: The position behind its prompt.
        end: The position behind its output so far: a request that was preempted comes back with that.

    Attributes:
        stretch: Where its last prompt token and its output stand: first position, position behind the last.
        ids: These tokens, once fetched.
    """

    def __init__(self, compiled: CompiledToolCalls, params: SamplingParams, prompt_end: int, end: int) -> None:
        self.stretch = (max(0, prompt_end - 1), end)
        self.ids: torch.Tensor | None = None
        self._compiled = compiled
        self._params = params
        self._prompt_length = prompt_end

    def start(self, maker: TurnMaker) -> Turn:
        """The request's turn, as far as it has come."""
        assert self.ids is not None  # fetched in the step that it entered in
        ids = self.ids.tolist()
        last_id = ids.pop(0) if self._prompt_length else None
        turn = maker.start(self._compiled, Prompt(self._prompt_length, last_id), self._params)
        turn.take(ids)
        return turn


class KimiK2LogitsProcessorV2(LogitsProcessor):
    """Masks the rows of constrained requests. Rows of other requests are neither read nor written.

    Made by :class:`constrained_k2.vllm_plugin.KimiK2LogitsProcessor`.

    Args:
        vllm_config: vLLM's ``VllmConfig``.
        req_states: The model runner's tokens, on the device.
    """

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self._maker = TurnMaker(vllm_config)
        self._states = req_states
        slots, device = req_states.max_num_reqs, req_states.device
        pin = PIN_MEMORY and device.type == "cuda"
        window = vllm_config.num_speculative_tokens + 1
        self._history = TokenHistory(req_states, window, pin=pin)
        self._drafts = DraftRows(slots * window, device, pin=pin)
        counted = FirstChoices(self._maker.settings.first_choices)
        self._masks = RowMasks(self._maker.vocabulary.size, slots * window, device, counted, pin=pin)
        self._ours = np.zeros(slots, dtype=bool)  # slots whose rows are masked
        self._turns: dict[int, Turn] = {}
        self._entering: dict[int, _Entering] = {}
        # A slot is not said to be free. So tokens are fetched ahead only while constrained requests are being sampled:
        # within as many steps as there may be batches in turn.
        self._batches = vllm_config.parallel_config.pipeline_parallel_size
        self._idle_steps = self._batches
        self._fetched = False

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take over a slot, whatever it held.

        Returns:
            Whether the request is constrained.
        """
        self._ours[req_idx] = False
        self._turns.pop(req_idx, None)
        self._entering.pop(req_idx, None)
        try:
            compiled = self._maker.compile(sampling_params)
            if compiled is None:
                return False
            prompt_end, end = int(self._states.prompt_len.np[req_idx]), int(self._states.prefill_len.np[req_idx])
            self._entering[req_idx] = _Entering(compiled, sampling_params, prompt_end, end)
        except Exception as error:  # noqa: BLE001 - an error that leaves a logits processor ends the whole engine
            self._turns[req_idx] = self._maker.failed(error)
        self._ours[req_idx] = True
        return True

    def apply_staged_writes(self) -> None:
        """Begin to fetch the newest tokens; called once a step, before its forward pass."""
        self._masks.begin()
        self._idle_steps += 1
        entering = {slot: new for slot, new in self._entering.items() if new.ids is None}
        self._fetched = bool(entering) or self._idle_steps <= self._batches
        if self._fetched:
            stretches = self._history.fetch(*((slot, *new.stretch) for slot, new in entering.items()))
            for new, ids in zip(entering.values(), stretches, strict=True):
                new.ids = ids

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Mask the constrained rows in place.

        Args:
            logits: float32 ``[rows, width]`` on the model's device; one row a request, or one more than it has drafts.
            ctx: The step's layout. Large batches with drafts come in several calls.
        """
        batch = ctx.idx_mapping_np
        ours = np.flatnonzero(self._ours[batch]).tolist()
        if not ours:
            return logits
        self._idle_steps = 0
        rows = len(logits)
        if rows != len(batch):
            self._drafts.start(ctx)
        if not self._fetched:
            self._history.fetch()
            self._fetched = True
        self._history.wait()
        for position in ours:
            self._catch_up(int(batch[position]))
        if rows == len(batch):
            for row in ours:
                self._turns[int(batch[row])].mask(self._masks, row)
        else:
            self._mask_drafts(rows)
        self._masks.apply(logits)
        return logits

    def _mask_drafts(self, rows: int) -> None:
        slots, offsets, tokens = self._drafts.wait(rows).tolist()
        starts = [row for row, offset in enumerate(offsets) if offset == 0]
        for start, end in pairwise([*starts, rows]):
            if self._ours[slots[start]]:
                self._turns[slots[start]].mask_drafts(self._masks, start, tokens[start + 1 : end])

    def _catch_up(self, slot: int) -> None:
        """Have a slot's turn take what was sampled for it since it was last looked at."""
        entering = self._entering.pop(slot, None)
        if entering is not None:
            self._turns[slot] = entering.start(self._maker)
        turn = self._turns[slot]
        turn.take(self._history.since(slot, int(self._states.prompt_len.np[slot]) + turn.num_tokens))
