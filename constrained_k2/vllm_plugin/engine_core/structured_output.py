"""Extends vLLM's manager of structured outputs: constrained requests get this package's grammar.

vLLM picks a backend by name from a closed set, one for each engine. So our requests are tagged, after vLLM's own
validation, and the engine core makes a :class:`ConstrainedOutputManager`: it gives tagged requests our grammar and
leaves all others to vLLM. Scheduling, overlap with the forward pass, draft validation, rollback and the masks' way to
all ranks are vLLM's.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from os import cpu_count
from typing import Any

import torch
from vllm.v1.structured_output import StructuredOutputManager

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.engine_core.grammar import NamedToken, ToolCallGrammar, fill_batch
from constrained_k2.vllm_plugin.engine_core.intake import Intake, check
from constrained_k2.vllm_plugin.engine_core.speculation import DraftScores, grammar_drafting, refuse_idle_proposer
from constrained_k2.vllm_plugin.shared.constraint import is_refused, is_tagged, precompile_of
from constrained_k2.vllm_plugin.shared.counters import engine_counters
from constrained_k2.vllm_plugin.shared.flags import TOOL_PARSER_NAME
from constrained_k2.vllm_plugin.shared.log import logger, warn
from constrained_k2.vllm_plugin.shared.matcher_factory import PROMPT_END, MatcherFactory, PromptInfo
from constrained_k2.vllm_plugin.shared.route import route_of
from constrained_k2.vllm_plugin.shared.row_plan import NamedRow, PlannedRow, RowSampler, planned_ids, rows_of
from constrained_k2.vllm_plugin.shared.server import vocabulary_of_model
from constrained_k2.vllm_plugin.shared.settings import settings_in
from constrained_k2.vocabulary.bitmask import words_per_row


class ConstrainedOutputManager(StructuredOutputManager):
    """vLLM's manager of structured outputs, except for tagged requests."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._grammar_bitmask: torch.Tensor | None
        route = route_of(vllm_config)
        self._factory = MatcherFactory(vllm_config) if route == "structured_output" else None
        logger.info("constrained_k2: engine core, route %s, adopt %s", route or "none", settings_in(vllm_config).adopt)
        self.intake: Intake | None = None
        self._sampler = RowSampler()
        self._named: list[NamedToken] = []  # of the step
        if route is not None:
            model = vllm_config.model_config
            vocabulary = vocabulary_of_model(model) if self._factory is None else self._factory.vocabulary
            self.intake = Intake(vllm_config, vocabulary, route)
        self.drafting = grammar_drafting(vllm_config)
        refuse_idle_proposer(vllm_config)
        self._draft_scores = DraftScores()
        if vllm_config.model_config.skip_tokenizer_init:
            # Without a tokenizer vLLM has no structured outputs, and makes no threads for them.
            self.executor = ThreadPoolExecutor(max_workers=max(1, ((cpu_count() or 1) + 1) // 2))

    def grammar_init(self, request: Any) -> None:
        """Compile a request's grammar off the scheduler's thread; the scheduler delays the request until then."""
        structured = request.structured_output_request
        if structured is None or not is_tagged(request.sampling_params):
            super().grammar_init(request)
            return
        structured.reasoning_ended = True  # what may be reasoned is in our grammar: vLLM is not to wait for its end
        structured.grammar = compiling = self.executor.submit(self._tool_call_grammar, request)
        if not self._use_async_grammar_compilation:
            wait((compiling,))

    def grammar_bitmask(self, requests: Any, structured_output_request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """The masks of a batch. If all requests so far were ours, no backend of vLLM has allocated the bitmask yet.

        A batch of ours without drafts is filled here, in this thread and as a whole: vLLM hands more than 128 rows to
        threads, sixteen a piece, which does not help where a row is a look-up under the interpreter lock.
        """
        if self._grammar_bitmask is None and self._factory is not None and structured_output_request_ids:
            rows = self.vllm_config.scheduler_config.max_num_seqs * (1 + self.vllm_config.num_speculative_tokens)
            shape = (rows, words_per_row(self._factory.vocabulary.size))
            self._grammar_bitmask = torch.full(shape, -1, dtype=torch.int32)  # all allowed, as vLLM's backends make it
        self._named.clear()
        grammars = [_grammar_of(requests[request_id]) for request_id in structured_output_request_ids]
        ours = [grammar for grammar in grammars if grammar is not None]
        if ours:
            engine_counters.masked_steps += 1
            if len(ours) == len(grammars) and not self.vllm_config.num_speculative_tokens:
                assert self._grammar_bitmask is not None
                fill_batch(ours, self._grammar_bitmask)
                return self._grammar_bitmask[: len(ours)].numpy()
        return super().grammar_bitmask(requests, structured_output_request_ids, *args, **kwargs)

    def planned_ids(
        self, requests: Mapping[str, Any], ids: Sequence[str], drafts: Mapping[str, Sequence[int]]
    ) -> Sequence[str]:
        """The ids of a step's requests, with the rows that the workers look at, if there are any.

        Args:
            requests: vLLM's requests by id.
            ids: Those of the step, in the order of their rows.
            drafts: Their draft tokens; -1 where one is illegal: the rows after it have no mask.
        """
        examined = self._examined_rows(requests, ids, drafts) if self._sampler.begin_step() else []
        named = self._named_rows(ids) if self._named else {}
        return planned_ids(ids, examined, named) if examined or named else ids

    def _examined_rows(
        self, requests: Mapping[str, Any], ids: Sequence[str], drafts: Mapping[str, Sequence[int]]
    ) -> list[PlannedRow]:
        rows: list[PlannedRow] = []
        for request_id in ids:
            grammar = _grammar_of(requests[request_id])
            if grammar is not None and grammar.matcher is not None:
                rows += rows_of(request_id, drafts.get(request_id, ()))
        return self._sampler.choose(rows)

    def _named_rows(self, ids: Sequence[str]) -> dict[PlannedRow, NamedRow]:
        """The rows of the step's masks that write functions' names."""
        scheduled, found = set(ids), dict[PlannedRow, NamedRow]()
        for grammar, position, call, intent in self._named:
            request_id, matcher = grammar.request_id, grammar.matcher
            if matcher is not None and request_id in scheduled:
                offset = position - matcher.num_tokens  # its drafts are taken back by now
                found[PlannedRow(request_id, offset)] = NamedRow(None if offset else (request_id, call), intent)
        return found

    def end(self, request: Any) -> None:
        """Count the declined call of a finished request, or the calls of one that was not constrained."""
        grammar = _grammar_of(request)
        if grammar is not None and grammar.matcher is not None and grammar.matcher.has_declined:
            engine_counters.declined_calls += 1
        if self.intake is not None:
            self.intake.end(request)

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        """Advance a grammar over what was sampled; where it refuses, vLLM ends the request."""
        grammar = _grammar_of(request)
        if grammar is None:
            accepted: bool = super().accept_tokens(request, new_token_ids)
            return accepted
        if grammar.accept_tokens(request.request_id, new_token_ids):
            return True
        engine_counters.ended_early += 1
        return False

    def validate_tokens(self, request: Any, spec_tokens: list[int]) -> list[int]:
        """The drafts to run: vLLM's legal ones or the grammar's, whichever are more.

        If a draft model breaks off, the grammar continues; if both choose, the one that has chosen better counts.
        """
        drafting, grammar = self.drafting, _grammar_of(request)
        legal: list[int] = super().validate_tokens(request, spec_tokens)
        if grammar is None or not drafting.limit:
            return legal
        drafts = grammar.draft(drafting.limit)
        if drafting.beside_model:
            self._draft_scores.compare(grammar, request.all_token_ids, legal, drafts)
            legal = legal + grammar.draft(drafting.limit - len(legal), legal)
            return list(self._draft_scores.better(legal, drafts))
        return drafts if len(drafts) >= len(legal) else legal

    def _tool_call_grammar(self, request: Any) -> ToolCallGrammar:
        """A tagged request's grammar. Schemas that are slow to compile are compiled now, before it is scheduled."""
        if is_refused(request.sampling_params):
            raise InvalidRequest("the request was refused when it arrived", "vllm_xargs")
        if self._factory is None:
            raise InvalidRequest(
                "the API server asks this engine core to constrain a request, but the engine core was started without "
                "this package's flags",
                "server",
                f"Start every node with --tool-call-parser {TOOL_PARSER_NAME}",
            )
        params, ids = request.sampling_params, request.prompt_token_ids
        try:
            precompile = precompile_of(params)
            if precompile is None:
                precompile = check(params, self._factory.settings)
            compiled = self._factory.compile(params)
            assert compiled is not None  # only requests with a constraint are tagged
            compiled.check_all(precompile)
            prompt = PromptInfo(request.num_prompt_tokens, ids[-PROMPT_END:] if ids else ())
            matcher = self._factory.matcher(compiled, prompt, params)
        except BaseException as error:
            engine_counters.ended_early += 1
            warn("a request is refused", f"{request.request_id}: {str(error) or repr(error)}")
            if isinstance(error, Exception):
                raise
            raise RuntimeError("a grammar engine failed") from error  # a panic in Rust would end the scheduler
        return ToolCallGrammar(matcher, self._factory.stop, request.request_id, ids, self._named)


def _grammar_of(request: Any) -> ToolCallGrammar | None:
    """A request's grammar, if it is one of ours and compiled."""
    structured = request.structured_output_request
    grammar = None if structured is None else structured.grammar
    return grammar if isinstance(grammar, ToolCallGrammar) else None
