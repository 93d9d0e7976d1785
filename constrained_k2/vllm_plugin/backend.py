"""Our matcher inside the engine core, as one more structured-output backend of vLLM.

vLLM picks a backend by name from a closed set, one an engine. So requests of ours are marked, behind vLLM's own
validation, and :class:`ToolCallOutputManager` stands where the engine core makes its ``StructuredOutputManager``: it
gives marked requests a grammar of ours and leaves all others to vLLM, whose own backend is still chosen by the
first of those. Scheduling, overlap with the forward pass, draft validation, rollback and the masks' way to all ranks
are vLLM's.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager

from constrained_k2.bitmask import words_per_row
from constrained_k2.counters import engine_counters
from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.backend_grammar import ToolCallGrammar
from constrained_k2.vllm_plugin.proposer import drafts_of
from constrained_k2.vllm_plugin.route import TOOL_PARSER_NAME, route_of
from constrained_k2.vllm_plugin.turns import Prompt, TurnMaker

_MARK = "constrained_k2, ahead: "


def mark(sampling_params: Any, ahead: Sequence[int]) -> None:
    """Make a request one of ours for vLLM's scheduler, in place.

    Args:
        sampling_params: The request's own copy, which vLLM has validated.
        ahead: The tools, by their places in its spec, whose schemas are to be compiled before it is scheduled.
    """
    sampling_params.structured_outputs = StructuredOutputsParams(grammar=_MARK + json.dumps(list(ahead)))


def is_marked(sampling_params: Any) -> bool:
    """Whether :func:`mark` made it so. No client can: vLLM's validation sets the backend's name, and comes first."""
    asked = sampling_params.structured_outputs
    if asked is None or asked._backend is not None:  # noqa: SLF001 - vLLM's own mark
        return False
    return asked.grammar is not None and asked.grammar.startswith(_MARK)


def ahead_of(sampling_params: Any) -> list[int]:
    """What a marked request was marked with: the places of the tools that are to be compiled before it is scheduled."""
    places: list[int] = json.loads(sampling_params.structured_outputs.grammar.removeprefix(_MARK))
    return places


class ToolCallBackend:
    """Compiles marked requests. One an engine core.

    Args:
        vllm_config: vLLM's ``VllmConfig``.

    Raises:
        FormatMismatch: The served model's tokenizer is not Kimi K2's; vLLM does not start then.
    """

    def __init__(self, vllm_config: Any) -> None:
        self._maker = TurnMaker(vllm_config)
        self._rows = vllm_config.scheduler_config.max_num_seqs * (1 + vllm_config.num_speculative_tokens)

    def grammar(self, request: Any) -> ToolCallGrammar:
        """A marked request's grammar. What is slow to compile is compiled now, lest the scheduler wait for it later.

        Args:
            request: vLLM's ``Request``: ``sampling_params``, ``num_prompt_tokens``, ``prompt_token_ids`` and
                ``request_id`` are read.

        Raises:
            ConstrainedK2Error: The request cannot be constrained.
        """
        compiled = self._maker.compile(request.sampling_params)
        if compiled is None:
            raise InvalidRequest("the request is marked, but carries no tools", "vllm_xargs")
        compiled.check_all(ahead_of(request.sampling_params))
        ids = request.prompt_token_ids
        prompt = Prompt(request.num_prompt_tokens, ids[-1] if ids else None)
        matcher = self._maker.matcher(compiled, prompt, request.sampling_params)
        return ToolCallGrammar(matcher, self._maker.stop, request.request_id)

    def allocate(self) -> torch.Tensor:
        """A bitmask as vLLM's backends allocate it: int32 ``[max_num_seqs * (1 + drafts), words]``, all allowed."""
        return torch.full((self._rows, words_per_row(self._maker.vocabulary.size)), -1, dtype=torch.int32)


class ToolCallOutputManager(StructuredOutputManager):
    """vLLM's manager of structured outputs, with marked requests taken out of its hands."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._grammar_bitmask: torch.Tensor | None
        self._tool_calls = ToolCallBackend(vllm_config) if route_of(vllm_config) == "backend" else None
        self._drafts = drafts_of(vllm_config)

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
        """The masks of a batch. Where all requests so far were ours, no backend of vLLM's has made the bitmask yet.

        A batch of ours without drafts is filled here, in this thread and as a whole: vLLM hands more than 128 rows to
        threads, sixteen a piece, which does not help where a row is a look-up under the interpreter lock.
        """
        if self._grammar_bitmask is None and self._tool_calls is not None and structured_output_request_ids:
            self._grammar_bitmask = self._tool_calls.allocate()
        grammars = [_grammar_of(requests[request_id]) for request_id in structured_output_request_ids]
        ours = [grammar for grammar in grammars if grammar is not None]
        if ours:
            engine_counters.masked_steps += 1
            if len(ours) == len(grammars) and not self.vllm_config.num_speculative_tokens:
                assert self._grammar_bitmask is not None
                ToolCallGrammar.fill_batch(ours, self._grammar_bitmask)
                return self._grammar_bitmask[: len(ours)].numpy()
        return super().grammar_bitmask(requests, structured_output_request_ids, *args, **kwargs)

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        """Advance a grammar over what was sampled; where it refuses, vLLM ends the request."""
        accepted: bool = super().accept_tokens(request, new_token_ids)
        if not accepted and _grammar_of(request) is not None:
            engine_counters.ended_early += 1
        return accepted

    def validate_tokens(self, request: Any, spec_tokens: list[int]) -> list[int]:
        """The drafts that are run: of the legal ones among vLLM's and those of the grammar whichever are more."""
        legal: list[int] = super().validate_tokens(request, spec_tokens)
        if self._drafts and (grammar := _grammar_of(request)) is not None:
            drafts = grammar.draft(self._drafts)
            return drafts if len(drafts) >= len(legal) else legal
        return legal

    def _tool_call_grammar(self, request: Any) -> ToolCallGrammar:
        if self._tool_calls is None:
            raise InvalidRequest(
                "a request of another process of this server is to be constrained in this engine core, which is not "
                "set up for it",
                "server",
                f"Start every node with --tool-call-parser {TOOL_PARSER_NAME}",
            )
        try:
            return self._tool_calls.grammar(request)
        except Exception:
            engine_counters.ended_early += 1
            raise


def _grammar_of(request: Any) -> ToolCallGrammar | None:
    """A request's grammar, if it is one of ours and compiled."""
    structured = request.structured_output_request
    grammar = None if structured is None else structured.grammar
    return grammar if isinstance(grammar, ToolCallGrammar) else None
