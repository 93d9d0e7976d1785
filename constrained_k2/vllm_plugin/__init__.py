"""The vLLM plugin: constrained tool calls of Kimi models. Only this folder imports vLLM.

The life of a request, with ``--tool-call-parser kimi_constrained``, whichever format the tokenizer speaks:

1. API server. ``api_server/patched`` sees messages and tools before the chat template: ``repair`` repairs the
   history, ``request_hook`` reads the request once, into a ``RequestState``, and compiles its tools.
2. vLLM renders the prompt and calls our parser's ``adjust_request``: the request is admitted, or refused with HTTP 400,
   and its constraint written into ``vllm_xargs``, which travels as ``SamplingParams.extra_args``.
3. vLLM's ``InputProcessor`` passes ``api_server/admission``, which tags the request for the engine core.
4. Engine core. ``engine_core/intake`` takes every request: it leaves tagged ones as they are, checks a constraint that
   no front end of ours has checked, and hands all others to ``adoption``. ``structured_output`` gives tagged requests
   a grammar over the model's vocabulary. vLLM's scheduler asks it for bitmasks, overlapped with the forward pass, and
   to check and make drafts.
5. Worker. vLLM applies the bitmasks; ``shared/row_probe`` counts in how many of the rows that the engine core chose
   (``shared/row_plan``) they forbid the likeliest token, and ``shared/declining`` closes the rows of names
   that are unlikely to mean a declared function. With
   ``--logits-processors constrained_k2.vllm_plugin:KimiK2LogitsProcessor`` step 4 only takes requests, and
   ``worker/`` computes and applies the masks, under either of vLLM's model runners.
6. API server. ``api_server/parser`` reads token ids, never text; ``finish_reason`` is corrected, diagnostics are added.
   ``shared/transport`` brings the counters of all processes to vLLM's ``/metrics``.

A file's folder says which process runs it: ``api_server/``, ``engine_core/``, ``worker/``, or several, ``shared/``.
``start/`` runs first in each: ``registration`` is the ``vllm.general_plugins`` entry point, and ``table`` lists
everything that is replaced in vLLM. ``shared/settings`` has all that operators and requests can set.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constrained_k2.vllm_plugin.api_server.parser import KimiK2ToolParser
    from constrained_k2.vllm_plugin.engine_core.speculation import GrammarProposer
    from constrained_k2.vllm_plugin.start.registration import register
    from constrained_k2.vllm_plugin.worker.logits_processor import KimiK2LogitsProcessor

_HOME = {
    "GrammarProposer": "engine_core.speculation",
    "KimiK2LogitsProcessor": "worker.logits_processor",
    "KimiK2ToolParser": "api_server.parser",
    "register": "start.registration",
}

__all__ = ["GrammarProposer", "KimiK2LogitsProcessor", "KimiK2ToolParser", "register"]


def __getattr__(name: str) -> Any:
    """Load a name from its module on first use: each of vLLM's processes needs only some."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "register":
        from constrained_k2.vllm_plugin.start.apply import require, require_process

        require()
        if name == "KimiK2ToolParser":
            require_process("api_server")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
