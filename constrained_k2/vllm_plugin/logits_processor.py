"""The logits processor under its one dotted name, whichever model runner loads it."""

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor as V1Interface
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2Interface
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcRequestState

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.admission import check_params

_PLACE = "--logits-processors"


class KimiK2LogitsProcessor(V1Interface, V2Interface):
    """Masks the rows of requests that carry a tool-call spec in ``SamplingParams.extra_args["constrained_k2"]``.

    vLLM's two model runners load a processor by the same flag, and each wants a subclass of an interface of its own.
    This class is a subclass of both, so both accept the name; making one makes the processor for the runner that does.

    Args:
        vllm_config: vLLM's ``VllmConfig``.
        runner: From the V1 runner the device; from the V2 runner its ``LogitsProcRequestState``.
        is_pin_memory: From the V1 runner: whether host memory can be pinned.

    Raises:
        FormatMismatch: The served model's tokenizer is not Kimi K2's.
        InvalidRequest: The server is configured so that masks would not bind.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse, before the engine sees it, a request that cannot be constrained; vLLM answers with HTTP 400.

        Raises:
            ValueError: With the message for the client.
        """
        check_params(sampling_params)

    def __new__(  # noqa: D102 - see the class
        cls,
        vllm_config: Any,
        runner: torch.device | LogitsProcRequestState,
        is_pin_memory: bool = False,  # noqa: FBT001, FBT002 - vLLM's
    ) -> V1Interface | V2Interface:
        refuse_unsupported(vllm_config, v2=isinstance(runner, LogitsProcRequestState))
        if isinstance(runner, LogitsProcRequestState):
            from constrained_k2.vllm_plugin.logits_processor_v2 import KimiK2LogitsProcessorV2

            return KimiK2LogitsProcessorV2(vllm_config, runner)
        from constrained_k2.vllm_plugin.logits_processor_v1 import KimiK2LogitsProcessorV1

        return KimiK2LogitsProcessorV1(vllm_config, runner, is_pin_memory)


def refuse_unsupported(vllm_config: Any, *, v2: bool) -> None:
    """Refuse, when the server starts, what would let a token past the masks.

    Args:
        vllm_config: vLLM's ``VllmConfig``.
        v2: Whether the V2 model runner serves it (``VllmConfig.use_v2_model_runner``).

    Raises:
        InvalidRequest: The combination is not supported.
    """
    speculative = vllm_config.speculative_config
    if speculative is not None and not v2:
        raise InvalidRequest(
            "vLLM's V1 model runner runs no logits processors beside speculative decoding",
            _PLACE,
            "Use the V2 runner (VLLM_USE_V2_MODEL_RUNNER=1) or the structured-output route, or leave out "
            "--speculative-config",
        )
    if speculative is not None and speculative.rejection_sample_method == "synthetic":
        raise InvalidRequest(
            "synthetic rejection sampling accepts drafts at a fixed rate, whatever the masks forbid",
            "--speculative-config rejection_sample_method",
            "Leave it out",
        )
    if getattr(vllm_config, "diffusion_config", None) is not None:
        raise InvalidRequest("diffusion models do not write one token after the other", _PLACE, "Leave it out")
    if vllm_config.model_config.enable_trace_replay:
        raise InvalidRequest("trace replay forces tokens, whatever the masks forbid", _PLACE, "Leave one of them out")
