"""Metrics, log lines, diagnostics and ``explain`` of real servers of two processes, and of more."""

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from constrained_k2.cli import main
from constrained_k2.evaluation.server import VllmServer
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.vllm_plugin.asking import Metrics, create, settled

# vLLM for CPUs has the worker in a process of its own; of the other server also the two front ends.
pytestmark = pytest.mark.server
on_two = on("logits_processor", "tp2_logits_processor")

RELAXED = {"type": "object", "properties": {"s": {"type": "string", "pattern": "^(a+)-\\1$"}}, "required": ["s"],
           "additionalProperties": False}  # fmt: skip
F = tool("f", {})


def ask(client: openai.OpenAI, tools: Any, **fields: Any) -> Any:
    """An answer whose masks are counted as if each changed what the model wants."""
    xargs = {"counted": 1} | fields.pop("vllm_xargs", {})
    return create(client, tools=tools, extra_body={"vllm_xargs": xargs}, **{"max_tokens": 30} | fields)


@on_two
def test_what_requests_leave_behind(server: VllmServer, client: openai.OpenAI) -> None:
    first = settled(server)
    create(client, tools=openai.omit, max_tokens=30)
    assert settled(server)("masked_steps_total") == first("masked_steps_total")
    assert Metrics(server, first)("requests_total") == 0
    steps = sum(
        ask(client, tools, **fields).usage.completion_tokens
        for tools, fields in (
            ([F], {"tool_choice": "required"}),
            ([F, tool("g", RELAXED)], {}),
            ([tool("f", {"not": {}}, strict=False)], {"vllm_xargs": {"constrained_k2_strict_false": "best_effort"}}),
            ([F], {"tool_choice": "none"}),
            ([F], {"tool_choice": "required"}),
        )
    )
    for bad in ({"$ref": "#/x"}, RELAXED):
        with pytest.raises(openai.BadRequestError):
            ask(client, [tool("f", bad, strict=True)])
    with pytest.raises(openai.BadRequestError):
        client.completions.create(
            model="kimi-k2", prompt="hi", max_tokens=5, extra_body={"vllm_xargs": {"constrained_k2": "{\n\x1b[31m"}}
        )

    metrics = settled(server, first)
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


@on_two
def test_a_refusal_is_one_line_of_the_log(server: VllmServer, client: openai.OpenAI) -> None:
    name = "refused\nFORGED \x1b[31m" + "n" * 400
    with pytest.raises(openai.BadRequestError, match="tools\\[0\\].function.name: the name"):
        ask(client, [tool(name, {})])
    (line,) = [line for line in server.log.read_text().splitlines() if "FORGED" in line]
    assert "constrained_k2: refused, invalid_request tools: tools[0].function.name: " in line
    assert "\x1b" not in line.partition("refused, ")[2]
    assert len(line.partition("constrained_k2: ")[2]) < 300


@on_two
@pytest.mark.parametrize("stream", [False, True])
def test_diagnostics_come_where_they_are_asked_for(client: openai.OpenAI, stream: bool) -> None:
    fields = {"tool_choice": {"type": "function", "function": {"name": "g"}}, "stream": stream, "n": 2,
              "max_tokens": 400, "parallel_tool_calls": False}  # fmt: skip
    tools = [F, tool("g", RELAXED)]
    for switch in ("on", "off"):
        answer = ask(client, tools, **fields, vllm_xargs={"constrained_k2_diagnostics": switch})
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


@on_two
@pytest.mark.parametrize("switch", ["yes", "overrides"])
def test_a_switch_of_no_known_value(client: openai.OpenAI, switch: str) -> None:
    with pytest.raises(openai.BadRequestError, match="vllm_xargs.constrained_k2_diagnostics: must be 'on' or 'off'"):
        ask(client, [F], vllm_xargs={"constrained_k2_diagnostics": switch})


@on_two
def test_a_client_that_sends_the_field_itself(client: openai.OpenAI) -> None:
    forged = {"constrained_k2_diagnostics": {"tools_called": "forged"}}
    answer = create(client, tools=[F], max_tokens=30, extra_body=forged)
    assert "constrained_k2" not in (answer.choices[0].model_extra or {})


UNITS = {"type": "object", "properties": {"units": {"enum": ["celsius", "fahrenheit"]}}, "required": ["units"]}
TOOLS = [tool("get-weather", UNITS)]


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_overrides_of_a_random_model(
    server: VllmServer, choice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model wants another token than one of the call's nearly everywhere."""
    body = {
        "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "tool_choice": choice, "seed": 1,
        "parallel_tool_calls": False, "max_tokens": 200, "temperature": 0,
    }  # fmt: skip
    path = tmp_path / "request.json"
    path.write_text(json.dumps(body))
    assert main(["explain", server.url, str(path), "--tokenizer", str(server.model)]) == 0
    said = capsys.readouterr().out
    found = re.match(r"(\d+) overridden of (\d+) examined; (\d+) of (\d+) tokens forced", said)
    assert found, said
    overridden, examined, _, tokens = map(int, found.groups())
    assert examined == tokens > 10
    if choice == "required":
        assert overridden > 5
        assert re.search(r"get-weather +/units +enum ", said)
    assert "refused" not in said  # the mask here is the server's
