"""Constrained tool calls for Kimi K2 on vLLM.

Every public name is loaded on first use, so that ``import constrained_k2`` stays cheap and pulls in neither torch,
nor vLLM, nor a grammar engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constrained_k2.compiled import CompiledToolCalls
    from constrained_k2.compiler import Compiler
    from constrained_k2.coverage import schema_coverage
    from constrained_k2.errors import (
        ConstrainedK2Error,
        FormatMismatch,
        InvalidRequest,
        MalformedCompletion,
        SchemaTooCostly,
        UnsupportedSchema,
    )
    from constrained_k2.format import KIMI_K2, ToolCallFormat
    from constrained_k2.json_limiter import JsonLimiter
    from constrained_k2.kernels import apply_token_bitmask
    from constrained_k2.matcher import ToolCallMatcher
    from constrained_k2.parsing import Completion, ToolCallParser, parse_completion
    from constrained_k2.policy import StrictPolicy
    from constrained_k2.rendering import (
        RenderedPrompt,
        Repair,
        find_faults,
        render_prompt,
        render_tool_calls,
        repair_messages,
    )
    from constrained_k2.schema.coverage import Coverage
    from constrained_k2.tools import Limits, Tool, ToolCall, ToolCallSpec
    from constrained_k2.vocabulary import Vocabulary
    from constrained_k2.whole_format import build_grammar

__version__ = "0.1.0"

_HOME = {
    "CompiledToolCalls": "compiled",
    "Completion": "parsing",
    "Compiler": "compiler",
    "ConstrainedK2Error": "errors",
    "Coverage": "schema.coverage",
    "FormatMismatch": "errors",
    "InvalidRequest": "errors",
    "JsonLimiter": "json_limiter",
    "KIMI_K2": "format",
    "Limits": "tools",
    "MalformedCompletion": "errors",
    "RenderedPrompt": "rendering",
    "Repair": "rendering",
    "SchemaTooCostly": "errors",
    "StrictPolicy": "policy",
    "Tool": "tools",
    "ToolCall": "tools",
    "ToolCallFormat": "format",
    "ToolCallMatcher": "matcher",
    "ToolCallParser": "parsing",
    "ToolCallSpec": "tools",
    "UnsupportedSchema": "errors",
    "Vocabulary": "vocabulary",
    "apply_token_bitmask": "kernels",
    "build_grammar": "whole_format",
    "find_faults": "rendering",
    "parse_completion": "parsing",
    "render_prompt": "rendering",
    "render_tool_calls": "rendering",
    "repair_messages": "rendering",
    "schema_coverage": "coverage",
}

__all__ = [
    "KIMI_K2",
    "CompiledToolCalls",
    "Compiler",
    "Completion",
    "ConstrainedK2Error",
    "Coverage",
    "FormatMismatch",
    "InvalidRequest",
    "JsonLimiter",
    "Limits",
    "MalformedCompletion",
    "RenderedPrompt",
    "Repair",
    "SchemaTooCostly",
    "StrictPolicy",
    "Tool",
    "ToolCall",
    "ToolCallFormat",
    "ToolCallMatcher",
    "ToolCallParser",
    "ToolCallSpec",
    "UnsupportedSchema",
    "Vocabulary",
    "__version__",
    "apply_token_bitmask",
    "build_grammar",
    "find_faults",
    "parse_completion",
    "render_prompt",
    "render_tool_calls",
    "repair_messages",
    "schema_coverage",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
