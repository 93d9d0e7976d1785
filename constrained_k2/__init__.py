"""Constrained tool calls for Kimi K2 on vLLM.

Public names are loaded on first use: ``import constrained_k2`` loads neither torch, nor vLLM, nor a grammar engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constrained_k2.compiler.compiled import CompiledToolCalls
    from constrained_k2.compiler.compiler import Compiler
    from constrained_k2.compiler.coverage import schema_coverage
    from constrained_k2.compiler.whole_turn import build_grammar
    from constrained_k2.errors import (
        ConstrainedK2Error,
        FormatMismatch,
        InvalidRequest,
        MalformedCompletion,
        SchemaTooCostly,
        UnsupportedSchema,
    )
    from constrained_k2.formats.base import WireFormat
    from constrained_k2.formats.kimi_k2 import KIMI_K2, ToolCallFormat
    from constrained_k2.kernels import apply_token_bitmask
    from constrained_k2.parsing import Completion, ToolCallParser, parse_completion
    from constrained_k2.prompts import (
        RenderedPrompt,
        Repair,
        find_faults,
        render_prompt,
        render_tool_calls,
        repair_messages,
    )
    from constrained_k2.request.json_limiter import JsonLimiter
    from constrained_k2.request.spec import ToolCall, ToolCallSpec
    from constrained_k2.request.strictness import StrictPolicy
    from constrained_k2.request.tools import Limits, Tool
    from constrained_k2.schema.coverage import Coverage
    from constrained_k2.turn.matcher import ToolCallMatcher
    from constrained_k2.vocabulary.bitmask import allocate_bitmask
    from constrained_k2.vocabulary.vocabulary import Vocabulary

__version__ = "0.3.0"

_EXPORTS = {
    "compiler.compiled": "CompiledToolCalls",
    "compiler.compiler": "Compiler",
    "compiler.coverage": "schema_coverage",
    "compiler.whole_turn": "build_grammar",
    "errors": "ConstrainedK2Error FormatMismatch InvalidRequest MalformedCompletion SchemaTooCostly UnsupportedSchema",
    "formats.base": "WireFormat",
    "formats.kimi_k2": "KIMI_K2 ToolCallFormat",
    "kernels": "apply_token_bitmask",
    "parsing": "Completion ToolCallParser parse_completion",
    "prompts": "RenderedPrompt Repair find_faults render_prompt render_tool_calls repair_messages",
    "request.json_limiter": "JsonLimiter",
    "request.spec": "ToolCall ToolCallSpec",
    "request.strictness": "StrictPolicy",
    "request.tools": "Limits Tool",
    "schema.coverage": "Coverage",
    "turn.matcher": "ToolCallMatcher",
    "vocabulary.bitmask": "allocate_bitmask",
    "vocabulary.vocabulary": "Vocabulary",
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = [
    "KIMI_K2", "CompiledToolCalls", "Compiler", "Completion", "ConstrainedK2Error", "Coverage", "FormatMismatch",
    "InvalidRequest", "JsonLimiter", "Limits", "MalformedCompletion", "RenderedPrompt", "Repair", "SchemaTooCostly",
    "StrictPolicy", "Tool", "ToolCall", "ToolCallFormat", "ToolCallMatcher", "ToolCallParser", "ToolCallSpec",
    "UnsupportedSchema", "Vocabulary", "WireFormat", "__version__", "allocate_bitmask", "apply_token_bitmask",
    "build_grammar", "find_faults", "parse_completion", "render_prompt", "render_tool_calls", "repair_messages",
    "schema_coverage"
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name from its home module on first use."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
