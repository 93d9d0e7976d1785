"""Compilers over Kimi K3's vocabularies."""

from pathlib import Path

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.testing import write_tokenizer
from tests.turn.k3_turns import as_k3


@pytest.fixture(scope="session")
def k3_small_compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """A compiler over a thousand tokens with Kimi K3's special tokens behind them."""
    directory = tmp_path_factory.mktemp("k2")
    write_tokenizer(directory)
    return Compiler(Vocabulary.from_pretrained(as_k3(directory, tmp_path_factory.mktemp("k3"))))


@pytest.fixture(scope="session")
def k3_real_compiler(real_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    """A compiler over Kimi K3's own vocabulary."""
    return Compiler(Vocabulary.from_pretrained(as_k3(real_tokenizer, tmp_path_factory.mktemp("real"))))


@pytest.fixture
def k3_compiler(request: pytest.FixtureRequest, compiler: Compiler, small_compiler: Compiler) -> Compiler:
    """A compiler over the vocabulary of Kimi K3 that is as large as ``compiler``'s."""
    size = "small" if compiler is small_compiler else "real"
    found: Compiler = request.getfixturevalue(f"k3_{size}_compiler")
    return found
