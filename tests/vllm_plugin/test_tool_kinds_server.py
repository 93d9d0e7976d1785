"""Through a real server: tools of other kinds beside functions, and every form of ``tool_choice``."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import Vocabulary
from constrained_k2.evaluation.server import BACKEND_FLAGS, VllmServer
from constrained_k2.testing import build_model
from tests.vllm_plugin.asking import MESSAGES
from tests.warm import WarmServer

pytestmark = pytest.mark.server

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip
F = {"type": "function", "name": "find", "description": "", "parameters": CITY, "strict": False}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [F]}
CUSTOM = {"type": "custom", "name": "patch", "description": "Applies a patch."}
WEB = {"type": "web_search"}
CHAT = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("f", "g", "f")]
FIELDS = {"model": "kimi-k2", "temperature": 1.0, "vllm_xargs": {"constrained_k2_finish_reserve": 200}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    directory = tmp_path_factory.mktemp("server")
    model = build_model(directory / "model", arch="llama")
    flags = (*BACKEND_FLAGS, "--reasoning-parser", "kimi_k2")
    with WarmServer(model, flags, log=directory / "server.log") as started:
        yield started


def post(server: VllmServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=FIELDS | body, timeout=120)


def responses(server: VllmServer, *, stream: bool, **fields: Any) -> list[dict[str, Any]]:
    """The output of a request on /v1/responses."""
    answer = post(server, "/v1/responses", input="hi", max_output_tokens=400, stream=stream, **fields)
    assert answer.is_success, answer.text
    if not stream:
        return list(answer.json()["output"])
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {"))
    events = list(map(json.loads, lines))
    assert events[-1]["type"] == "response.completed", events[-1]
    return list(events[-1]["response"]["output"])


def chat(server: VllmServer, *, stream: bool, **fields: Any) -> list[str]:
    """The names of the functions that a chat request's answer calls."""
    body = {"messages": MESSAGES, "tools": CHAT, "max_tokens": 400, "stream": stream} | fields
    answer = post(server, "/v1/chat/completions", **body)
    assert answer.is_success, answer.text
    if not stream:
        return [call["function"]["name"] for call in answer.json()["choices"][0]["message"]["tool_calls"]]
    lines = (line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {"))
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    calls = (call for delta in deltas for call in delta.get("tool_calls") or ())
    return [name for call in calls if (name := call["function"].get("name"))]


@pytest.mark.parametrize("stream", [False, True])
def test_namespaces_and_custom_tools(server: VllmServer, stream: bool) -> None:
    tools = [WEB, NAMESPACE, CUSTOM]
    called = responses(server, stream=stream, tools=tools, tool_choice={"type": "function", "name": "find"})
    (call,) = (item for item in called if item["type"] == "function_call")
    assert (call["name"], call["namespace"]) == ("find", "crm")
    assert json.loads(call["arguments"]).keys() == {"city"}
    called = responses(server, stream=stream, tools=tools, tool_choice={"type": "custom", "name": "patch"})
    (call,) = (item for item in called if item["type"] == "custom_tool_call")
    assert call["name"] == "patch" and isinstance(call["input"], str)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_no_one_runs(server: VllmServer, stream: bool) -> None:
    for item in responses(server, stream=stream, tools=[WEB]):
        assert item["type"] in {"message", "reasoning"} and "<|tool" not in json.dumps(item)
    refused = post(server, "/v1/responses", input="hi", tools=[WEB], tool_choice="required", stream=stream)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize("stream", [False, True])
def test_allowed_tools(server: VllmServer, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "g"}}]
    asked: dict[str, Any] = {"mode": "required", "tools": tools}
    for given in ({"allowed_tools": asked}, asked):
        names = chat(server, stream=stream, tool_choice={"type": "allowed_tools"} | given)
        assert names and set(names) == {"g"}
    tools[0]["function"] = {"name": "h"}
    body = {"tools": CHAT, "messages": MESSAGES, "stream": stream}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    refused = post(server, "/v1/chat/completions", **body, tool_choice=choice)
    assert refused.status_code == 400
    assert "tool_choice.allowed_tools.tools[0]: no tool of this request is named 'h'" in refused.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_of_null_keeps_its_calls(server: VllmServer, vocabulary: Vocabulary, stream: bool) -> None:
    """A bias makes the random model open the section, where it may."""
    fields: dict[str, Any] = {"stream": stream, "tool_choice": None}
    fields["logit_bias"] = {str(vocabulary.format.section_begin): 100}
    assert chat(server, **fields)
    assert any(item["type"] == "function_call" for item in responses(server, tools=[F], **fields))
