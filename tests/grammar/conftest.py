"""Compilers over Kimi K3's vocabularies."""

import pytest

from constrained_k2 import Compiler


@pytest.fixture
def k3_compiler(request: pytest.FixtureRequest, compiler: Compiler, small_compiler: Compiler) -> Compiler:
    """A compiler over the vocabulary of Kimi K3 that is as large as ``compiler``'s."""
    size = "small" if compiler is small_compiler else "real"
    found: Compiler = request.getfixturevalue(f"k3_{size}_compiler")
    return found
