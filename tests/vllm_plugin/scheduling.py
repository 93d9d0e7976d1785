"""vLLM's own schedulers and our manager of structured outputs, with a script where the model would be."""

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from constrained_k2 import ToolCall, Vocabulary, render_tool_calls
from constrained_k2.vllm_plugin.engine_core.patched import constraining
from constrained_k2.vllm_plugin.engine_core.structured_output import ConstrainedOutputManager
from constrained_k2.vllm_plugin.shared.constraint import tag
from tests.vllm_plugin.masks import mask_after

STRIDES = "mask_stride" in StructuredOutputManager.grammar_bitmask.__code__.co_varnames

Draft = Callable[[str, int], list[int]]
"""What a drafter proposes for a request whose output has that many tokens."""

DRAFTS = 4


def config_of(model: Path, **fields: Any) -> VllmConfig:
    """A server's configuration on the backend route, with n-gram speculation."""
    ngram = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 2}
    given = {
        "trust_remote_code": True, "max_model_len": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 8, "enable_prefix_caching": False,
        "speculative_config": ngram, "additional_config": {"constrained_k2": {"route": "structured_output"}},
    }  # fmt: skip
    return EngineArgs(model=str(model), **(given | fields)).create_engine_config()


def admitted(
    vocabulary: Vocabulary, spec: Any = None, *, precompile: Sequence[int] | None = None, **fields: Any
) -> SamplingParams:
    """Parameters as they reach the engine core: with the model's stops, and marked if there is a spec, a request's body.

    ``precompile`` are the tools to compile before the request is scheduled; None for all.
    """
    extra = None if spec is None else {"constrained_k2": json.dumps(spec)}
    params = SamplingParams(extra_args=extra, **({"max_tokens": 1000} | fields))
    params.update_from_generation_config({"eos_token_id": list(vocabulary.format.stop_ids)}, vocabulary.format.turn_end)
    if spec is not None:
        tag(params, range(len(spec["tools"])) if precompile is None else precompile)
    return params


