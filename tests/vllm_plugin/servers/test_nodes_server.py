"""Servers of two nodes, here two servers of one machine: the second one is headless and has its own command line."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.evaluation.server import (
    BACKEND_FLAGS,
    CONSTRAINED_FLAGS,
    SERVE,
    VllmServer,
    _free_port,
    with_settings,
)
from constrained_k2.evaluation.server_metrics import parse_counters
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.vllm_plugin.openai_client import ask_all, judged

pytestmark = [pytest.mark.server, pytest.mark.only_all]

UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
RESERVE = {"vllm_xargs": {"constrained_k2_finish_reserve": 300}}


# Three minutes a pair. On one node, test_ranks_server.py has each kind on both routes.
@pytest.mark.parametrize(
    ("kind", "route"),
    [("data parallel", BACKEND_FLAGS), ("tensor parallel", CONSTRAINED_FLAGS)],
    ids=["data parallel-structured_output", "tensor parallel-logits_processor"],
)
def test_both_nodes_constrain(kind: str, route: tuple[str, ...], tmp_path: Path) -> None:
    first: tuple[str, ...]
    model, port = build_model(tmp_path / "model", arch="llama"), _free_port()
    if kind == "data parallel":
        both = ("--data-parallel-size=2", "--data-parallel-size-local=1", "--data-parallel-address=127.0.0.1",
                f"--data-parallel-rpc-port={port}")  # fmt: skip
        # Several API servers are the topology of test_ranks_server.py: each costs a process and its imports.
        first, second = ("--api-server-count=1",), ("--headless", "--data-parallel-start-rank=1")
    else:
        both = ("--tensor-parallel-size=2", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}")
        first, second = ("--node-rank=0",), ("--headless", "--node-rank=1")
    route = with_settings(route, undeclared_calls="nearest")  # a random model means none of its calls
    samples = list(ordinary_samples(32, seed=7))
    with (
        VllmServer(model, (*route, *both, *second), log=tmp_path / "1.log", environment=UNBOUND, entry=SERVE),
        VllmServer(model, (*route, *both, *first), log=tmp_path / "0.log", environment=UNBOUND, entry=SERVE) as server,
    ):
        asked = ask_all(server.url, samples, model="kimi-k2", temperature=1.0, max_tokens=500, extra_body=RESERVE)
        result, problems = judged(samples, asyncio.run(asked))
        time.sleep(1)  # the last step's statistics come behind its answer
        counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=60).text)
    assert not problems
    assert result.calls == result.declared == result.valid == result.numbered >= result.due > 15
    steps = [value for name, value in counters.items() if name.startswith("constrained_k2_masked_steps_total{")]
    assert len(steps) == (2 if kind == "data parallel" else 1)
    assert all(steps)
