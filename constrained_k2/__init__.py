"""Constrained tool calls for Kimi K2 on vLLM.

Public names are loaded on first use: ``import constrained_k2`` loads neither torch, nor vLLM, nor a grammar engine.
"""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
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

__version__ = "0.2.0"

_MOVED = {
    "batch": "turn.batch",
    "bitmask": "vocabulary.bitmask",
    "closing": "turn.finish_budget",
    "compiled": "compiler.compiled",
    "coverage": "compiler.coverage",
    "drafting": "turn.drafts",
    "fixtures": "testing",
    "format": "formats.kimi_k2",
    "json_limiter": "request.json_limiter",
    "matcher": "turn.matcher",
    "policy": "request.strictness",
    "rendering": "prompts",
    "tools": "request.spec",
    "whole_format": "compiler.whole_turn",
}
"""Module or package of version 0.1 -> its present place. These imports warn, and go with version 0.3."""

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


class _MovedModules(Loader):
    """Imports the modules of version 0.1 from their present places, with a warning."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        package, *old = name.split(".", 2)
        return ModuleSpec(name, self) if package == __name__ and old and old[0] in _MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        _, old, *rest = module.__name__.split(".", 2)
        new = ".".join([__name__, _MOVED[old], *rest])
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)


# First, or Python's finder would load the modules inside moved packages a second time under their old names.
sys.meta_path.insert(0, _MovedModules())
