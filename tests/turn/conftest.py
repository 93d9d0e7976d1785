"""A compiler of each format for the tests of turns."""

import pytest

from constrained_k2 import Compiler


@pytest.fixture(scope="module", params=["small_compiler", "k3_small_compiler"], ids=["Kimi K2", "Kimi K3"])
def each_compiler(request: pytest.FixtureRequest) -> Compiler:
    """A compiler over the small vocabulary of each format in turn."""
    found: Compiler = request.getfixturevalue(request.param)
    return found
