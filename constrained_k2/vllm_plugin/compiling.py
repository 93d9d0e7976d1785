"""Compiling a request's tools where it is admitted, in the API server's process.

A schema is checked by compiling it over a vocabulary of the 256 bytes: whether a grammar can be built does not depend
on the model's vocabulary, and that one costs nothing to set up.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from constrained_k2.compiler import CompiledToolCalls, Compiler
from constrained_k2.errors import ConstrainedK2Error
from constrained_k2.tools import ToolCallSpec
from constrained_k2.vllm_plugin import metrics
from constrained_k2.vllm_plugin.settings import Server, Settings
from constrained_k2.vocabulary import Vocabulary

_COMPILE_SECONDS = 1.0
"""How long one schema may hold up the admission of requests."""
_REQUEST_SECONDS = 3.0
"""How long the schemas of one request may, but for the last one."""


@cache
def byte_compiler(settings: Settings) -> Compiler:
    """The compiler that admission uses."""
    return Compiler(
        Vocabulary.of_bytes(),
        settings.engines[0],
        policy=settings.policy,
        cache_bytes=settings.cache_mib << 20,
        compile_seconds=_COMPILE_SECONDS,
        request_seconds=_REQUEST_SECONDS,
        mask_cache_bytes=0,  # it only compiles
    )


def compile_tools(spec: ToolCallSpec, *, count: bool) -> CompiledToolCalls:
    """Compile a request's tools over the vocabulary of bytes.

    Raises:
        UnsupportedSchema: As :func:`admit`.
        SchemaTooCostly: As :func:`admit`.
    """
    compiled = byte_compiler(Server.settings).compile(spec, check=False)
    try:
        compiled.check_all()
    finally:
        if count:
            metrics.record_lookups(compiled)
    return compiled


@dataclass(frozen=True, slots=True)
class CompiledAhead:
    """What came of compiling a request's tools before it is admitted.

    Attributes:
        spec: The request, as far as its tools go.
        outcome: The request compiled, or why it cannot be.
    """

    spec: ToolCallSpec
    outcome: CompiledToolCalls | ConstrainedK2Error

    @classmethod
    def of(cls, spec: ToolCallSpec) -> "CompiledAhead":
        """Compile a request's tools; what is wrong with them is said when the request is admitted."""
        try:
            return cls(spec, compile_tools(spec, count=True))
        except ConstrainedK2Error as error:
            return cls(spec, error)

    def is_for(self, spec: ToolCallSpec) -> bool:
        """Whether this is the same request, but for what does not matter to its tools."""
        mine = (self.spec.tools, self.spec.max_calls, self.spec.choice, self.spec.engine)
        return mine == (spec.tools, spec.max_calls, spec.choice, spec.engine)

    def compiled(self) -> CompiledToolCalls:
        """The request, compiled.

        Raises:
            ConstrainedK2Error: It cannot be.
        """
        if isinstance(self.outcome, ConstrainedK2Error):
            raise self.outcome
        return self.outcome


compiled_ahead: ContextVar[CompiledAhead | None] = ContextVar("compiled_ahead", default=None)
"""Of the request that is being admitted in this context."""
