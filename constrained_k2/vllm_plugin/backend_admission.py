"""The backend route where requests are admitted: each is checked there, and marked for the engine core."""

from collections.abc import Mapping
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from constrained_k2.compiled import CompiledToolCalls
from constrained_k2.vllm_plugin.admission import check_params
from constrained_k2.vllm_plugin.backend import mark
from constrained_k2.vocabulary import Vocabulary

_SLOW_SECONDS = 0.005
"""What a schema took here that the engine core compiles before it schedules the request; any other one it compiles
while the model writes the function's name, which on GPUs takes it some 50 ms."""


class BackendAdmission:
    """What stands around vLLM's ``InputProcessor.process_inputs``, which all requests of all endpoints pass.

    Args:
        vocabulary: The served model's.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        markers = vocabulary.format
        self._openings = [[markers.section_begin], [markers.call_begin]]

    @staticmethod
    def check(arguments: Mapping[str, Any]) -> CompiledToolCalls | None:
        """A request that is to be constrained, compiled over the vocabulary of bytes.

        Args:
            arguments: What ``process_inputs`` is called with, by name.

        Raises:
            VLLMValidationError: It cannot be; vLLM answers with HTTP 400.
        """
        params = arguments["params"]
        if not isinstance(params, SamplingParams):
            return None
        try:
            admitted = check_params(params)
        except ValueError as error:
            raise VLLMValidationError(str(error)) from error
        if admitted is not None and arguments.get("resumable", False):
            raise VLLMValidationError("tool calls cannot be constrained where the input is a stream. Send it whole.")
        return admitted

    def constrain(self, request: Any, admitted: CompiledToolCalls) -> None:
        """Have the engine core constrain an admitted request, in place.

        A request that wants structured outputs of vLLM's (it can only where no tool may be called) keeps them, and is
        only kept from opening a section: vLLM's backends take special tokens for text.

        Args:
            request: vLLM's ``EngineCoreRequest``, which has parameters of its own.
            admitted: What :meth:`check` has made of it.
        """
        params = request.sampling_params
        if params.structured_outputs is None:
            mark(params, admitted.slow_tools(_SLOW_SECONDS))
            return
        assert admitted.spec.max_calls == 0
        params._bad_words_token_ids = [*(params.bad_words_token_ids or []), *self._openings]  # noqa: SLF001 - no setter
