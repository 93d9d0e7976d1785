"""Servers of several processes: two nodes, prefill apart from decoding, and topologies that vLLM's CPU build cannot run.

The two nodes are two servers of one machine: the second one is headless and has its own command line.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.ranks.run import Answers
from benchmarks.ranks.run import judged as judged_bodies
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server import (
    BACKEND_FLAGS,
    CONSTRAINED_FLAGS,
    SERVE,
    WITHOUT_PLUGIN,
    VllmServer,
    _free_port,
    with_settings,
)
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.kit.warm import WarmServer
from tests.vllm_plugin.asking import CHAT, Metrics, ask_all, judged, settled

pytestmark = pytest.mark.server

UNBOUND = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
STOCK = {**WITHOUT_PLUGIN, **UNBOUND}
RESERVE = {"vllm_xargs": {"constrained_k2_finish_reserve": 300}}
# In bfloat16 the likeliest token can depend on the batch. The prompts must come from the connector alone.
FLAGS = ("--dtype=float32", "--no-enable-prefix-caching")
COMMON = {"model": "kimi-k2", "temperature": 0, "return_token_ids": True, **RESERVE}
WHOLE = 500  # max_tokens of a whole answer
SOURCES = ("local_compute", "external_kv_transfer")


# Three minutes a pair. On one node, test_ranks_server.py has each kind on both routes.
@pytest.mark.only_all
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
        metrics = settled(server)
    assert not problems
    assert result.calls == result.declared == result.valid == result.numbered >= result.due > 15
    engines = range(2 if kind == "data parallel" else 1)
    assert all(metrics("masked_steps_total", engine=str(rank)) for rank in engines)


def connector(role: str, storage: Path) -> tuple[str, str]:
    extra = {"shared_storage_path": str(storage)}
    config = {"kv_connector": "ExampleConnector", "kv_role": role, "kv_connector_extra_config": extra}
    return "--kv-transfer-config", json.dumps(config)


def ask(server: VllmServer, samples: Sequence[Sample], max_tokens: int) -> Answers:
    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
            bodies = [sample.body | COMMON | {"max_tokens": max_tokens} for sample in samples]
            return await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))

    return judged_bodies(samples, [(answer.status_code, answer.json()) for answer in asyncio.run(ask_all())])


def prompt_tokens(server: VllmServer) -> dict[str, float]:
    """The number of prompt tokens by source, as vLLM counts them."""
    metrics = Metrics(server)
    return {source: metrics("vllm:prompt_tokens_by_source_total", source=source) for source in SOURCES}


@pytest.mark.parametrize(
    "route", [BACKEND_FLAGS, pytest.param(CONSTRAINED_FLAGS, marks=pytest.mark.only_all)],
    ids=["structured_output", "logits_processor"],
)  # fmt: skip
def test_a_decode_server_answers_as_one_server(route: tuple[str, ...], tmp_path: Path) -> None:
    model, storage = build_model(tmp_path / "model", arch="llama"), tmp_path / "storage"
    samples = [sample for sample in ordinary_samples(40, seed=5) if sample.choice in {"required", "named"}]
    storage.mkdir()
    servers = [
        WarmServer(model, (*route, *FLAGS, *connector(f"kv_{role}", storage)), log=tmp_path / f"{role}.log")
        for role in ("producer", "consumer")
    ]
    # The servers start at the same time. Each ends with the thread that started it, so the threads end after them.
    with ThreadPoolExecutor(2) as threads, ExitStack() as running:
        prefill, decode = threads.map(running.enter_context, servers)
        expected = ask(prefill, samples, WHOLE)
        shutil.rmtree(storage)
        storage.mkdir()
        first = ask(prefill, samples, 1)
        found = ask(decode, samples, WHOLE)
        computed, received = prompt_tokens(prefill), prompt_tokens(decode)
    assert not expected.problems
    assert expected.calls >= len(samples) > 10
    assert expected.cut == 0
    assert first.ids == tuple(ids[:1] for ids in expected.ids)
    assert found == expected
    assert computed["external_kv_transfer"] == 0
    assert received["external_kv_transfer"] > 4 * received["local_compute"]


# A test below that fails shows that this vLLM can run the topology: then test_ranks_server.py should cover it, and
# docs/ranks.md, which lists the errors, changes.


def fails(server: VllmServer) -> None:
    """Ask for a completion, which fails; the server may end before it has answered."""
    body = {"model": "kimi-k2", "prompt": "hi", "max_tokens": 5}
    with suppress(httpx.TransportError):
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).status_code == 500


@pytest.mark.only_all
@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--data-parallel-size=2", "--data-parallel-rank=0"), "Non-MoE models do not support external data parallel mode"),
        (("--tensor-parallel-size=2", "--distributed-executor-backend=ray"), "current platform cpu does not support ray"),
    ],
    ids=["external load balancing of a dense model", "ray"],
)  # fmt: skip
def test_flags_that_end_the_start(tmp_path: Path, flags: tuple[str, ...], error: str) -> None:
    if "ray" in error:
        pytest.importorskip("ray", reason="Ray is not installed")
    model, log = build_model(tmp_path / "model", arch="llama"), tmp_path / "log"
    server = VllmServer(model, flags, log=log, environment=STOCK, entry=SERVE)
    with pytest.raises(RuntimeError, match="the server ended with [1-9]"), server:
        pass
    assert error in log.read_text(errors="replace")


@pytest.mark.only_all
def test_data_parallel_of_a_mixture_of_experts(tmp_path: Path) -> None:
    model, flags = build_model(tmp_path / "model", arch="kimi_k2"), ("--data-parallel-size=2",)
    with VllmServer(model, flags, log=tmp_path / "log", environment=STOCK, entry=SERVE) as server:
        for _ in range(2):
            fails(server)
        assert "raise NotImplementedError" in server.log_text()  # CpuCommunicator.all_gatherv


@pytest.mark.only_all
def test_an_engine_core_that_dies_ends_the_server(tmp_path: Path) -> None:
    """None is started in its place."""
    model = build_model(tmp_path / "model", arch="llama")
    with VllmServer(model, (), log=tmp_path / "log", environment=STOCK, entry=SERVE) as server:
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
