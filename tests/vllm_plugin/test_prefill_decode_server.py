"""A prefill server and a decode server, by vLLM's example connector: the decode server reads the prompts' KV cache."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from benchmarks.ranks.run import judged
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS, VllmServer
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import ordinary_samples

pytestmark = [pytest.mark.server, pytest.mark.slow]

COMMON = {"model": "kimi-k2", "temperature": 0, "return_token_ids": True,
          "vllm_xargs": {"constrained_k2_finish_reserve": 300}}  # fmt: skip
RUN = 500


def connector(role: str, storage: Path) -> tuple[str, str]:
    config = {"kv_connector": "ExampleConnector", "kv_role": role,
              "kv_connector_extra_config": {"shared_storage_path": str(storage)}}  # fmt: skip
    return "--kv-transfer-config", json.dumps(config)


def asked(server: VllmServer, samples: Sequence[Sample], max_tokens: int) -> list[tuple[int, Any]]:
    async def ask_all() -> list[tuple[int, Any]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
            path = "/v1/chat/completions"
            bodies = [sample.body | COMMON | {"max_tokens": max_tokens} for sample in samples]
            answers = await asyncio.gather(*(client.post(path, json=body) for body in bodies))
            return [(answer.status_code, answer.json()) for answer in answers]

    return asyncio.run(ask_all())


@pytest.mark.parametrize("route", [BACKEND_FLAGS, CONSTRAINED_FLAGS], ids=["structured_output", "logits_processor"])
def test_a_decode_server_goes_on_from_the_prompts_of_a_prefill_server(route: tuple[str, ...], tmp_path: Path) -> None:
    model = build_model(tmp_path / "model", arch="llama")
    samples = [sample for sample in ordinary_samples(40, seed=5) if sample.choice in {"required", "named"}]
    flags, storage = (*route, "--dtype=float32", "--no-enable-prefix-caching"), tmp_path / "storage"
    # One after the other: the example connector keeps the KV cache in files.
    with VllmServer(model, (*flags, *connector("kv_producer", storage)), log=tmp_path / "prefill.log") as server:
        expected = judged(samples, asked(server, samples, RUN))
        first = judged(samples, asked(server, samples, 1))
    with VllmServer(model, (*flags, *connector("kv_consumer", storage)), log=tmp_path / "decode.log") as server:
        found = judged(samples, asked(server, samples, RUN))
        assert server.log_text().count("External Cache Hit!") >= len(samples)
    assert not expected.problems and not first.problems and not found.problems
    assert found.calls >= len(samples) > 10 and found.cut == 0
    assert [ids[0] for ids in found.ids] == [ids[0] for ids in first.ids]
    assert found.ids == expected.ids
