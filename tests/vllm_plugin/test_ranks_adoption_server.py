"""Data parallel 2 with vLLM's own tool parser: each engine core adopts the requests that it is given."""

import asyncio
import re
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from benchmarks.ranks.topologies import TOPOLOGIES
from constrained_k2.evaluation.server import ADOPTED_FLAGS
from constrained_k2.evaluation.server_metrics import parse_counters, total
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.vllm_plugin.openai_client import ask_all, judged
from tests.warm import WarmServer

pytestmark = pytest.mark.server

RESERVE = {"vllm_xargs": {"constrained_k2_finish_reserve": 300}}
ADOPTED = "constrained_k2_adopted_requests_total"


def test_each_engine_adopts_requests(tmp_path: Path) -> None:
    model, topology = build_model(tmp_path / "model", arch="llama"), TOPOLOGIES["data parallel 2"]
    samples = [sample for sample in ordinary_samples(32, seed=9) if sample.choice in {"required", "named"}]
    flags = (*topology.flags, *ADOPTED_FLAGS, "--api-server-count=1")  # two of them are another test's
    with WarmServer(model, flags, log=tmp_path / "server.log", environment=topology.environment) as server:
        asked = ask_all(server.url, samples, model="kimi-k2", temperature=1.0, max_tokens=1000, extra_body=RESERVE)
        result, problems = judged(samples, asyncio.run(asked))
        time.sleep(1)  # the last step's statistics come behind its answer
        counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=60).text)
    assert not problems
    assert result.truncated == 0
    assert result.served == result.due == len(samples) > 15
    adopted = [
        sum(value for name, value in counters.items() if re.match(f'{ADOPTED}.*engine="{rank}".*source="tag"', name))
        for rank in range(topology.engines)
    ]
    assert all(adopted)
    assert sum(adopted) == total(counters, ADOPTED) == len(samples)
    assert total(counters, "constrained_k2_left_requests_total") == 0
