"""The logits processor that ``--logits-processors`` names, for both of vLLM's model runners."""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor as V1Interface
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2Interface
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcRequestState

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.shared.route import PROCESSOR_FLAG, refuse_v1_speculation
from constrained_k2.vllm_plugin.start.apply import activate


class KimiK2LogitsProcessor(V1Interface, V2Interface):
    """Masks the rows of requests that carry a constraint in ``SamplingParams.extra_args["constrained_k2"]``.

    vLLM's two model runners load a processor by the same flag, and each wants a subclass of an interface of its own.
    This class is a subclass of both, so both accept the name; making one makes the processor for the runner that does.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what cannot be constrained before the engine sees it; vLLM answers the ValueError with HTTP 400."""
        from constrained_k2.vllm_plugin.api_server.admission import check_params  # vLLM calls this in its front end

        check_params(sampling_params)

    def __new__(  # noqa: D102 - see the class
        cls,
        vllm_config: Any,
        runner: torch.device | LogitsProcRequestState,
        is_pin_memory: bool = False,  # noqa: FBT001, FBT002 - vLLM's
    ) -> V1Interface | V2Interface:
        activate("worker")
        refuse_unsupported(vllm_config, v2=isinstance(runner, LogitsProcRequestState))
        if isinstance(runner, LogitsProcRequestState):
            from constrained_k2.vllm_plugin.worker.logits_processor_v2 import KimiK2LogitsProcessorV2

            return KimiK2LogitsProcessorV2(vllm_config, runner)
        from constrained_k2.vllm_plugin.worker.logits_processor_v1 import KimiK2LogitsProcessorV1

        return KimiK2LogitsProcessorV1(vllm_config, runner, is_pin_memory)


def refuse_unsupported(vllm_config: Any, *, v2: bool) -> None:
    """Refuse at start-up the flags that would let a token bypass the masks."""
    speculative = vllm_config.speculative_config
    if speculative is not None:
        refuse_v1_speculation(v2=v2)
        if speculative.rejection_sample_method == "synthetic":
            problem = "synthetic rejection sampling accepts drafts at a fixed rate, whatever the masks forbid"
            raise InvalidRequest(problem, "--speculative-config rejection_sample_method", "Leave it out")
    if getattr(vllm_config, "diffusion_config", None) is not None:
        raise InvalidRequest("diffusion models do not write one token after the other", PROCESSOR_FLAG, "Leave it out")
    if vllm_config.model_config.enable_trace_replay:
        raise InvalidRequest("trace replay forces tokens that masks forbid", PROCESSOR_FLAG, "Leave one of them out")
