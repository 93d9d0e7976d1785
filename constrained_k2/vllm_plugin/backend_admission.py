"""The backend route where requests are admitted: each is checked there, and marked for the engine core."""

from collections.abc import Mapping
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from constrained_k2.tools import ToolCallSpec
from constrained_k2.vllm_plugin.admission import check_params
from constrained_k2.vllm_plugin.backend import mark
from constrained_k2.vocabulary import Vocabulary


class BackendAdmission:
    """What stands around vLLM's ``InputProcessor.process_inputs``, which all requests of all endpoints pass.

    Args:
        vocabulary: The served model's.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        markers = vocabulary.format
        self._openings = [[markers.section_begin], [markers.call_begin]]

    @staticmethod
    def check(arguments: Mapping[str, Any]) -> ToolCallSpec | None:
        """The spec of a request that is to be constrained.

        Args:
            arguments: What ``process_inputs`` is called with, by name.

        Raises:
            VLLMValidationError: It cannot be; vLLM answers with HTTP 400.
        """
        params = arguments["params"]
        if not isinstance(params, SamplingParams):
            return None
        try:
            spec = check_params(params)
        except ValueError as error:
            raise VLLMValidationError(str(error)) from error
        if spec is not None and arguments.get("resumable", False):
            raise VLLMValidationError("tool calls cannot be constrained where the input is a stream. Send it whole.")
        return spec

    def constrain(self, request: Any, spec: ToolCallSpec) -> None:
        """Have the engine core constrain an admitted request, in place.

        A request that wants structured outputs of vLLM's (it can only where no tool may be called) keeps them, and is
        only kept from opening a section: vLLM's backends take special tokens for text.

        Args:
            request: vLLM's ``EngineCoreRequest``, which has parameters of its own.
            spec: Its spec.
        """
        params = request.sampling_params
        if params.structured_outputs is None:
            mark(params)
            return
        assert spec.max_calls == 0
        params._bad_words_token_ids = [*(params.bad_words_token_ids or []), *self._openings]  # noqa: SLF001 - no setter
