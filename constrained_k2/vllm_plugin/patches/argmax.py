"""Counts what the masks change, where vLLM applies them (:mod:`constrained_k2.vllm_plugin.metrics.argmax_probe`)."""

from typing import Any

from constrained_k2.vllm_plugin.metrics.argmax_probe import worker_probe
from constrained_k2.vllm_plugin.patches import wrapper


@wrapper
def execute_model(original: Any, self: Any, scheduler_output: Any) -> Any:
    """Let the probe follow the requests of a worker."""
    worker_probe.follow(scheduler_output, self.vllm_config)
    return original(self, scheduler_output)


@wrapper
def apply_grammar_bitmask(
    original: Any, scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any
) -> None:
    """Look at the logits before and after vLLM masks them: the V1 model runner."""
    ids, rows = grammar_output.structured_output_request_ids, len(grammar_output.grammar_bitmask)
    with worker_probe.around(logits, ids, rows):
        original(scheduler_output, grammar_output, input_batch, logits)


@wrapper
def apply_grammar_bitmask_v2(  # noqa: PLR0913, PLR0917 - vLLM's signature
    original: Any, self: Any, logits: Any, input_batch: Any, grammar_req_ids: list[str], grammar_bitmask: Any
) -> None:
    """The same in the V2 model runner."""
    with worker_probe.around(logits, grammar_req_ids, len(grammar_bitmask)):
        original(self, logits, input_batch, grammar_req_ids, grammar_bitmask)
