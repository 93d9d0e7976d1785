"""The ``vllm.general_plugins`` entry point: vLLM calls it once or more in every one of its processes."""

from functools import wraps
from inspect import signature
from typing import Any

from constrained_k2.vllm_plugin import metrics
from constrained_k2.vllm_plugin.admission import check_params, refuse_beam_search, remember_server

TOOL_PARSER_NAME = "kimi_k2_constrained"
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
    _learn_of_the_server()
    _count()


def _parse_by_token_id() -> None:
    from vllm.parser import ParserManager

    compose = ParserManager.get_parser
    if hasattr(compose, _OURS):
        return

    @wraps(compose)
    def get_parser(*args: Any, **kwargs: Any) -> Any:
        composed = compose(*args, **kwargs)
        if composed is None or getattr(composed.tool_parser_cls, "name", None) != TOOL_PARSER_NAME:
            return composed
        from constrained_k2.vllm_plugin.finish_reason import mend_finish_reasons
        from constrained_k2.vllm_plugin.parser import ParsingByTokenId

        mend_finish_reasons(TOOL_PARSER_NAME)
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
        if getattr(getattr(self.parser, "tool_parser_cls", None), "name", None) != TOOL_PARSER_NAME:
            return await preprocess(self, *args, **kwargs)
        from constrained_k2.vllm_plugin import repair

        call = parameters.bind(self, *args, **kwargs)
        calls = repair.prepare(call.arguments, repair.specials_of(self.renderer.get_tokenizer()))
        outer = repair.history_calls.set(calls)
        try:
            return await preprocess(*call.args, **call.kwargs)
        finally:
            repair.history_calls.reset(outer)

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


def _count() -> None:
    from constrained_k2.vllm_plugin import first_choices, metrics_carrier

    metrics_carrier.install()
    first_choices.install()


def _learn_of_the_server() -> None:
    """Have the process that admits requests know whether the engine will constrain them."""
    from vllm.v1.engine.input_processor import InputProcessor

    set_up = InputProcessor.__init__
    if hasattr(set_up, _OURS):
        return

    @wraps(set_up)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        set_up(self, vllm_config, *args, **kwargs)
        remember_server(vllm_config)
        metrics.Served.model_name = vllm_config.model_config.served_model_name

    setattr(init, _OURS, True)
    InputProcessor.__init__ = init
