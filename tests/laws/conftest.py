"""Benches of both formats, which the laws' tests share."""

import pytest

from constrained_k2 import Compiler
from tests.laws.feeding import Bench


@pytest.fixture(scope="module")
def both(real_compiler: Compiler, k3_real_compiler: Compiler) -> tuple[Bench, Bench]:
    return Bench(real_compiler), Bench(k3_real_compiler)
