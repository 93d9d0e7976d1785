"""Counters, and their way through vLLM's own classes to Prometheus, within one process."""

import inspect
import os
import pickle
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client import REGISTRY
from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from constrained_k2 import ToolCallSpec
from constrained_k2.vllm_plugin.api_server import metrics
from constrained_k2.vllm_plugin.api_server.admission import check_params
from constrained_k2.vllm_plugin.engine_core.patched import constraining
from constrained_k2.vllm_plugin.shared import row_probe, transport
from constrained_k2.vllm_plugin.shared.byte_compiler import _byte_compiler
from constrained_k2.vllm_plugin.shared.counters import EngineCounters, engine_counters
from constrained_k2.vllm_plugin.shared.server import Server
from constrained_k2.vllm_plugin.shared.transport import Published
from tests.kit.tools import tool
from tests.vllm_plugin.patched import patch_vllm

patch_vllm()


RELAXED = {"type": "object", "properties": {"s": {"type": "string", "pattern": "(a+)-\\1"}}, "required": ["s"]}


def value(name: str, **labels: Any) -> float:
    return REGISTRY.get_sample_value(f"constrained_k2_{name}", {"model_name": "kimi", **labels}) or 0.0


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "model_name", "kimi")


def counted(steps: int = 1) -> EngineCounters:
    counters = EngineCounters()
    counters.masked_steps = steps
    return counters


def test_news_are_what_came_since_the_last_time() -> None:
    counters, published = EngineCounters(), Published()
    assert published.delta([counters.snapshot()]) is None
    counters.masked_steps += 2
    counters.arguments.rows += 3
    counters.arguments.seconds += 0.5
    counters.grammars.add(None)
    counters.grammars.add(0.25)
    assert published.delta([counters.snapshot()]) == {
        "totals": {
            "masked_steps": 2,
            "grammar_lookups hit": 1,
            "grammar_lookups miss": 1,
            "masked_rows arguments": 3,
            "mask_seconds arguments": 0.5,
        },
        "compile_seconds": [0.25],
    }
    assert published.delta([counters.snapshot()]) is None
    counters.grammars.add(0.5)
    assert published.delta([counters.snapshot()]) == {"totals": {"grammar_lookups miss": 1}, "compile_seconds": [0.5]}


def test_what_is_kept_of_ended_processes_and_of_compilations_is_bounded() -> None:
    counters, published = EngineCounters(), Published()
    for _ in range(200):
        assert published.delta([counted().snapshot()])
    assert len(published._totals) <= 64
    for number in range(1000):
        counters.grammars.add(float(number))
    last = [float(number) for number in range(936, 1000)]
    assert published.delta([counters.snapshot()]) == {"totals": {"grammar_lookups miss": 1000}, "compile_seconds": last}


def test_scheduler_stats_carry_the_field_through_vllms_serializer() -> None:
    """Also if it is not set; vLLM's own dataclass is called as before."""
    delta = {"totals": {"masked_steps": 1, "mask_seconds header": 0.5}, "compile_seconds": [0.1]}
    for given in (None, delta):
        stats = SchedulerStats(num_running_reqs=3)
        assert stats.constrained_k2 is None
        stats.constrained_k2 = given
        sent = MsgpackEncoder().encode(EngineCoreOutputs(scheduler_stats=stats))
        got = MsgpackDecoder(EngineCoreOutputs).decode(sent).scheduler_stats
        assert (got.num_running_reqs, got.constrained_k2) == (3, given)
    assert list(SchedulerStats.__dataclass_fields__)[-1] == "constrained_k2"
    assert "constrained_k2" not in inspect.signature(SchedulerStats).parameters


def output() -> ModelRunnerOutput:
    return ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0})


def test_a_workers_output_carries_totals_that_are_new(counters: EngineCounters) -> None:
    def sent() -> Any:
        return pickle.loads(pickle.dumps(output())).__dict__.get("constrained_k2")

    assert sent() is None
    counters.masked_steps += 1
    assert sent() == counters.snapshot()
    assert sent() is None
    counters.examined_rows += 1  # all that a worker counts on the structured-output route
    assert sent()["totals"]["examined_tokens"] == 1
    with row_probe.row_probe.around(torch.zeros(1, 8), [0]):
        pass
    assert sent()["totals"]["examined_tokens"] == 2
    counters.ended_early += 1
    assert copy(output()).req_id_to_index == {"a": 0}
    assert "constrained_k2" not in output().__dict__


def scheduler() -> Any:
    """As much of a scheduler as its statistics need."""
    here: Any = object.__new__(constraining(Scheduler))
    vars(here).update(
        log_stats=True, kv_cache_manager=SimpleNamespace(make_prefix_cache_stats=PrefixCacheStats, usage=0.0),
        connector_prefix_cache_stats=None, kv_metrics_collector=None, get_request_counts=lambda: (0, 0),
        deferred_waiting=(), _kv_fetch_counts={}, running=[],
    )  # fmt: skip
    return here


def received(here: Any, totals: Any) -> None:
    """A worker's output reaches the scheduler, whose own work, for which it has no parts, is not the matter here."""
    arrived = output()
    arrived.constrained_k2 = totals
    with pytest.raises(AttributeError):
        here.update_from_output(None, arrived)


