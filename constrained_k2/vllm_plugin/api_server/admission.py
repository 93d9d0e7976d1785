"""Decides in the API server whether a request can be constrained, before the engine sees it."""

from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.errors import ConstrainedK2Error, InvalidRequest
from constrained_k2.request.spec import EngineName, ToolCallSpec
from constrained_k2.schema.coverage import Coverage
from constrained_k2.vllm_plugin.api_server import metrics
from constrained_k2.vllm_plugin.api_server.functions import text_formats
from constrained_k2.vllm_plugin.api_server.refusals import refusal, refusals_noted
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.shared.byte_compiler import SLOW_SECONDS, compiled_over_bytes
from constrained_k2.vllm_plugin.shared.constraint import (
    constraint_in,
    constraint_text,
    finish_reserve_in,
    is_masked,
    tag,
)
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.log import warn_once
from constrained_k2.vllm_plugin.shared.openings import bad_words
from constrained_k2.vllm_plugin.shared.server import Server
from constrained_k2.vllm_plugin.shared.settings import ALLOWED_TOOLS_KEY, OFF
from constrained_k2.vllm_plugin.shared.token_limits import drop_limits, take_thinking_budget, take_token_ids
from constrained_k2.vocabulary.vocabulary import Vocabulary


def compile_tools(constraint: ToolCallSpec, *, count: bool, by_shape: bool = True) -> CompiledToolCalls:
    """Compile a request's tools over the vocabulary of bytes; ``by_shape``: except those that their shape admits."""
    compiled = compiled_over_bytes(constraint, Server.settings)
    try:
        if by_shape:
            compiled.admit()
        else:
            compiled.check_all()
    finally:
        if count:
            metrics.record_lookups(compiled)
    return compiled


def report(compiled: CompiledToolCalls, *, first: bool) -> None:
    """Log, once, what of the schemas is not enforced; count the request."""
    for tool in compiled.compiled_tools:
        _warn(repr(tool.name), compiled.coverage(tool.name))
    if (answer := compiled.answer_grammar) is not None:
        _warn("the answer", answer.coverage)
    if first:
        metrics.record_request(compiled, grammar_engine(compiled.spec))


def _warn(name: str, coverage: Coverage) -> None:
    if coverage.inexact:
        uses = "; ".join(f"{use.pointer} ({use.reason})" for use in coverage.inexact[:8])
        warn_once("not enforced in a schema", f"{name}: {uses}")


def grammar_engine(constraint: ToolCallSpec) -> EngineName:
    """The engine that matches the arguments of a request."""
    return constraint.engine or Server.settings.engines[0]


def require_route() -> None:
    """Refuse a constrained request on a server that does not constrain."""
    if not Server.constrains:
        raise InvalidRequest(
            "this server parses tool calls but does not constrain them",
            "server",
            f'Start it with --additional-config \'{{"{XARGS_KEY}": {{"route": "structured_output"}}}}\', '
            f'or switch the constraint off with vllm_xargs {{"{XARGS_KEY}": "{OFF}"}}',
        )


@refusals_noted()
def refuse_beam_search(extra_args: Any) -> None:
    """Refuse a constraint beside beam search, whose requests pass neither route."""
    if constraint_in(extra_args) is not None:
        raise refusal("use_beam_search")


def check_params(sampling_params: Any, *, first: bool = False, resumable: bool = False) -> CompiledToolCalls | None:
    """Admit sampling parameters: the request compiled over bytes, or None without a constraint.

    Args:
        sampling_params: vLLM's; the constraint in them is resolved in place.
        first: True where the request has not been counted yet.
        resumable: True if the engine core would have to constrain an input stream.

    Raises:
        ValueError: With the message for the client; vLLM answers with HTTP 400.
    """
    try:
        with refusals_noted():
            text = constraint_text(sampling_params.extra_args)
            if text is None:
                _refuse_unread(sampling_params.extra_args)
                return None
            require_route()
            finish_reserve_in(sampling_params.extra_args, 0)
            state = RequestState.current()
            if state is None or state.text is not text or state.compiled is None:
                constraint = constraint_in(sampling_params.extra_args)
                assert constraint is not None
                _refuse_beside(constraint, sampling_params, resumable=resumable)
                state = RequestState()
                state.compiled, state.text = compile_tools(constraint, count=first), text
                if (resolved := state.compiled.resolved_spec) is not constraint:
                    state.text = resolved.to_json()
                    sampling_params.extra_args = {**sampling_params.extra_args, XARGS_KEY: state.text}
                report(state.compiled, first=first)
                state.enter()
            _refuse_beside(state.compiled.spec, sampling_params, resumable=resumable)
            return state.compiled
    except ConstrainedK2Error as error:
        raise ValueError(str(error)) from error


def _refuse_unread(extra_args: dict[str, Any] | None) -> None:
    """Refuse what our middleware wrote for a request that is not constrained: the server has another tool parser."""
    if extra_args and ALLOWED_TOOLS_KEY in extra_args:
        raise refusal("tool_choice.allowed_tools")
    if formats := text_formats(extra_args):
        raise refusal("tools[…].format", f"tools[{min(formats)}].format")


def _refuse_beside(constraint: ToolCallSpec, sampling_params: Any, *, resumable: bool) -> None:
    if resumable:
        raise refusal("resumable")
    if sampling_params.trace_decode_token_ids:
        raise refusal("trace_decode_token_ids")
    if sampling_params.structured_outputs and is_masked(constraint):
        raise refusal("structured_outputs")


def _takes_limits(constraint: ToolCallSpec, params: SamplingParams) -> bool:
    """True if a request's limits on tokens go into its masks: vLLM's own might leave no token that they allow."""
    return is_masked(constraint) or (params.structured_outputs is None and Server.wire_format.has_long_transitions)


class Admission:
    """Wraps vLLM's ``InputProcessor.process_inputs``, which all requests pass, on either route.

    Args:
        vocabulary: The model's, where the engine core is to constrain; None where logits processors do.
    """

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._openings = None if vocabulary is None else bad_words(vocabulary)

    def check(self, arguments: dict[str, Any]) -> CompiledToolCalls | None:
        """A request to be constrained, compiled over bytes, by ``process_inputs``' arguments; None for any other.

        If masks take over its limits, ``params`` in the arguments becomes a copy without the thinking budget.
        """
        params = arguments["params"]
        if not isinstance(params, SamplingParams):
            return None
        try:
            admitted = check_params(params, resumable=self._openings is not None and arguments.get("resumable", False))
        except ValueError as error:
            raise VLLMValidationError(str(error)) from error
        if admitted is not None and _takes_limits(admitted.spec, params):
            arguments["params"] = take_thinking_budget(params)
        return admitted

    def constrain(self, request: Any, admitted: CompiledToolCalls) -> None:
        """Have an admitted request constrained, by changing its parameters in place.

        A request for vLLM's own structured outputs, which are possible only where no tool may be called, keeps them;
        where the engine core constrains, bad words forbid opening a section, since vLLM's backends take special tokens
        for text.
        """
        params = request.sampling_params
        if _takes_limits(admitted.spec, params):
            take_token_ids(params)
        else:
            drop_limits(params)
        if params.structured_outputs is None:
            tag(params, [] if self._openings is None else admitted.slow_tools(SLOW_SECONDS))
            return
        assert admitted.spec.max_calls == 0
        if self._openings is not None:
            params._bad_words_token_ids = [*(params.bad_words_token_ids or []), *self._openings]  # noqa: SLF001 - no setter
