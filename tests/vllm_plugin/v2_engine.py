"""The sampling half of vLLM's V2 model runner on a CPU: its own request states, samplers and kernels, no model.

Logits are random and drafts are given; everything between is vLLM's: what a row is, what was accepted, where tokens
are kept. :mod:`tests.kit.triton_on_cpu` must have been imported before.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.input_batch import (
    combine_sampled_and_draft_tokens,
    expand_idx_mapping,
    post_update,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, build_custom_logits_processors
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.states import RequestState

from tests.vllm_plugin.served import PROCESSOR

SLOTS = 4
LENGTH = 512


class Recorder(LogitsProcessor):
    """Behind the processor under test: keeps what it leaves of each row."""

    def __init__(self) -> None:
        self.steps: list[tuple[LogitsContext, torch.Tensor]] = []

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        return True

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        self.steps.append((ctx, logits.clone()))
        return logits


class V2Engine:
    """Adds, steps and removes requests as ``GPUModelRunner`` does; without ``vllm_config`` it has no processor of ours."""

    def __init__(self, vllm_config: Any, size: int, drafts: int = 0, slots: int = SLOTS) -> None:
        self.size = size
        device = torch.device("cpu")
        self.states = RequestState(slots, LENGTH, LENGTH, drafts, size, device)
        self.recorder = Recorder()
        processors: list[LogitsProcessor] = [self.recorder]
        if vllm_config is not None:
            self.processor, *_ = build_custom_logits_processors(vllm_config, self.states, False, [PROCESSOR])
            processors.insert(0, self.processor)
        config = SimpleNamespace(reasoning_config=None)
        self.sampler = Sampler(
            config, slots, size, device, self.states, num_speculative_tokens=drafts or 1,
            custom_logits_processors=processors,
        )  # fmt: skip
        self.drafts = drafts
        speculative = SimpleNamespace(
            num_speculative_tokens=drafts, enable_adaptive_verification=False, rejection_sample_method="standard"
        )
        self.rejection_sampler = RejectionSampler(self.sampler, speculative, device) if drafts else None

    def begin(self, entering: Mapping[str, tuple[SamplingParams, int, list[int]]]) -> None:
        """Add requests: parameters, length of the prompt, and all tokens (with the output of a resumed one)."""
        for name, (params, prompt_len, ids) in entering.items():
            self.states.add_request(name, prompt_len, ids, 0, LENGTH - prompt_len)
            self.sampler.add_request(self.states.req_id_to_index[name], params)
        if entering:
            self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()

    def step(
        self, batch: Sequence[str], logits: torch.Tensor, drafts: Mapping[str, list[int]] | None = None,
        chunks: Mapping[str, int] | None = None,
    ) -> dict[str, list[int]]:  # fmt: skip
        """Run one step and return the tokens sampled for each request.

        ``logits`` are ``[rows, size]``; ``chunks`` says how many tokens of requests in prefill are computed, all by default.
        """
        states, drafts, chunks = self.states, drafts or {}, chunks or {}
        slots = np.array([states.req_id_to_index[name] for name in batch], dtype=np.intp)
        mapping = torch.from_numpy(slots.astype(np.int64))
        computed = states.num_computed_tokens.gpu[mapping].numpy()
        lengths = states.total_len.gpu[mapping].numpy()
        counts = np.array([len(drafts.get(name, [])) for name in batch], dtype=np.int32)
        prefill = [chunks.get(name, n) for name, n in zip(batch, lengths - computed, strict=True)]
        queries = np.array(prefill, dtype=np.int32) + counts
        starts = np.concatenate(([0], np.cumsum(queries))).astype(np.int32)
        rows = np.concatenate(([0], np.cumsum(counts + 1))).astype(np.int32)
        for name, slot in zip(batch, slots, strict=True):
            given = drafts.get(name, [])
            states.draft_tokens[slot, : len(given)] = torch.tensor(given, dtype=torch.int64)
        input_ids = torch.zeros(starts[-1], dtype=torch.int32)
        positions = torch.zeros(starts[-1], dtype=torch.int64)
        seq_lens = torch.zeros(len(batch), dtype=torch.int32)
        query_start, cu_num_logits = torch.from_numpy(starts), torch.from_numpy(rows)
        prefill_len, computed_gpu = states.prefill_len.gpu, states.num_computed_tokens.gpu
        prepare_prefill_inputs(
            input_ids, states.next_prefill_tokens, mapping, query_start, states.all_token_ids.gpu, prefill_len,
            computed_gpu,
        )  # fmt: skip
        prepare_pos_seq_lens(mapping, query_start, computed_gpu, positions, seq_lens)
        indices = combine_sampled_and_draft_tokens(
            input_ids, mapping, states.last_sampled_tokens, query_start, seq_lens, prefill_len, states.draft_tokens,
            cu_num_logits, int(rows[-1]),
        )  # fmt: skip
        expanded, local = (mapping, torch.zeros(len(batch), dtype=torch.int32))
        if counts.any():
            expanded, local = expand_idx_mapping(mapping, int(rows[-1]), cu_num_logits, self.drafts + 1)
        made = SimpleNamespace(
            req_ids=list(batch), num_reqs=len(batch), idx_mapping=mapping, idx_mapping_np=slots,
            expanded_idx_mapping=expanded, expanded_local_pos=local, num_draft_tokens=int(counts.sum()),
            num_draft_tokens_per_req=counts if counts.any() else None, seq_lens=seq_lens,
            seq_lens_cpu_upper_bound=seq_lens, input_ids=input_ids, positions=positions, logits_indices=indices,
            cu_num_logits=cu_num_logits, cu_num_logits_np=rows,
        )  # fmt: skip
        if counts.any():
            assert self.rejection_sampler is not None
            output = self.rejection_sampler(logits, made)
        else:
            output = self.sampler(logits, made)
        post_update(
            mapping, computed_gpu, states.last_sampled_tokens, self.sampler.penalties_state.output_bin_counts,
            output.sampled_token_ids, output.num_sampled, output.num_rejected, query_start, states.all_token_ids.gpu,
            states.total_len.gpu,
        )  # fmt: skip
        sampled, count = output.sampled_token_ids.tolist(), output.num_sampled.tolist()
        return {name: sampled[row][: count[row]] for row, name in enumerate(batch)}

    def remove(self, name: str) -> None:
        """End or preempt a request."""
        self.states.remove_request(name)
