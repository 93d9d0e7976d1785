"""A server with this package and one without, which all tests of clients share."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from constrained_k2.evaluation.server import BACKEND_FLAGS, WITHOUT_PLUGIN, VllmServer
from constrained_k2.testing import build_model
from tests.kit.warm import WarmServer

_CONTEXT = ("--max-model-len=16384", "--max-num-batched-tokens=16384")  # agents' loops take some thousand tokens
_STOCK_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2")
_ENVIRONMENT = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
# The untrained model ends a value by chance only: the operator has every call end.
_SETTINGS = json.dumps({"constrained_k2": {"finish_reserve": 60}})


@pytest.fixture(scope="package")
def client_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("clients") / "model", arch="llama")


@pytest.fixture(scope="package")
def served(client_model: Path) -> Iterator[VllmServer]:
    """A server with this package."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    flags = (*BACKEND_FLAGS, *_CONTEXT, "--additional-config", _SETTINGS)
    with WarmServer(client_model, flags, log=client_model / "served.log", environment=_ENVIRONMENT) as server:
        yield server


@pytest.fixture(scope="package")
def thinking(client_model: Path) -> Iterator[VllmServer]:
    """A server with this package and a reasoning parser: without ``</think>`` all text is reasoning."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    flags = (*BACKEND_FLAGS, *_CONTEXT, "--reasoning-parser", "kimi_k2", "--additional-config", _SETTINGS)
    with WarmServer(client_model, flags, log=client_model / "thinking.log", environment=_ENVIRONMENT) as server:
        yield server


@pytest.fixture(scope="package")
def stock(client_model: Path) -> Iterator[VllmServer]:
    """The same model on vLLM alone."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    environment = _ENVIRONMENT | WITHOUT_PLUGIN
    flags = (*_STOCK_FLAGS, *_CONTEXT)
    with WarmServer(client_model, flags, log=client_model / "stock.log", environment=environment) as server:
        yield server
