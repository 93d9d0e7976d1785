"""A prefill and a decode server with vLLM's example connector, which keeps the KV cache of prompts in files."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from benchmarks.ranks.run import Answers, judged
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS, VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.kit.warm import WarmServer

pytestmark = pytest.mark.server

# In bfloat16 the likeliest token can depend on the batch. The prompts must come from the connector alone.
FLAGS = ("--dtype=float32", "--no-enable-prefix-caching")
RESERVE = {"constrained_k2_finish_reserve": 300}
COMMON = {"model": "kimi-k2", "temperature": 0, "return_token_ids": True, "vllm_xargs": RESERVE}
WHOLE = 500  # max_tokens of a whole answer
SOURCES = ("local_compute", "external_kv_transfer")


def connector(role: str, storage: Path) -> tuple[str, str]:
    extra = {"shared_storage_path": str(storage)}
    config = {"kv_connector": "ExampleConnector", "kv_role": role, "kv_connector_extra_config": extra}
    return "--kv-transfer-config", json.dumps(config)


def ask(server: VllmServer, samples: Sequence[Sample], max_tokens: int) -> Answers:
    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
            bodies = [sample.body | COMMON | {"max_tokens": max_tokens} for sample in samples]
            return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))

    return judged(samples, [(answer.status_code, answer.json()) for answer in asyncio.run(ask_all())])


def prompt_tokens(server: VllmServer) -> dict[str, float]:
    """The number of prompt tokens by source, as vLLM counts them."""
    counters = parse_counters(httpx.get(f"{server.url}/metrics", timeout=60).text, "vllm:prompt_tokens_by_source_total")
    return {source: value for name, value in counters.items() for source in SOURCES if f'source="{source}"' in name}


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