def test_the_scheduler_sends_once_what_it_and_its_workers_have_counted(counters: EngineCounters) -> None:
    here, worker = scheduler(), counted(3)
    assert here.make_stats().constrained_k2 is None
    counters.masked_steps += 1  # as on the structured-output route
    here.log_stats = False  # nothing is lost
    assert here.make_stats() is None
    here.log_stats = True
    received(here, worker.snapshot())
    assert here.make_stats().constrained_k2["totals"] == {"masked_steps": 4}
    received(here, worker.snapshot())
    worker.masked_steps += 1
    received(here, worker.snapshot())
    assert here.make_stats().constrained_k2["totals"] == {"masked_steps": 1}
    received(here, counters.snapshot())  # pickled within this very process
    assert here.make_stats().constrained_k2 is None


def test_counts_are_reported_now_and_then_while_requests_run(counters: EngineCounters) -> None:
    here, now = scheduler(), [100.0]
    here.running = [object()]
    here.constrained_k2_totals = transport.Collected(lambda: now[0])
    reported = []
    for _ in range(25):
        counters.masked_steps += 1
        reported.append(here.make_stats().constrained_k2)
        now[0] += 0.01
    assert [at for at, delta in enumerate(reported) if delta] == [0, 10, 20]
    here.running = []  # the last step of the last request: nothing may wait for the next one
    reported.append(here.make_stats().constrained_k2)
    assert sum(delta["totals"]["masked_steps"] for delta in reported if delta) == 25


def test_what_engines_report_is_added_up(served: None) -> None:
    metrics.expose("kimi", [0, 7])
    assert REGISTRY.get_sample_value(
        "constrained_k2_masked_rows_total", {"model_name": "kimi", "engine": "7", "phase": "header"}
    ) == 0  # fmt: skip
    before = [value(f"compile_seconds_{kind}", where="engine") for kind in ("count", "sum")]
    for rank in (7, 7, 0):
        delta = {"totals": {"masked_steps": 2, "masked_rows arguments": 3, "mask_seconds arguments": 0.5, "masked_argmax_tokens": 1,
                           "examined_tokens": 4, "ended_early_requests": 1, "grammar_lookups miss": 1}, "compile_seconds": [0.25]}  # fmt: skip
        metrics.record_engine(delta, "kimi", rank)
    names = ("masked_steps", "masked_argmax_tokens", "examined_tokens", "ended_early_requests")
    assert [value(f"{name}_total", engine="7") for name in names] == [4, 2, 8, 2]
    assert [value("masked_rows_total", engine="7", phase=phase) for phase in ("arguments", "constant")] == [6, 0]
    assert value("mask_seconds_total", engine="7", phase="arguments") == 1
    assert value("masked_steps_total", engine="0") == 2
    assert [value(f"compile_seconds_{kind}", where="engine") for kind in ("count", "sum")] == [
        before[0] + 3,
        before[1] + 0.75,
    ]


def admit(spec: ToolCallSpec, *, first: bool = False) -> None:
    check_params(SamplingParams(extra_args={"constrained_k2": spec.to_json()}), first=first)


@pytest.mark.parametrize(
    ("tools", "choice", "coverage"),
    [
        ([tool("f")], "auto", "whole"),
        ([tool("f"), tool("g", RELAXED)], "required", "relaxed"),
        ([tool("f", RELAXED), tool("g", {"not": {}}, strict=False)], "auto", "object"),
        ([tool("f"), tool("g", {"type": "nonsense"})], "auto", "relaxed"),
        ([tool("f", RELAXED)], "none", "none"),
    ],
)
def test_requests_are_counted_by_what_becomes_of_them(served: None, tools: Any, choice: str, coverage: str) -> None:
    labels = {"grammar_engine": "llguidance", "tool_choice": choice, "coverage": coverage}
    before = value("requests_total", **labels)
    spec = ToolCallSpec.from_openai({"tools": tools, "tool_choice": choice})
    admit(spec, first=True)
    admit(spec)  # vLLM's own check of the same request
    assert value("requests_total", **labels) == before + 1


def test_lookups_and_compilations_are_counted_also_of_refused_requests(served: None) -> None:
    _byte_compiler.cache_clear()

    def counts() -> list[float]:
        results = ("hit", "miss", "plain")
        lookups = [value("grammar_lookups_total", where="admission", result=result) for result in results]
        return [*lookups, value("compile_seconds_count", where="admission")]

    before = counts()
    good, bad = tool("f", {"minProperties": 1}), tool("g", {"not": {}}, strict=True)
    admit(ToolCallSpec.from_openai({"tools": [good, tool("h")]}), first=True)
    with pytest.raises(Exception, match="no value satisfies"):
        admit(ToolCallSpec.from_openai({"tools": [good, bad]}), first=True)
    assert [now - then for now, then in zip(counts(), before, strict=True)] == [1, 2, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_worker_is_another_source() -> None:
    """Else the engine core would take its worker's counts for its own, and drop them."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, engine_counters.source.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() not in {"", engine_counters.source}
