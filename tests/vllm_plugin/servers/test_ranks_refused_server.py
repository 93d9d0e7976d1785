"""Topologies that vLLM's CPU build cannot run without this package either, with their errors: docs/ranks.md lists them.

A test that fails here shows that this vLLM can run the topology: then test_ranks_server.py should cover it.
"""

import time
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.evaluation.server import SERVE, WITHOUT_PLUGIN, VllmServer
from constrained_k2.testing import build_model

pytestmark = [pytest.mark.server, pytest.mark.only_all]

ENVIRONMENT = {**WITHOUT_PLUGIN, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def fails(server: VllmServer) -> None:
    """Ask for a completion, which fails; the server may end before it has answered."""
    body = {"model": "kimi-k2", "prompt": "hi", "max_tokens": 5}
    with suppress(httpx.TransportError):
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).status_code == 500


def started_log(tmp_path: Path, *flags: str) -> str:
    model, log = build_model(tmp_path / "model", arch="llama"), tmp_path / "log"
    server = VllmServer(model, flags, log=log, environment=ENVIRONMENT, entry=SERVE)
    with pytest.raises(RuntimeError, match="the server ended with [1-9]"), server:
        pass
    return log.read_text(errors="replace")


def test_data_parallel_with_external_load_balancing_of_a_dense_model(tmp_path: Path) -> None:
    log = started_log(tmp_path, "--data-parallel-size=2", "--data-parallel-rank=0")
    assert "Non-MoE models do not support external data parallel mode" in log


def test_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    log = started_log(tmp_path, "--tensor-parallel-size=2", "--distributed-executor-backend=ray")
    assert "current platform cpu does not support ray" in log


def test_data_parallel_of_a_mixture_of_experts(tmp_path: Path) -> None:
    model, flags = build_model(tmp_path / "model", arch="kimi_k2"), ("--data-parallel-size=2",)
    with VllmServer(model, flags, log=tmp_path / "log", environment=ENVIRONMENT, entry=SERVE) as server:
        for _ in range(2):
            fails(server)
        assert "raise NotImplementedError" in server.log_text()  # CpuCommunicator.all_gatherv


def test_an_engine_core_that_dies_ends_the_server(tmp_path: Path) -> None:
    """None is started in its place."""
    model = build_model(tmp_path / "model", arch="llama")
    with VllmServer(model, (), log=tmp_path / "log", environment=ENVIRONMENT, entry=SERVE) as server:
        process = psutil.Process(server.pid)
        (core,) = (child for child in process.children() if child.cmdline()[:1] == ["VLLM::EngineCore"])
        core.kill()
        fails(server)
        for _ in range(240):
            if process.status() == psutil.STATUS_ZOMBIE:
                break
            time.sleep(0.25)
        assert process.status() == psutil.STATUS_ZOMBIE
        assert "EngineDeadError" in server.log_text()
