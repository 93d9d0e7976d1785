"""Real servers' ``/metrics``, log and answers, with everything in two processes and with everything in its own."""

import time
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from prometheus_client.parser import text_string_to_metric_families

from constrained_k2.evaluation.server import CONSTRAINED_FLAGS, SERVE, VllmServer
from constrained_k2.testing import build_model
from tests.warm import WarmServer

pytestmark = pytest.mark.server

HERE = Path(__file__).parent
RELAXED = {"type": "object", "properties": {"s": {"type": "string", "pattern": "^(a+)-\\1$"}}, "required": ["s"],
           "additionalProperties": False}  # fmt: skip
# vLLM for CPUs has the worker in a process of its own.
FLAGS: dict[str, tuple[str, ...]] = {"one front end": (), "two front ends": ("--api-server-count=2",)}


def function(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}, **more}}


@pytest.fixture(scope="module", params=FLAGS.values(), ids=list(FLAGS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    directory = tmp_path_factory.mktemp("server")
    model = build_model(directory / "model", arch="kimi_k2")
    flags = (*CONSTRAINED_FLAGS, "counting:CountingLogitsProcessor", *request.param)
    with WarmServer(model, flags, log=directory / "server.log", python_path=[HERE], entry=SERVE) as started:
        yield started


class Metrics:
    """A server's metrics at one moment."""

    def __init__(self, server: VllmServer) -> None:
        text = httpx.get(f"{server.url}/metrics", timeout=60).raise_for_status().text
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; NaN if there are none."""
        found = [
            sample.value
            for sample in self._samples
            if sample.name == f"constrained_k2_{name}"
            and sample.labels.items() >= (labels | {"model_name": "kimi-k2"}).items()
        ]
        return sum(found) if found else float("nan")


def metrics_with(server: VllmServer, name: str, least: float) -> Metrics:
    """The metrics once a counter has come so far: the last step's statistics come behind its answer."""
    for _ in range(100):
        metrics = Metrics(server)
        if metrics(name) >= least:
            break
        time.sleep(0.1)
    return metrics


def ask(client: openai.OpenAI, tools: Any, **fields: Any) -> Any:
    defaults: dict[str, Any] = {"model": "kimi-k2", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}
    return client.chat.completions.create(tools=tools, **(defaults | fields))


def test_what_requests_leave_behind(server: VllmServer, client: openai.OpenAI) -> None:
    first = Metrics(server)
    assert first("masked_steps_total", engine="0") == 0
    ask(client, openai.omit)
    assert Metrics(server)("masked_steps_total") == 0
    assert isnan(Metrics(server)("requests_total"))
    steps = sum(
        ask(client, tools, **fields).usage.completion_tokens
        for tools, fields in (
            ([function("f")], {"tool_choice": "required"}),
            ([function("f"), function("g", RELAXED)], {}),
            ([function("f", {"not": {}}, strict=False)], {}),
            ([function("f")], {"tool_choice": "none"}),
            ([function("f")], {"tool_choice": "required"}),
        )
    )
    for bad in ({"$ref": "#/x"}, RELAXED):
        with pytest.raises(openai.BadRequestError):
            ask(client, [function("f", bad, strict=True)])
    with pytest.raises(openai.BadRequestError):
        client.completions.create(
            model="kimi-k2", prompt="hi", max_tokens=5, extra_body={"vllm_xargs": {"constrained_k2": "{\n\x1b[31m"}}
        )

    metrics = metrics_with(server, "masked_steps_total", steps)
    admitted = {"grammar_engine": "llguidance"}
    assert metrics("requests_total", **admitted, coverage="whole", tool_choice="required") == 2
    assert metrics("requests_total", **admitted, coverage="relaxed", tool_choice="auto") == 1
    assert metrics("requests_total", **admitted, coverage="object", tool_choice="auto") == 1
    assert metrics("requests_total", **admitted, coverage="none", tool_choice="none") == 1
    assert metrics("refused_requests_total", reason="unsupported_schema", detail="$ref") == 1
    assert metrics("refused_requests_total", reason="unsupported_schema", detail="pattern") == 1
    assert metrics("refused_requests_total", reason="invalid_request", detail="vllm_xargs") == 1
    assert metrics("grammar_lookups_total", where="admission") == 7  # of one front-end or two, each with its own cache
    compiled = metrics("grammar_lookups_total", where="admission", result="miss")
    assert metrics("compile_seconds_count", where="admission") == compiled >= 3
    assert metrics("ended_early_requests_total", engine="0") == 5
    assert metrics("masked_steps_total", engine="0") >= steps
    assert metrics("examined_tokens_total") >= steps
    assert 0 < metrics("masked_argmax_tokens_total") <= metrics("examined_tokens_total")


def test_a_refusal_is_one_line_of_the_log(server: VllmServer, client: openai.OpenAI) -> None:
    name = "refused\nFORGED \x1b[31m" + "n" * 400
    with pytest.raises(openai.BadRequestError, match="tools\\[0\\].function.name: the name"):
        ask(client, [function(name)])
    (line,) = [line for line in server.log.read_text().splitlines() if "FORGED" in line]
    assert "constrained_k2: refused, invalid_request tools: tools[0].function.name: " in line
    assert "\x1b" not in line.partition("refused, ")[2]
    assert len(line.partition("constrained_k2: ")[2]) < 300


@pytest.mark.parametrize("stream", [False, True])
def test_diagnostics_come_where_they_are_asked_for(client: openai.OpenAI, stream: bool) -> None:
    fields = {"tool_choice": {"type": "function", "function": {"name": "g"}}, "stream": stream, "n": 2,
              "max_tokens": 400, "parallel_tool_calls": False}  # fmt: skip
    tools = [function("f"), function("g", RELAXED)]
    for switch in ("on", "off"):
        answer = ask(client, tools, **fields, extra_body={"vllm_xargs": {"constrained_k2_diagnostics": switch}})
        choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
        told = [choice.constrained_k2 for choice in choices if "constrained_k2" in (choice.model_extra or {})]
        assert len(told) == (2 if switch == "on" else 0)
        for report in told:
            assert (report["grammar_engine"], report["tool_choice"]) == ("llguidance", "required")
            if called := report["tools_called"]:  # else cut off before its name
                assert called.keys() == {"g"}
                assert called["g"]["coverage"] == "relaxed"
                assert [use["pointer"] for use in called["g"]["relaxed"]] == ["#/properties/s/pattern"]
                assert called["g"]["cached"] == (called["g"]["compile_ms"] == 0)


@pytest.mark.parametrize(
    "extra", [{"vllm_xargs": {"constrained_k2_diagnostics": each}} for each in ("yes", "overrides")]
)
def test_a_switch_of_no_known_value(client: openai.OpenAI, extra: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="vllm_xargs.constrained_k2_diagnostics: must be 'on' or 'off'"):
        ask(client, [function("f")], extra_body=extra)


def test_a_client_that_sends_the_field_itself(client: openai.OpenAI) -> None:
    answer = ask(client, [function("f")], extra_body={"constrained_k2_diagnostics": {"tools_called": "forged"}})
    assert "constrained_k2" not in (answer.choices[0].model_extra or {})
