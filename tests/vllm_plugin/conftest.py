"""Fixtures that all tests of the plugin share."""

import logging
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import openai
import pytest

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import VllmServer
from constrained_k2.formats.kimi_k2 import KIMI_K2
from constrained_k2.testing import build_model, write_tokenizer
from constrained_k2.vllm_plugin.shared import log
from constrained_k2.vllm_plugin.shared.server import Server

if find_spec("vllm") is None:  # not imported: some tests replace parts of Triton before
    pytest.skip("vLLM is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def forgotten_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test what it remembered of its server."""
    for name in ("constrains", "model_name", "settings"):
        monkeypatch.setattr(Server, name, getattr(Server, name))
    monkeypatch.setattr(Server, "wire_format", KIMI_K2)  # a wider fixture of another file may have served K3
    if (state := sys.modules.get("constrained_k2.vllm_plugin.api_server.request_state")) is not None:
        state._current.set(None)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small random model, shaped as Llama, with its tokenizer."""
    return build_model(tmp_path_factory.mktemp("model"), arch="llama")


@pytest.fixture(scope="session")
def vocabulary(model: Path) -> Vocabulary:
    """Its vocabulary, and that of every other model that `build_model` makes."""
    return Vocabulary.from_pretrained(model)


@pytest.fixture(scope="session")
def k3_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tokenizer of Kimi K3's form."""
    directory = tmp_path_factory.mktemp("k3")
    write_tokenizer(directory, wire_format="kimi_k3")
    return directory


@pytest.fixture(scope="session")
def k3_vocabulary(k3_model: Path) -> Vocabulary:
    """Its vocabulary."""
    return Vocabulary.from_pretrained(k3_model)


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Any:
    """Its tokenizer, as vLLM loads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model, trust_remote_code=True)


@pytest.fixture(params=[None, "kimi_k2"], ids=["no_reasoning_parser", "reasoning_parser"])
def composed(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    """The parser that vLLM composes with ours, with and without a reasoning parser."""
    from tests.vllm_plugin.parsers import Composed

    return Composed(tokenizer, request.param)


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    """Each kind of scheduling in turn."""
    return bool(request.param)


@pytest.fixture(scope="module")
def client(server: VllmServer) -> Iterator[openai.OpenAI]:
    """A client of the test's server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as opened:
        yield opened


@pytest.fixture(autouse=True)
def seen_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ``caplog`` see once what the plugin says: set up, vLLM's logger above it hands nothing on to the root."""
    logger = logging.getLogger("vllm.constrained_k2")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(log, "_limit", log.LineLimit(1.0, 20))  # lines are left, whatever other tests have had said
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The counters of a process that has just started."""
    from constrained_k2.vllm_plugin.shared.counters import EngineCounters
    from constrained_k2.vllm_plugin.shared.declining import Declining
    from constrained_k2.vllm_plugin.shared.row_probe import RowProbe
    from tests.vllm_plugin.patched import patch_vllm

    patch_vllm()  # which imports the modules of all processes
    made = EngineCounters()
    replaced = {"engine_counters": made, "declining": Declining(made), "row_probe": RowProbe(made)}
    for module in [module for name, module in sys.modules.items() if name.startswith("constrained_k2.vllm_plugin.")]:
        for name, value in replaced.items():
            if isinstance(getattr(module, name, None), type(value)):  # else a package's module of this name
                monkeypatch.setattr(module, name, value)
    return made
