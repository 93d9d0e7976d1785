"""Servers of several ranks and processes: everything that the package does per process holds in each of them."""

import asyncio
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.ranks.topologies import Topology
from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.kit.servers import SERVERS, on
from tests.kit.tools import tool
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import CHAT, MESSAGES, WEATHER, Metrics, ask_all, judged, only_choice, post, settled

pytestmark = pytest.mark.server

OURS = ("tp2_logits_processor",)
OURS_ALL = ("tp2_structured_output", "tp2_ngram", "dp2_structured_output", "dp2_logits_processor")
on_ours = on(*OURS, only_all=OURS_ALL)


@pytest.fixture
def topology(request: pytest.FixtureRequest) -> Topology:
    """The topology of the test's server."""
    found = SERVERS[request.node.callspec.params["server"]].topology
    assert found is not None
    return found


def engines(metrics: Metrics, name: str, topology: Topology, **labels: str) -> list[float]:
    """A counter of each engine."""
    return [metrics(f"{name}_total", engine=str(rank), **labels) for rank in range(topology.engines)]


@on(*OURS, "dp2_adopted", only_all=OURS_ALL)
def test_the_processes_are_those_of_the_topology(server: VllmServer, topology: Topology) -> None:
    logged = set(re.findall(r"(?m)^\((ApiServer|EngineCore|Worker)\w* pid=(\d+)\)", server.log_text()))
    count = Counter(kind for kind, _ in logged)
    several = topology.api_servers if topology.api_servers > 1 else 0
    assert (count["ApiServer"], count["EngineCore"]) == (several, topology.engines)
    workers = topology.engines * topology.workers
    assert count["Worker"] == (workers if workers > 1 else 0)


@on(*OURS, "dp2_adopted", only_all=OURS_ALL)
def test_calls_are_valid_and_counted_in_every_process(
    server: VllmServer, topology: Topology, request: pytest.FixtureRequest
) -> None:
    """With vLLM's own tool parser each engine core adopts the requests that it is given."""
    kind = request.node.callspec.params["server"]
    before = settled(server)
    samples = list(ordinary_samples(32, seed=3))
    if kind == "dp2_adopted":
        samples = [sample for sample in samples if sample.choice in {"required", "named"}]
    # Few steps: in each of them ranks on a busy machine wait long for each other (vLLM's CPU communicator spins).
    answers = asyncio.run(ask_all(server.url, samples, model="kimi-k2", temperature=1.0, max_tokens=500))
    found, problems = judged(samples, answers)
    assert not problems
    due = [pair for pair in zip(samples, answers, strict=True) if pair[0].choice in {"required", "named"}]
    # The finish reserve is in force where masks are made.
    assert [(sample.number, answer) for sample, answer in due if answer.finish_reason == "length"] == []
    assert found.calls == found.declared == found.valid == found.numbered >= found.due > 15
    metrics = settled(server, before)
    counted = "adopted_requests" if kind == "dp2_adopted" else "requests"
    assert metrics(f"{counted}_total") == sum(bool(sample.tools) for sample in samples)
    assert all(engines(metrics, "masked_steps", topology) + engines(metrics, "examined_tokens", topology))
    assert metrics("examined_tokens_total") <= metrics("masked_rows_total")  # at most four a step
    if kind == "dp2_adopted":
        assert all(engines(metrics, "adopted_requests", topology, source="tag"))
        assert metrics("left_requests_total") == 0
        assert found.served == found.due == len(samples)
    assert not any(engines(metrics, "ended_early_requests", topology))
    if "ngram" in kind:
        assert metrics("vllm:spec_decode_num_accepted_tokens_total") > 20


@on_ours
def test_every_api_server_reads_the_settings_repairs_and_refuses(server: VllmServer, topology: Topology) -> None:
    made = calls(call("call_made_elsewhere", "get_weather", '{"city": "Oslo", "days": 1}')) | {"content": ""}
    history = [*MESSAGES, made, result("call_made_elsewhere", "sunny"), *MESSAGES]
    loose = {"type": "function", "function": {**WEATHER["function"], "strict": False}}
    bad = tool("f", {"$ref": "#/x"}, strict=True)
    switched = {"constrained_k2_diagnostics": "on"}
    before, logged = Metrics(server), len(server.log_text())

    def ask_both(_: int) -> None:
        """Each on a connection of its own: the kernel spreads connections over the API servers."""
        one: Any = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400, "vllm_xargs": switched}
        choice = only_choice(server, messages=history, tools=[loose], **one)
        assert [made["id"] for made in choice["message"]["tool_calls"]] == ["functions.get_weather:1"]
        assert choice["constrained_k2"]["tools_called"]["get_weather"]["coverage"] == "object"
        refused = post(server, CHAT, messages=MESSAGES, tools=[bad], max_tokens=5)
        assert refused.status_code == 400 and "tools[name='f']" in refused.json()["error"]["message"]

    with ThreadPoolExecutor(12) as threads:
        assert len(list(threads.map(ask_both, range(24)))) == 24
    assert Metrics(server, before)("refused_requests_total") == 24
    if topology.api_servers > 1:
        log = server.log_text()[logged:]
        refusing = set(re.findall(r"(?i)ApiServer_(\d) [^\n]*constrained_k2: refused", log))
        assert refusing == {str(number) for number in range(topology.api_servers)}


@on("tp2_logits_processor")
def test_every_rank_leaves_the_same_tokens(server: VllmServer) -> None:
    """The masks of other servers are vLLM's to spread, or made in one rank."""
    only_choice(server, messages=MESSAGES, tools=[WEATHER], tool_choice="required", max_tokens=200)
    time.sleep(1)
    records = server.log.parent / "records"
    first, second = (path.read_text().splitlines() for path in sorted(records.iterdir()))
    assert first == second
    assert len(first) > 100
    assert len(set(first)) > 20  # masks of many states
