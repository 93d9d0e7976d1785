"""The compiler that the schema tests share."""

from functools import cache

from constrained_k2 import Compiler, Vocabulary


@cache
def byte_compiler() -> Compiler:
    """A compiler over the 256 bytes: the meaning of a schema does not depend on the vocabulary."""
    return Compiler(Vocabulary.of_bytes(), undeclared_keys="allow")
