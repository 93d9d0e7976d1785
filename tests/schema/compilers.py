"""The compiler that the schema tests share."""

from functools import cache

from constrained_k2 import Compiler, Vocabulary


@cache
def byte_compiler() -> Compiler:
    """A compiler over the 256 bytes: what a schema means does not depend on the model's vocabulary."""
    return Compiler(Vocabulary.of_bytes())
