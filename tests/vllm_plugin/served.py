"""The logits processor without a model: the parts of vLLM's configuration that it reads, requests, and their rows."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate

from constrained_k2 import Vocabulary
from constrained_k2.vllm_plugin import KimiK2LogitsProcessor
from tests.kit.tools import tool

CPU = torch.device("cpu")
NEVER = float("-inf")
PROCESSOR = "constrained_k2.vllm_plugin:KimiK2LogitsProcessor"
EMPTY = tool("f", {"type": "object", "additionalProperties": False})
REQUIRED = {"tools": [EMPTY], "tool_choice": "required"}


def vllm_config(
    directory: Path, vocabulary: Vocabulary, drafts: int = 0, *, trace_replay: bool = False, **fields: Any
) -> SimpleNamespace:
    """A configuration that serves the tokenizer in a directory, with so many speculative tokens."""
    model = SimpleNamespace(
        tokenizer=str(directory),
        get_vocab_size=lambda: vocabulary.size,
        tokenizer_revision=None,
        trust_remote_code=True,
        max_model_len=4096,
        enable_trace_replay=trace_replay,
    )
    config = SimpleNamespace(
        model_config=model,
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        additional_config={"constrained_k2": {"undeclared_calls": "nearest"}},  # random logits mean no call
        speculative_config=SimpleNamespace(rejection_sample_method="standard") if drafts else None,
        diffusion_config=None,
        num_speculative_tokens=drafts,
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )
    vars(config).update(fields)
    return config


def asking(body: Any = None, extra: Any = None, **fields: Any) -> SamplingParams:
    """A request's parameters: its constraint, and more, in ``vllm_xargs``."""
    given = ({} if body is None else {"constrained_k2": json.dumps(body)}) | (extra or {})
    return SamplingParams(extra_args=given or None, **fields)


def update(**changes: Any) -> BatchUpdate:
    return BatchUpdate(**({"batch_size": 8, "removed": [], "added": [], "moved": []} | changes))


def left(row: torch.Tensor) -> set[int]:
    """The tokens that are not masked."""
    return set(torch.nonzero(row > NEVER).flatten().tolist())


class OneRow:
    """One request in the V1 logits processor, and what it has written."""

    def __init__(self, model: Path, vocabulary: Vocabulary, params: SamplingParams, prompt: list[int]) -> None:
        self.output: list[int] = []
        self._size = vocabulary.size
        self._processor = KimiK2LogitsProcessor(vllm_config(model, vocabulary), CPU)
        self._processor.update_state(update(added=[(0, params, prompt, self.output)]))

    def allowed(self, *more: int) -> set[int]:
        """The tokens that may come behind the output and these."""
        self.output += more
        logits = self._processor.apply(torch.zeros(1, self._size))
        self._processor.update_state(None)
        assert not logits[logits > NEVER].any()
        return left(logits[0])
