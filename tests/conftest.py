"""Vocabularies that many tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.fixtures import write_tokenizer

settings.register_profile("untimed", deadline=None)  # a busy machine is no fault
settings.load_profile("untimed")

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def small_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """Some 1,024 tokens made on the spot, with Kimi's special tokens behind them."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return Vocabulary.from_pretrained(directory)


@pytest.fixture(scope="session")
def real_tokenizer() -> Path:
    """The directory of Kimi K2's own tokenizer."""
    directory = SHARED / "kimi_k2" / "tokenizer"
    if not directory.is_dir():
        pytest.skip("the real Kimi tokenizer is not part of the repository; expected at ../shared/kimi_k2/tokenizer")
    return directory


@pytest.fixture(scope="session")
def real_vocabulary(real_tokenizer: Path) -> Vocabulary:
    """Kimi K2's own vocabulary."""
    return Vocabulary.from_pretrained(real_tokenizer)


@pytest.fixture(scope="session")
def small_compiler(small_vocabulary: Vocabulary) -> Compiler:
    """A compiler over the small vocabulary."""
    return Compiler(small_vocabulary)


@pytest.fixture(scope="session")
def real_compiler(real_vocabulary: Vocabulary) -> Compiler:
    """A compiler over the real vocabulary."""
    return Compiler(real_vocabulary)


@pytest.fixture(params=["small", pytest.param("real", marks=pytest.mark.slow)])
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """A compiler over each vocabulary in turn."""
    found: Compiler = request.getfixturevalue(f"{request.param}_compiler")
    return found
