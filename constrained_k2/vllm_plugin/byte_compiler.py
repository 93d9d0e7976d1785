"""Compiles a request's tools over a vocabulary of the 256 bytes, to decide whether it can be constrained.

Whether a grammar can be built does not depend on the vocabulary, and one of bytes costs nothing to set up.
"""

from functools import cache

from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.compiler.compiler import Compiler
from constrained_k2.errors import InvalidRequest
from constrained_k2.request.spec import ToolCallSpec
from constrained_k2.vllm_plugin.flags import XARGS_KEY
from constrained_k2.vllm_plugin.settings import Settings
from constrained_k2.vocabulary.vocabulary import Vocabulary

_COMPILE_SECONDS = 1.0  # how long one schema may hold up the admission of requests
_REQUEST_SECONDS = 3.0  # how long the schemas of one request may, except for the last one

SLOW_SECONDS = 0.005
"""A schema that took this long to compile here is compiled in the engine core before the request is scheduled; any
other while the model writes the function's name, which takes a GPU some 50 ms."""


@cache
def byte_compiler(settings: Settings) -> Compiler:
    """The compiler of a process that admits requests."""
    return Compiler(
        Vocabulary.of_bytes(),
        settings.engines[0],
        policy=settings.strict,
        undeclared_keys=settings.undeclared_keys,
        cache_bytes=settings.cache_mib << 20,
        compile_seconds=_COMPILE_SECONDS,
        request_seconds=_REQUEST_SECONDS,
        mask_cache_bytes=0,  # it only compiles
    )


def looked_up(constraint: ToolCallSpec, settings: Settings) -> CompiledToolCalls:
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
    return byte_compiler(settings).compile(constraint, check=False)
