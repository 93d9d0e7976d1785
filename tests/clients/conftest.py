"""A server with this package and one without, which all tests of clients share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from constrained_k2.evaluation.server import BACKEND_FLAGS, WITHOUT_PLUGIN, VllmServer
from constrained_k2.testing import build_model
from tests.kit.servers import settings
from tests.kit.warm import WarmServer

_CONTEXT = ("--max-model-len=16384", "--max-num-batched-tokens=16384")  # agents' loops take some thousand tokens
_STOCK_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2")
_ENVIRONMENT = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
# The untrained model ends a value by chance only: the operator has every call end.
_SETTINGS = settings(finish_reserve=60)


@pytest.fixture(scope="package")
def client_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("clients") / "model", arch="llama")


def _started(model: Path, name: str, *flags: str, environment: dict[str, str] | None = None) -> Iterator[VllmServer]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    given = _ENVIRONMENT | (environment or {})
    with WarmServer(model, (*flags, *_CONTEXT), log=model / f"{name}.log", environment=given) as server:
        yield server


@pytest.fixture(scope="package")
def served(client_model: Path) -> Iterator[VllmServer]:
    """A server with this package."""
    yield from _started(client_model, "served", *BACKEND_FLAGS, *_SETTINGS)


@pytest.fixture(scope="package")
def thinking(client_model: Path) -> Iterator[VllmServer]:
    """A server with this package and a reasoning parser: without ``</think>`` all text is reasoning."""
    yield from _started(client_model, "thinking", *BACKEND_FLAGS, "--reasoning-parser", "kimi_k2", *_SETTINGS)


@pytest.fixture(scope="package")
def stock(client_model: Path) -> Iterator[VllmServer]:
    """The same model on vLLM alone."""
    yield from _started(client_model, "stock", *_STOCK_FLAGS, environment=WITHOUT_PLUGIN)