class ScriptedEngine:
    """Steps as vLLM's ``EngineCore`` does; what is sampled is the next token of the request's script.

    Every row that vLLM makes for a scripted position is kept in ``rows``, and a token that its row forbids raises.
    """

    def __init__(self, config: VllmConfig, *, asynchronous: bool, blocks: int = 512) -> None:
        config.scheduler_config.async_scheduling = asynchronous
        self.manager = ConstrainedOutputManager(config)
        config.cache_config.num_gpu_blocks = blocks  # what an engine core finds out from its workers
        attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
        self.scheduler = constraining(AsyncScheduler if asynchronous else Scheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
            structured_output_manager=self.manager,
            block_size=16,
            hash_block_size=16,
        )
        self._asynchronous = asynchronous
        self.scripts: dict[str, Sequence[int]] = {}
        self._drafted: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.rows: dict[str, dict[int, np.ndarray]] = {}
        self.steps = 0

    def add(
        self, request_id: str, params: SamplingParams, script: Sequence[int], prompt: Sequence[int] = (1, 2)
    ) -> Request:
        """Have a request scheduled, whose grammar is compiled as in the engine core."""
        request = Request(request_id, list(prompt), params, None)
        self.manager.grammar_init(request)
        self.scheduler.add_request(request)
        self.scripts[request_id] = script
        self.outputs[request_id], self.rows[request_id] = [], {}
        return request

    def run(self, draft: Draft = lambda *_: [], limit: int = 5_000) -> None:
        """Step until no request is left."""
        before: tuple[SchedulerOutput, ModelRunnerOutput] | None = None
        for turn in count():
            if not self.scheduler.has_requests() and before is None:
                break
            assert turn < limit, "the requests never finish"
            scheduled = self.scheduler.schedule() if self.scheduler.has_requests() else None
            if before is not None:  # asynchronous: the step before is answered for when this one is scheduled already
                self._update(*before)
                before = None
                if scheduled is not None:
                    self.scheduler.update_draft_token_ids_in_output(self._drafts(scheduled), scheduled)
            if scheduled is None or not scheduled.total_num_scheduled_tokens:
                if scheduled is not None:
                    self._update(scheduled, ModelRunnerOutput([], {}))
                time.sleep(0.01)  # a thread, or xgrammar's process, is compiling a grammar
                continue
            self.steps += 1
            sampled = self._sample(scheduled, self.scheduler.get_grammar_bitmask(scheduled))
            if self._asynchronous:
                before = scheduled, sampled
            else:
                self._update(scheduled, sampled)
            for name in scheduled.num_scheduled_tokens:
                self._drafted[name] = list(draft(name, len(self.outputs[name])))
            if not self._asynchronous:
                self.scheduler.update_draft_token_ids(self._drafts(scheduled))

    def choose(self, name: str, at: int, token: int, row: np.ndarray) -> int:
        """The token that is sampled from a row; ``token`` is the script's."""
        assert row[token >> 5] >> (token & 31) & 1, f"{name}: {token} at {at} is forbidden"
        return token

    def _drafts(self, scheduled: SchedulerOutput) -> DraftTokenIds:
        names = list(scheduled.num_scheduled_tokens)
        return DraftTokenIds(names, [list(self._drafted.get(name, [])) for name in names])

    def _sample(self, scheduled: SchedulerOutput, masks: GrammarOutput | None) -> ModelRunnerOutput:
        names = list(scheduled.num_scheduled_tokens)
        rows = self._rows_of(scheduled, masks)
        sampled = []
        for name in names:
            script, start = self.scripts[name], len(self.outputs[name])
            drafts = scheduled.scheduled_spec_decode_tokens.get(name, [])
            if self._asynchronous:  # the workers have them; where one is illegal the scheduler's copy says so
                drafts = self._drafted.get(name, [])[: len(drafts)]
            taken: list[int] = []
            for offset in range(len(drafts) + 1):
                token = script[start + offset] if start + offset < len(script) else script[-1]
                if name in rows:
                    row = rows[name][offset]
                    token = self.choose(name, start + offset, token, row)
                    self.rows[name][start + offset] = row
                taken.append(token)
                if offset < len(drafts) and drafts[offset] != token:
                    break
            self.outputs[name] += taken
            sampled.append(taken)
        return ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)

    def _rows_of(self, scheduled: SchedulerOutput, masks: GrammarOutput | None) -> Mapping[str, np.ndarray]:
        """Each structured request's rows, one a draft and one more, as the model runners read them."""
        rows: dict[str, np.ndarray] = {}
        at = 0
        for name in masks.structured_output_request_ids if masks is not None else ():
            count = 1 + len(scheduled.scheduled_spec_decode_tokens.get(name, ()))
            assert masks is not None
            rows[name] = masks.grammar_bitmask[at : at + count].copy()
            # Since vLLM 0.33 each request has as many rows as any may have.
            at += 1 + self.manager.vllm_config.num_speculative_tokens if STRIDES else count
        return rows

    def _update(self, scheduled: SchedulerOutput, sampled: ModelRunnerOutput) -> None:
        for outputs in self.scheduler.update_from_output(scheduled, sampled).values():
            for output in outputs.outputs:
                if output.finish_reason is not None:
                    self.reasons[output.request_id] = str(output.finish_reason)


def drafter(scripts: Mapping[str, Sequence[int]], chance: random.Random, vocabulary: Vocabulary) -> Draft:
    """Drafts that begin as the script goes on, some wrong at some place, some running past the stop, some of padding."""

    def draft(name: str, written: int) -> list[int]:
        script = scripts[name]
        right = [*script[written : written + DRAFTS], *([script[-1]] * DRAFTS)][:DRAFTS]
        kind = chance.randrange(4)
        if kind == 1:
            right[chance.randrange(DRAFTS)] = chance.choice([0, 5, *vocabulary.special_tokens.values()])
        if kind == 2:
            cut = chance.randrange(DRAFTS)
            right[cut:] = [-1] * (DRAFTS - cut)
        return right if kind else []

    return draft


def turn_of(vocabulary: Vocabulary, *calls: tuple[str, str], text: str = "") -> list[int]:
    """A whole turn of calls ``(name, arguments)``, with its stop."""
    made = [ToolCall(name, index, arguments) for index, (name, arguments) in enumerate(calls)]
    return [*vocabulary.encode(text), *render_tool_calls(made, vocabulary), vocabulary.format.turn_end]


def assert_masks(
    engine: ScriptedEngine, vocabulary: Vocabulary, name: str, spec: Any, places: Iterable[int], **options: Any
) -> None:
    """The rows at these places of a request's output are the masks of a matcher that has seen its tokens alone."""
    for at in places:
        fresh = mask_after(vocabulary, spec, engine.outputs[name][:at], **options)
        assert np.array_equal(engine.rows[name][at], fresh), (name, at)
