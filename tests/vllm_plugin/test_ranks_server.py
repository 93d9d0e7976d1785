"""Servers of several ranks and processes: everything that the package does per process holds in each of them."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from benchmarks.ranks.topologies import TOPOLOGIES, Topology
from constrained_k2.evaluation.server import BACKEND_FLAGS, CONSTRAINED_FLAGS, SERVE, VllmServer
from constrained_k2.evaluation.server_metrics import parse_counters, total
from constrained_k2.testing import build_model
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.servers import NGRAM
from tests.vllm_plugin.asking import MESSAGES, WEATHER
from tests.vllm_plugin.openai_client import ask_all, judged
from tests.vllm_plugin.recording import DIRECTORY
from tests.warm import WarmServer

pytestmark = pytest.mark.server

HERE = Path(__file__).parent
# One setting for each kind of process: the API servers read strict, the engine core or, on the logits-processor route,
# the workers finish_reserve.
SETTINGS = {"strict": {"false": "json_object"}, "finish_reserve": 300}
SETTING_FLAGS = ("--additional-config", json.dumps({"constrained_k2": SETTINGS}))
BOTH = "tensor parallel 2, two API servers"
SERVERS = {
    "TP 2, two API servers, structured_output": (BOTH, BACKEND_FLAGS),
    "TP 2, two API servers, logits_processor": (BOTH, (*CONSTRAINED_FLAGS, "recording:RecordingLogitsProcessor")),
    "TP 2, n-gram drafts": ("tensor parallel 2", (*BACKEND_FLAGS, "--speculative-config", NGRAM)),
    "DP 2, structured_output": ("data parallel 2", BACKEND_FLAGS),
    "DP 2, logits_processor": ("data parallel 2", CONSTRAINED_FLAGS),
}
SMALLEST = {"TP 2, two API servers, logits_processor", "DP 2, structured_output"}


@dataclass(frozen=True)
class Served:
    """A running server."""

    server: VllmServer
    topology: Topology
    flags: tuple[str, ...]
    records: Path

    @property
    def url(self) -> str:
        return self.server.url

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        """Post on a connection of its own: the kernel spreads connections over the API servers."""
        return httpx.post(f"{self.url}{path}", json={"model": "kimi-k2"} | body, timeout=300)

    def counters(self) -> dict[str, float]:
        return parse_counters(httpx.get(f"{self.url}/metrics", timeout=60).text, "")

    def engines(self, name: str) -> list[float]:
        """A counter of each engine."""
        found = self.counters()
        return [
            sum(value for key, value in found.items() if key.startswith(f"{name}{{") and f'engine="{rank}"' in key)
            for rank in range(self.topology.engines)
        ]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, id=name, marks=() if name in SMALLEST else pytest.mark.only_all)
        for name, kind in SERVERS.items()
    ],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    name, flags = request.param
    topology, directory = TOPOLOGIES[name], tmp_path_factory.mktemp("server")
    model = build_model(directory / "model", arch="llama" if topology.is_dense or NGRAM in flags else "kimi_k2")
    (records := directory / "records").mkdir()
    with WarmServer(
        model,
        (*topology.flags, *flags, *SETTING_FLAGS),
        log=directory / "server.log",
        environment={**topology.environment, DIRECTORY: str(records)},
        python_path=[HERE],
        entry=SERVE,
    ) as started:
        yield Served(started, topology, flags, records)


def test_the_processes_are_those_of_the_topology(served: Served) -> None:
    logged = set(re.findall(r"(?m)^\((ApiServer|EngineCore|Worker)\w* pid=(\d+)\)", served.server.log_text()))
    count = Counter(kind for kind, _ in logged)
    several = served.topology.api_servers if served.topology.api_servers > 1 else 0
    assert (count["ApiServer"], count["EngineCore"]) == (several, served.topology.engines)
    workers = served.topology.engines * served.topology.workers
    assert count["Worker"] == (workers if workers > 1 else 0)


def test_calls_are_valid_and_counted_in_every_process(served: Served) -> None:
    before = served.counters()
    samples = list(ordinary_samples(32, seed=3))
    # Few steps: in each of them ranks on a busy machine wait long for each other (vLLM's CPU communicator spins).
    answers = asyncio.run(ask_all(served.url, samples, model="kimi-k2", temperature=1.0, max_tokens=500))
    result, problems = judged(samples, answers)
    assert not problems
    due = [pair for pair in zip(samples, answers, strict=True) if pair[0].choice in {"required", "named"}]
    assert judged(*zip(*due, strict=True))[0].truncated == 0  # the finish reserve is in force where masks are made
    assert result.calls == result.declared == result.valid == result.numbered >= result.due > 15
    time.sleep(1)  # the last step's statistics come behind its answer

    after = served.counters()
    constrained = sum(bool(sample.tools) for sample in samples)
    assert total(after, "constrained_k2_requests_total") - total(before, "constrained_k2_requests_total") == constrained
    assert all(served.engines("constrained_k2_masked_steps_total"))
    assert all(served.engines("constrained_k2_examined_tokens_total"))
    assert served.engines("constrained_k2_ended_early_requests_total") == [0] * served.topology.engines
    rows, examined = (total(after, f"constrained_k2_{name}_total") for name in ("masked_rows", "examined_tokens"))
    assert 0 < examined <= rows  # at most four a step
    if NGRAM in served.flags:
        assert total(after, "vllm:spec_decode_num_accepted_tokens_total") > 20


def test_every_api_server_reads_the_settings_repairs_and_refuses(served: Served) -> None:
    call = {"id": "call_made_elsewhere", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 1}'}}  # fmt: skip
    history = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]},
               {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}, *MESSAGES]  # fmt: skip
    loose = {"type": "function", "function": {**WEATHER["function"], "strict": False}}
    bad = {"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}, "strict": True}}
    switched = {"constrained_k2_diagnostics": "on"}
    before, logged = served.counters(), len(served.server.log_text())

    def ask_both(_: int) -> None:
        answer = served.post(
            messages=history, tools=[loose], tool_choice="required", parallel_tool_calls=False, max_tokens=400,
            vllm_xargs=switched,
        )  # fmt: skip
        (choice,) = answer.raise_for_status().json()["choices"]
        assert [made["id"] for made in choice["message"]["tool_calls"]] == ["functions.get_weather:1"]
        assert choice["constrained_k2"]["tools_called"]["get_weather"]["coverage"] == "object"
        refused = served.post(messages=MESSAGES, tools=[bad], max_tokens=5)
        assert refused.status_code == 400 and "tools[name='f']" in refused.json()["error"]["message"]

    with ThreadPoolExecutor(12) as threads:
        assert len(list(threads.map(ask_both, range(24)))) == 24
    after = served.counters()
    name = "constrained_k2_refused_requests_total"
    assert total(after, name) - total(before, name) == 24
    if served.topology.api_servers > 1:
        log = served.server.log_text()[logged:]
        refusing = set(re.findall(r"(?i)ApiServer_(\d) [^\n]*constrained_k2: refused", log))
        assert refusing == {str(number) for number in range(served.topology.api_servers)}


def test_every_rank_leaves_the_same_tokens(served: Served) -> None:
    if "recording:RecordingLogitsProcessor" not in served.flags:
        pytest.skip("the masks of this server are vLLM's to spread, or made in one rank")
    served.post(messages=MESSAGES, tools=[WEATHER], tool_choice="required", max_tokens=200).raise_for_status()
    time.sleep(1)
    first, second = (path.read_text().splitlines() for path in sorted(served.records.iterdir()))
    assert first == second
    assert len(first) > 100
    assert len(set(first)) > 20  # masks of many states
