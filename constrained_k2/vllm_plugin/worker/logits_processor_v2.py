"""The logits processor for vLLM's V2 model runner.

That runner keeps what it sampled on the device, and prepares a step while the one before still runs. So the newest
tokens are fetched at the start of a step, ahead of its forward pass, and their masks are made while it runs: the host
waits for the sampling of the last step, never for the device. Draft tokens are an exception: they can be had only
after the forward pass.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.utils.torch_utils import PIN_MEMORY
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from constrained_k2.compiler.compiler import CompiledToolCalls
from constrained_k2.vllm_plugin.shared.matcher_factory import PROMPT_END, MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.worker.device_masks import row_masks
from constrained_k2.vllm_plugin.worker.masked_request import MaskedRequest
from constrained_k2.vllm_plugin.worker.token_history import DraftRows, TokenHistory


@dataclass(slots=True)
class _Entering:
    """A request between its entering a slot and the first step that samples for it."""

    compiled: CompiledToolCalls
    params: SamplingParams
    prompt_end: int  # the position after its prompt
    end: int  # the position after its output so far: a request that was preempted comes back with that
    ids: torch.Tensor | None = None  # the prompt's last tokens and its output, once fetched

    def start(self, factory: MatcherFactory) -> MaskedRequest:
        """The request's matcher, after its output so far."""
        assert self.ids is not None  # fetched in the step that it entered in
        ids = self.ids.tolist()
        shown = min(self.prompt_end, PROMPT_END)
        prompt = PromptInfo(self.prompt_end, ids[:shown])
        turn = MaskedRequest.start(factory, self.compiled, prompt, self.params)
        turn.take(ids[shown:], is_replayed=True)
        return turn


class KimiK2LogitsProcessorV2(LogitsProcessor):
    """Masks the rows of constrained requests. Rows of other requests are neither read nor written."""

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self._factory = MatcherFactory(vllm_config)
        self._states = req_states
        slots, device = req_states.max_num_reqs, req_states.device
        pin = PIN_MEMORY and device.type == "cuda"
        window = vllm_config.num_speculative_tokens + 1
        self._history = TokenHistory(req_states, window, pin=pin)
        self._drafts = DraftRows(slots * window, device, pin=pin)
        self._masks = row_masks(self._factory, slots * window, device, pin=pin)
        self._ours = np.zeros(slots, dtype=bool)  # slots whose rows are masked
        self._requests: dict[int, MaskedRequest] = {}
        self._entering: dict[int, _Entering] = {}
        # vLLM does not say when a slot becomes free. So tokens are fetched ahead only while constrained requests are
        # being sampled: within as many steps as there may be batches in turn.
        self._batches = vllm_config.parallel_config.pipeline_parallel_size
        self._idle_steps = self._batches
        self._fetched = False

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take over a slot, whose last request is gone; whether the new one is constrained."""
        self._ours[req_idx] = False
        self._requests.pop(req_idx, None)
        self._entering.pop(req_idx, None)
        try:
            compiled = self._factory.compile(sampling_params)
            if compiled is None:
                return False
            prompt_end, end = int(self._states.prompt_len.np[req_idx]), int(self._states.prefill_len.np[req_idx])
            self._entering[req_idx] = _Entering(compiled, sampling_params, prompt_end, end)
        except Exception as error:  # noqa: BLE001 - an error that leaves a logits processor ends the whole engine
            self._requests[req_idx] = MaskedRequest.refused(self._factory, error)
        self._ours[req_idx] = True
        return True

    def apply_staged_writes(self) -> None:
        """Begin to fetch the newest tokens; called once a step, before its forward pass."""
        self._masks.begin()
        self._idle_steps += 1
        entering = {slot: new for slot, new in self._entering.items() if new.ids is None}
        self._fetched = bool(entering) or self._idle_steps <= self._batches
        if self._fetched:
            stretches = ((slot, max(0, new.prompt_end - PROMPT_END), new.end) for slot, new in entering.items())
            for new, ids in zip(entering.values(), self._history.fetch(*stretches), strict=True):
                new.ids = ids

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Mask the constrained rows of float32 ``[rows, width]``: one a request, or one more than it has drafts."""
        # Large batches with drafts come in several calls.
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
                self._requests[int(batch[row])].mask(self._masks, row)
        else:
            self._mask_drafts(rows)
        self._masks.apply(logits)
        return logits

    def _mask_drafts(self, rows: int) -> None:
        slots, offsets, tokens = self._drafts.wait(rows).tolist()
        starts = [row for row, offset in enumerate(offsets) if offset == 0]
        for start, end in pairwise([*starts, rows]):
            if self._ours[slots[start]]:
                self._requests[slots[start]].mask_drafts(self._masks, start, tokens[start + 1 : end])

    def _catch_up(self, slot: int) -> None:
        entering = self._entering.pop(slot, None)
        if entering is not None:
            self._requests[slot] = entering.start(self._factory)
        turn = self._requests[slot]
        turn.take(self._history.since(slot, int(self._states.prompt_len.np[slot]) + turn.num_tokens))
