"""Compiles a request's tools over the 256 bytes, to decide whether the request can be constrained.

Schemas on the fast path (:mod:`~constrained_k2.schema.fast_path`) are not compiled here. Whether a grammar can be built
does not depend on the vocabulary, and one of bytes costs nothing to set up.
"""

from functools import cache
from typing import NamedTuple

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.compiler.compiler import Compiler
from constrained_k2.errors import InvalidRequest
from constrained_k2.formats.base import WireFormat
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.vllm_plugin.shared.flags import XARGS_KEY
from constrained_k2.vllm_plugin.shared.log import warn
from constrained_k2.vllm_plugin.shared.server import Server
from constrained_k2.vllm_plugin.shared.settings import Settings
from constrained_k2.vocabulary.vocabulary import Vocabulary


class CompileLimits(NamedTuple):
    """The most time, in seconds, that the schemas of a request may take to compile."""

    schema: float
    request: float  # except for the last schema


API_SERVER = CompileLimits(1.0, 3.0)  # in a thread for each request
ENGINE_CORE = CompileLimits(0.25, 0.5)  # in the thread that takes all requests

SLOW_SECONDS = 0.005
"""A schema that took this long to compile here, or would by its size if its shape admitted it, is compiled in the
engine core before the request is scheduled; any other while the model writes the function's name, which takes a GPU
some 50 ms."""


def byte_compiler(settings: Settings, limits: CompileLimits = API_SERVER) -> Compiler:
    """The compiler of a process that admits requests, for the format of the served model."""
    return _byte_compiler(settings, limits, Server.wire_format)


@cache
def _byte_compiler(settings: Settings, limits: CompileLimits, wire_format: WireFormat) -> Compiler:
    return Compiler(
        Vocabulary.of_bytes(wire_format),
        settings.engines[0],
        policy=settings.strict,
        undeclared_keys=settings.undeclared_keys,
        cache_bytes=settings.grammar_bytes,
        compile_seconds=limits.schema,
        request_seconds=limits.request,
        retry_seconds=10.0,  # a schema that took too long is refused for that time, without another attempt
        mask_cache_bytes=0,  # it only compiles
    )


def compiled_over_bytes(
    constraint: ToolCallSpec, settings: Settings, limits: CompileLimits = API_SERVER
) -> CompiledToolCalls:
    """A request's grammars over bytes; :meth:`CompiledToolCalls.check_all` compiles those that are not cached.

    Raises:
        InvalidRequest: The request asks for an engine that the server does not offer.
    """
    if constraint.engine is not None and constraint.engine not in settings.engines:
        raise InvalidRequest(
            f"this server does not offer {constraint.engine!r}",
            "engine",
            f"Leave it out, or start the server with --additional-config "
            f'\'{{"{XARGS_KEY}": {{"engines": ["llguidance", "{constraint.engine}"]}}}}\'',
        )
    return byte_compiler(settings, limits).compile(constraint, check=False)


def admit_in_engine_core(constraint: ToolCallSpec, settings: Settings) -> CompiledToolCalls:
    """Admit a request that no front end of ours has admitted, and log the tools that accept any JSON object."""
    compiled = compiled_over_bytes(constraint, settings, ENGINE_CORE)
    compiled.admit()
    for name, use in compiled.without_grammar.items():
        warn("not enforced in a schema", f"{name!r}: {use.pointer} ({use.reason})")
    return compiled
