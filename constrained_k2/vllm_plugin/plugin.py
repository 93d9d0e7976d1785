"""The ``vllm.general_plugins`` entry point: vLLM calls it once or more in every one of its processes."""

from typing import Any

TOOL_PARSER_NAME = "kimi_k2_constrained"


def register() -> None:
    """Make the tool parser known to vLLM, and have our class parse wherever that tool parser is chosen.

    vLLM composes a ``Parser`` of the chosen tool and reasoning parsers; its composition hands a tool parser text only,
    and text cannot tell a marker from its spelling. So the composed class gets our parsing by token id mixed in.
    """
    from vllm.parser import ParserManager
    from vllm.tool_parsers import ToolParserManager

    ToolParserManager.register_lazy_module(TOOL_PARSER_NAME, "constrained_k2.vllm_plugin.parser", "KimiK2ToolParser")
    if getattr(ParserManager.get_parser, "constrained_k2", False):
        return
    compose = ParserManager.get_parser

    def get_parser(*args: Any, **kwargs: Any) -> Any:
        composed = compose(*args, **kwargs)
        if composed is None or getattr(composed.tool_parser_cls, "name", None) != TOOL_PARSER_NAME:
            return composed
        from constrained_k2.vllm_plugin.parser import ParsingByTokenId

        return type("KimiK2Parser", (ParsingByTokenId, composed), {})

    get_parser.constrained_k2 = True  # type: ignore[attr-defined]
    ParserManager.get_parser = staticmethod(get_parser)
