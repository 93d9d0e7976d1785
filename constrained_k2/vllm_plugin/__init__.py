"""Constrained Kimi K2 tool calls inside vLLM: the only place that imports vLLM.

* ``--tool-call-parser kimi_k2_constrained`` (registered by :func:`register`, a ``vllm.general_plugins`` entry point)
  lowers each chat request into what the engine receives, has the engine core constrain it as a structured output, and
  parses what comes out, by token id.
* ``--logits-processors constrained_k2.vllm_plugin:KimiK2LogitsProcessor`` masks the logits in the workers instead,
  under either of vLLM's model runners.
* ``--speculative-config`` with ``constrained_k2.vllm_plugin.GrammarProposer`` drafts what the grammar makes likely.

Tested on vLLM 0.32.0, CPU build.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constrained_k2.vllm_plugin.logits_processor import KimiK2LogitsProcessor
    from constrained_k2.vllm_plugin.parser import KimiK2ToolParser
    from constrained_k2.vllm_plugin.plugin import register
    from constrained_k2.vllm_plugin.proposer import GrammarProposer

_HOME = {
    "GrammarProposer": "proposer",
    "KimiK2LogitsProcessor": "logits_processor",
    "KimiK2ToolParser": "parser",
    "register": "plugin",
}

__all__ = ["GrammarProposer", "KimiK2LogitsProcessor", "KimiK2ToolParser", "register"]


def __getattr__(name: str) -> Any:
    """Load a name from its home module on first use: the plugin is loaded in processes that need only part of it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
