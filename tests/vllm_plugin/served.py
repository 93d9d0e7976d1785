"""The parts of vLLM's configuration that the logits processor reads, without a model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from constrained_k2 import Vocabulary


def vllm_config(directory: Path, vocabulary: Vocabulary, drafts: int = 0, **fields: Any) -> SimpleNamespace:
    """A configuration that serves the tokenizer in a directory, with so many speculative tokens."""
    model = SimpleNamespace(
        tokenizer=str(directory),
        get_vocab_size=lambda: vocabulary.size,
        tokenizer_revision=None,
        trust_remote_code=True,
        max_model_len=4096,
        enable_trace_replay=False,
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
