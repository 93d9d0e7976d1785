"""Debian's Prometheus scrapes a server: every query of ``deploy/`` finds series, and no alert fires on healthy traffic."""

import asyncio
import re
import shutil
import time
from pathlib import Path

import httpx
import pytest
import yaml

from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import ordinary_samples
from scripts.draw_dashboard import DEPLOY, draw, panels, prometheus, query
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.vllm_plugin.asking import ask_all, judged

pytestmark = [pytest.mark.server, pytest.mark.only_all, on("structured_output")]
RESERVE = {"vllm_xargs": {"constrained_k2_finish_reserve": 300}}
REFUSED = {"model": "kimi-k2", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
           "tools": [tool("f", {"$ref": "#/missing"}, strict=True)]}  # fmt: skip


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus: install Debian's package prometheus")
def test_every_query_finds_series(server: VllmServer, tmp_path: Path) -> None:
    samples = list(ordinary_samples(24, seed=11))
    with prometheus(server.url, tmp_path) as client:
        for part in (samples[:12], samples[12:]):  # rates need two scrapes with something between them
            asked = ask_all(server.url, part, model="kimi-k2", temperature=1.0, max_tokens=500, extra_body=RESERVE)
            assert not judged(part, asyncio.run(asked))[1]
            assert httpx.post(f"{server.url}/v1/chat/completions", json=REFUSED, timeout=60).status_code == 400
            time.sleep(6)
        for panel in panels("1m"):
            for target in panel["targets"]:
                assert query(client, target["expr"]), (panel["title"], target["expr"])
        rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
        for rule in rules:
            for name in re.findall(r"constrained_k2_\w+", rule["expr"]):
                assert query(client, name), (rule["alert"], name)
        found = client.get("/api/v1/rules").raise_for_status().json()["data"]["groups"][0]["rules"]
        assert [(rule["name"], rule["health"]) for rule in found] == [(rule["alert"], "ok") for rule in rules]
        assert not query(client, 'ALERTS{alertstate="firing"}')
        draw(client, 30, tmp_path / "dashboard.png")
    assert (tmp_path / "dashboard.png").stat().st_size > 50_000
