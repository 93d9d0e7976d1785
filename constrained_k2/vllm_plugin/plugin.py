"""The ``vllm.general_plugins`` entry point: vLLM calls it once or more in every one of its processes."""

from functools import wraps
from inspect import signature
from typing import Any

from constrained_k2.vllm_plugin.admission import check_params, refuse_beam_search
from constrained_k2.vllm_plugin.route import TOOL_PARSER_NAME, choose_backend, parses_with_us, route_of
from constrained_k2.vllm_plugin.settings import remember_server

_OURS = "_constrained_k2"  # marks what is wrapped already: vLLM may load plugins more than once


def register() -> None:
    """Make the tool parser known to vLLM, and have our class parse wherever that tool parser is chosen.

    vLLM composes a ``Parser`` of the chosen tool and reasoning parsers; its composition hands a tool parser text only,
    and text cannot tell a marker from its spelling. So the composed class gets our parsing by token id mixed in.
    """
    from vllm.tool_parsers import ToolParserManager

    ToolParserManager.register_lazy_module(TOOL_PARSER_NAME, "constrained_k2.vllm_plugin.parser", "KimiK2ToolParser")
    _parse_by_token_id()
    _mend_before_rendering()
    _check_completions_early()
    _choose_the_route()
    _learn_of_the_server()
    _constrain_in_the_engine_core()
    _count()


def _parse_by_token_id() -> None:
    from vllm.parser import ParserManager

    compose = ParserManager.get_parser
    if hasattr(compose, _OURS):
        return

    @wraps(compose)
    def get_parser(*args: Any, **kwargs: Any) -> Any:
        composed = compose(*args, **kwargs)
        if not parses_with_us(composed):
            return composed
        from constrained_k2.vllm_plugin.exact_arguments import keep_exact_arguments
        from constrained_k2.vllm_plugin.finish_reason import mend_finish_reasons
        from constrained_k2.vllm_plugin.parser import ParsingByTokenId

        mend_finish_reasons()
        keep_exact_arguments()
        return type("KimiK2Parser", (ParsingByTokenId, composed), {})

    setattr(get_parser, _OURS, True)
    ParserManager.get_parser = staticmethod(get_parser)


def _mend_before_rendering() -> None:
    """Have messages and tools mended, where our tool parser is chosen, before the chat template gets them."""
    from vllm.renderers.online_renderer import OnlineRenderer

    preprocess = OnlineRenderer.preprocess_chat
    if hasattr(preprocess, _OURS):
        return
    parameters = signature(preprocess)

    @wraps(preprocess)
    async def preprocess_chat(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not parses_with_us(self.parser):
            return await preprocess(self, *args, **kwargs)
        from constrained_k2.vllm_plugin import exact_arguments, lowering, repair
        from constrained_k2.vllm_plugin.compiling import compiled_ahead

        call = parameters.bind(self, *args, **kwargs)
        tokenizer = self.renderer.get_tokenizer()
        template = repair.template_of(call.arguments, tokenizer, self.model_config)
        prepared = repair.prepare(call.arguments, repair.specials_of(tokenizer), template)
        calls = repair.history_calls.set(prepared.calls)
        kept = exact_arguments.kept.set(prepared.exact_arguments)
        ahead = compiled_ahead.set(None)
        try:
            compiled_ahead.set(await lowering.compile_ahead(call.arguments["request"]))
            return await preprocess(*call.args, **call.kwargs)
        finally:
            repair.history_calls.reset(calls)
            exact_arguments.kept.reset(kept)
            compiled_ahead.reset(ahead)

    setattr(preprocess_chat, _OURS, True)
    OnlineRenderer.preprocess_chat = preprocess_chat


def _check_completions_early() -> None:
    """Refuse a completions request before its stream begins: vLLM's own check runs behind the headers, as HTTP 200.

    Beam search has sampling parameters of its own, which do not reach the processor: there a spec is refused.
    """
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    if hasattr(CompletionRequest.to_sampling_params, _OURS):
        return
    to_sampling_params = CompletionRequest.to_sampling_params
    to_beam_search_params = CompletionRequest.to_beam_search_params

    @wraps(to_sampling_params)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = to_sampling_params(self, *args, **kwargs)
        check_params(params, first=True)
        return params

    @wraps(to_beam_search_params)
    def refused(self: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_beam_search(self.vllm_xargs)
        return to_beam_search_params(self, *args, **kwargs)

    setattr(checked, _OURS, True)
    CompletionRequest.to_sampling_params = checked
    CompletionRequest.to_beam_search_params = refused


def _choose_the_route() -> None:
    """Have every process of a server know its route: vLLM tells the tool parser's name to the API server alone."""
    from vllm.engine.arg_utils import EngineArgs

    read = EngineArgs.from_cli_args.__func__
    if hasattr(read, _OURS):
        return

    @wraps(read)
    def from_cli_args(cls: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
        choose_backend(args)
        return read(cls, args, *more, **kwargs)

    setattr(from_cli_args, _OURS, True)
    EngineArgs.from_cli_args = classmethod(from_cli_args)


def _count() -> None:
    from constrained_k2.vllm_plugin import first_choices, metrics_carrier

    metrics_carrier.install()
    first_choices.install()


def _learn_of_the_server() -> None:
    """Have the process that admits requests know whether, and how, the engine will constrain them.

    On the backend route each request is checked here, and marked for the engine core; on the other one vLLM has the
    processor's class check it.
    """
    from vllm.v1.engine.input_processor import InputProcessor

    set_up, process = InputProcessor.__init__, InputProcessor.process_inputs
    if hasattr(set_up, _OURS):
        return
    parameters = signature(process)

    @wraps(set_up)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        set_up(self, vllm_config, *args, **kwargs)
        route = route_of(vllm_config)
        remember_server(vllm_config, route)
        if route == "backend":
            from constrained_k2.vllm_plugin.backend_admission import BackendAdmission
            from constrained_k2.vllm_plugin.served_vocabulary import vocabulary_of

            # Where the tokenizer is not Kimi K2's, vLLM does not start.
            setattr(self, _OURS, BackendAdmission(vocabulary_of(self.get_tokenizer())))

    @wraps(process)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        admission = getattr(self, _OURS, None)
        if admission is None:
            return process(self, *args, **kwargs)
        admitted = admission.check(parameters.bind(self, *args, **kwargs).arguments)
        request = process(self, *args, **kwargs)
        if admitted is not None:
            admission.constrain(request, admitted)
        return request

    setattr(init, _OURS, True)
    InputProcessor.__init__ = init
    InputProcessor.process_inputs = process_inputs


def _constrain_in_the_engine_core() -> None:
    """Put our manager of structured outputs where the engine core makes its own."""
    from vllm.v1.engine import core

    from constrained_k2.vllm_plugin.backend import ToolCallOutputManager

    core.StructuredOutputManager = ToolCallOutputManager
