"""Compiles requests for one vocabulary. Each schema is compiled on its first use, then cached."""

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.compiler.shared import SharedGrammars
from constrained_k2.request.spec import ToolCallSpec

__all__ = ["CompiledToolCalls", "Compiler"]


class Compiler(SharedGrammars):
    """Compiles requests for one vocabulary. Make one per process; all methods may be called from several threads.

    Args:
        vocabulary: The model's vocabulary.
        engine: The default grammar engine for arguments; a spec may override it.
        policy: Bounds on the tools' strictness.
        undeclared_keys: ``allow`` keeps to JSON Schema; ``forbid`` narrows objects with ``properties`` to the keys that
            their schema declares. A spec may override it.
        cache_bytes: Budget of the compiled schemas, estimated.
        compile_seconds: Time limit for one schema. Set it only in the process that admits requests: an admitted schema
            must compile in every process, however busy.
        request_seconds: Time after which no further schema of a request is compiled; for admission too.
        retry_seconds: Time for which a schema that took too long is refused without another attempt.
        counts: Counts of cache hits and compilations to add to; by default new ones.
        threads: Threads that fill the masks of a batch; None for one per CPU of the process, at most eight.
        mask_cache_bytes: Budget of LLGuidance's cached masks and DFA states, estimated; 0 for no cache.
        undeclared_calls: ``decline`` drops calls of functions that the request does not declare; ``nearest`` makes
            them calls of declared ones: see :meth:`ToolCallMatcher.intent`. A spec may override it.
        call_threshold: A call is declined if the probability, from 0 to 1, of a declared name is below this.

    Raises:
        InvalidRequest: The engine is unknown, or a budget or the number of threads is out of range.
    """

    def compile(self, spec: ToolCallSpec, *, check: bool = True) -> CompiledToolCalls:
        """Prepare a request for matching.

        Args:
            spec: The request.
            check: Compile every tool's schema now, and raise as :meth:`CompiledToolCalls.check_all`. Without it a
                schema is compiled when the model calls its tool: for servers that check at admission.
        """
        compiled = CompiledToolCalls(self, spec)
        if check:
            compiled.check_all()
        return compiled
