"""The ``vllm.general_plugins`` entry point: vLLM calls it once or more in every one of its processes."""

from functools import wraps
from typing import Any

from constrained_k2.vllm_plugin.admission import check_params

TOOL_PARSER_NAME = "kimi_k2_constrained"


def register() -> None:
    """Make the tool parser known to vLLM, and have our class parse wherever that tool parser is chosen.

    vLLM composes a ``Parser`` of the chosen tool and reasoning parsers; its composition hands a tool parser text only,
    and text cannot tell a marker from its spelling. So the composed class gets our parsing by token id mixed in.
    """
    from vllm.tool_parsers import ToolParserManager

    ToolParserManager.register_lazy_module(TOOL_PARSER_NAME, "constrained_k2.vllm_plugin.parser", "KimiK2ToolParser")
    _parse_by_token_id()
    _check_completions_early()


def _parse_by_token_id() -> None:
    from vllm.parser import ParserManager

    compose = ParserManager.get_parser
    if hasattr(compose, "__wrapped__"):
        return

    @wraps(compose)
    def get_parser(*args: Any, **kwargs: Any) -> Any:
        composed = compose(*args, **kwargs)
        if composed is None or getattr(composed.tool_parser_cls, "name", None) != TOOL_PARSER_NAME:
            return composed
        from constrained_k2.vllm_plugin.parser import ParsingByTokenId

        return type("KimiK2Parser", (ParsingByTokenId, composed), {})

    ParserManager.get_parser = staticmethod(get_parser)


def _check_completions_early() -> None:
    """Refuse a completions request before its stream begins: vLLM's own check runs behind the headers, as HTTP 200."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    to_sampling_params = CompletionRequest.to_sampling_params
    if hasattr(to_sampling_params, "__wrapped__"):
        return

    @wraps(to_sampling_params)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = to_sampling_params(self, *args, **kwargs)
        check_params(params)
        return params

    CompletionRequest.to_sampling_params = checked
