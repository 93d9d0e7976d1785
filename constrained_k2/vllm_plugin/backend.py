"""Our matcher inside the engine core, as one more structured-output backend of vLLM.

vLLM picks a backend by name from a closed set, one an engine. So requests of ours are marked, behind vLLM's own
validation, and :class:`ToolCallOutputManager` stands where the engine core makes its ``StructuredOutputManager``: it
gives marked requests a grammar of ours and leaves all others to vLLM, whose own backend is still chosen by the
first of those. Scheduling, overlap with the forward pass, draft validation, rollback and the masks' way to all ranks
are vLLM's.
"""

from concurrent.futures import Future
from typing import Any

import torch
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager

from constrained_k2.bitmask import TokenSet, words_per_row
from constrained_k2.compiler import Compiler
from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.admission import settings_in, spec_in
from constrained_k2.vllm_plugin.backend_grammar import ToolCallGrammar
from constrained_k2.vllm_plugin.route import TOOL_PARSER_NAME, route_of
from constrained_k2.vocabulary import Vocabulary

_MARK = "constrained_k2"


def mark(sampling_params: Any) -> None:
    """Make a request one of ours for vLLM's scheduler, in place.

    Args:
        sampling_params: The request's own copy, which vLLM has validated.
    """
    sampling_params.structured_outputs = StructuredOutputsParams(grammar=_MARK)


def is_marked(sampling_params: Any) -> bool:
    """Whether :func:`mark` made it so. No client can: vLLM's validation sets the backend's name, and comes first."""
    asked = sampling_params.structured_outputs
    return asked is not None and asked.grammar == _MARK and asked._backend is None  # noqa: SLF001 - vLLM's own mark


class ToolCallBackend:
    """Compiles marked requests. One an engine core.

    Args:
        vllm_config: vLLM's ``VllmConfig``.

    Raises:
        FormatMismatch: The served model's tokenizer is not Kimi K2's; vLLM does not start then.
    """

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        vocabulary = Vocabulary.from_pretrained(
            model.tokenizer,
            size=model.get_vocab_size(),
            revision=model.tokenizer_revision,
            trust=model.trust_remote_code,
        )
        settings = settings_in(vllm_config)
        self._compiler = Compiler(vocabulary, settings.engines[0], policy=settings.policy)
        self._think_begin = vocabulary.format.think_begin
        self._stop = TokenSet((vocabulary.format.turn_end,), vocabulary.size)
        self._rows = vllm_config.scheduler_config.max_num_seqs * (1 + vllm_config.num_speculative_tokens)

    def grammar(self, request: Any) -> ToolCallGrammar:
        """The grammar of a marked request. All its tools are compiled, so that none is while the scheduler waits.

        Args:
            request: vLLM's ``Request``: ``sampling_params``, ``prompt_token_ids`` and ``request_id`` are read.

        Raises:
            ConstrainedK2Error: The request cannot be constrained.
        """
        spec = spec_in(request.sampling_params.extra_args)
        if spec is None:
            raise InvalidRequest("the request is marked, but carries no tools", "vllm_xargs")
        prompt = request.prompt_token_ids
        in_reasoning = prompt is not None and prompt[-1:] == [self._think_begin]
        matcher = self._compiler.compile(spec).matcher(in_reasoning=in_reasoning)
        return ToolCallGrammar(matcher, self._stop, request.request_id)

    def allocate(self) -> torch.Tensor:
        """A bitmask as vLLM's backends allocate it: int32 ``[max_num_seqs * (1 + drafts), words]``, all allowed."""
        return torch.full((self._rows, words_per_row(self._compiler.vocabulary.size)), -1, dtype=torch.int32)


class ToolCallOutputManager(StructuredOutputManager):
    """vLLM's manager of structured outputs, with marked requests taken out of its hands."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._grammar_bitmask: torch.Tensor | None
        self._tool_calls = ToolCallBackend(vllm_config) if route_of(vllm_config) == "backend" else None

    def grammar_init(self, request: Any) -> None:
        """Have a request's grammar compiled, off the scheduler's thread; the scheduler waits with that request."""
        structured = request.structured_output_request
        if structured is None or not is_marked(request.sampling_params):
            super().grammar_init(request)
            return
        structured.reasoning_ended = True  # what may be reasoned is in our grammar: vLLM is not to wait for its end
        if self._use_async_grammar_compilation:
            structured.grammar = self.executor.submit(self._tool_call_grammar, request)
            return
        done: Future[ToolCallGrammar] = Future()
        try:
            done.set_result(self._tool_call_grammar(request))
        except Exception as error:  # noqa: BLE001 - the scheduler ends the request that a future's error belongs to
            done.set_exception(error)
        structured.grammar = done

    def grammar_bitmask(self, requests: Any, structured_output_request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """The masks of a batch. Where all requests so far were ours, no backend of vLLM's has made the bitmask yet."""
        if self._grammar_bitmask is None and self._tool_calls is not None and structured_output_request_ids:
            self._grammar_bitmask = self._tool_calls.allocate()
        return super().grammar_bitmask(requests, structured_output_request_ids, *args, **kwargs)

    def _tool_call_grammar(self, request: Any) -> ToolCallGrammar:
        if self._tool_calls is None:
            raise InvalidRequest(
                "a request of another process of this server is to be constrained in this engine core, which is not "
                "set up for it",
                "server",
                f"Start every node with --tool-call-parser {TOOL_PARSER_NAME}",
            )
        return self._tool_calls.grammar(request)
