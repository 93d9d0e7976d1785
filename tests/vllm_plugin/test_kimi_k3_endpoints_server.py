"""Endpoints of real servers of a random Kimi K3 model: with this package's tool parser, and with vLLM's own."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2 import ToolCall, Vocabulary, parse_completion
from constrained_k2.evaluation.server import BACKEND_FLAGS, VllmServer
from constrained_k2.prompts.xtml import render_turn
from tests.servers import SCRIPTED, kimi_k3_server
from tests.turn.k3_turns import Turn, read
from tests.vllm_plugin.asking import MESSAGES, WEATHER

pytestmark = pytest.mark.server

ADOPTS = json.dumps({"constrained_k2": {"route": "structured_output", "adopt": "prompt"}})
SERVERS = {
    "ours": (*BACKEND_FLAGS, "--enable-scale-out", "--logits-processors", SCRIPTED),
    "vllm": ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k3", "--tool-strict-level", "parameter",
             "--additional-config", ADOPTS),
}  # fmt: skip
PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "additionalProperties": False}},
}
TOOLS = [WEATHER, PING]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
NAMED = {"type": "function", "function": {"name": "ping"}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"], "properties": {
    "a": {"enum": [1, 2]}}, "additionalProperties": False}}}  # fmt: skip
HISTORY = [
    *MESSAGES,
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "ping", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "x", "content": "<|open|>pong"},
]  # fmt: skip
BODY: dict[str, Any] = {
    "model": "kimi-k2", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 1200, "temperature": 1.0, "seed": 1,
    "thinking_token_budget": 8, "vllm_xargs": {"constrained_k2_finish_reserve": 900},
}  # fmt: skip
SPOKEN = [ToolCall("get_weather", 1, '{"city": "Oslo <|close|>", "days": 3}'), ToolCall("ping", 2, "{}")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    with kimi_k3_server(tmp_path_factory.mktemp("kimi_k3"), *SERVERS[request.param]) as started:
        yield started


@pytest.fixture(scope="module")
def served_vocabulary(served: VllmServer) -> Vocabulary:
    return Vocabulary.from_pretrained(served.model)


ours = pytest.mark.parametrize("served", ["ours"], indirect=True, scope="module")
vllms = pytest.mark.parametrize("served", ["vllm"], indirect=True, scope="module")


def post(server: VllmServer, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=300, trust_env=False)
    assert answer.is_success, answer.text
    return answer.json()


def checked(ids: list[int], vocabulary: Vocabulary, *, thinks: bool = True) -> Turn:
    """A whole turn, whose calls are valid and numbered from one."""
    end = ids.index(vocabulary.format.turn_end) + 1
    turn = read(ids[:end], vocabulary, in_reasoning=thinks)
    for number, (name, index, arguments) in enumerate(turn.calls, 1):
        values = {key: raw.decode() if kind == "string" else json.loads(raw) for key, kind, raw in arguments}
        assert index == number and len(values) == len(arguments)
        jsonschema.validate(values, SCHEMAS[name])
    return turn


# With this package's tool parser


def claude(server: VllmServer, body: dict[str, Any], *, stream: bool) -> tuple[str, str, list[tuple[str, str, Any]]]:
    """The reasoning, the text and the calls of Anthropic's endpoint."""
    body = {"model": "kimi-k2", "max_tokens": 400, "messages": MESSAGES, "stream": stream, **body}
    given = httpx.post(f"{server.url}/v1/messages", json=body, timeout=300, trust_env=False)
    assert given.is_success, given.text
    if not stream:
        blocks = given.json()["content"]
        calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    else:
        events = [json.loads(line[6:]) for line in given.text.splitlines() if line.startswith("data: {")]
        blocks, calls, written = [], [], list[str]()
        for event in events:
            block, delta = event.get("content_block", {}), event.get("delta", {})
            blocks.append(delta)
            if block.get("type") == "tool_use":
                calls.append((block["id"], block["name"], None))
                written.append("")
            if "partial_json" in delta:
                written[-1] += delta["partial_json"]
        calls = [(call_id, name, json.loads(text)) for (call_id, name, _), text in zip(calls, written, strict=True)]
    thinking, text = ("".join(block.get(key) or "" for block in blocks) for key in ("thinking", "text"))
    return thinking, text, calls


@ours
@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_messages(served: VllmServer, served_vocabulary: Vocabulary, stream: bool) -> None:
    tools = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    script = render_turn(SPOKEN, served_vocabulary, response="So", reasoning="Hm.")
    found = claude(served, {"tools": tools, "vllm_xargs": {"script": script}}, stream=stream)
    calls = [(f"functions.{call.name}:{at}", call.name, json.loads(call.arguments)) for at, call in enumerate(SPOKEN)]
    assert found == ("Hm.", "So", calls)
    wrong = render_turn([ToolCall("ping", 4, '{"a": 1}')], served_vocabulary, response="So", reasoning="Hm.")
    body = {"tools": tools, "tool_choice": {"type": "tool", "name": "ping"}, "vllm_xargs": {"script": wrong}}
    assert claude(served, body, stream=stream) == ("Hm.", "", [("functions.ping:0", "ping", {})])


REQUESTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "required": {"tool_choice": "required"},
    "one function": {"tool_choice": NAMED},
    "no calls": {"tool_choice": "none", "max_tokens": 60},
    "one call": {"tool_choice": "required", "parallel_tool_calls": False},
    "without thinking": {"tool_choice": "required", "chat_template_kwargs": {"thinking": False}},
    "history": {"messages": HISTORY, "tool_choice": "required"},
    "a form": {"response_format": FORM},
    "a form, no calls": {"response_format": FORM, "tool_choice": "none"},
    "cut": {"tool_choice": "required", "max_tokens": 40, "vllm_xargs": {}},
    "off": {"vllm_xargs": {"constrained_k2": "off"}, "thinking_token_budget": None, "max_tokens": 60},
}


@ours
@pytest.mark.parametrize("name", [*REQUESTS, "no tools", "script"])
def test_a_split_request_is_constrained_as_by_one_server(
    served: VllmServer, served_vocabulary: Vocabulary, name: str
) -> None:
    body = BODY | REQUESTS.get(name, {})
    if name == "no tools":
        body = {key: value for key, value in body.items() if key != "tools"} | {"max_tokens": 60}
    if name == "script":
        script = render_turn(SPOKEN, served_vocabulary, response="So", reasoning="Hm.")
        body |= {"vllm_xargs": {"script": script}, "thinking_token_budget": None}
    whole = post(served, "/v1/chat/completions", {**body, "return_token_ids": True})
    generated = post(served, "/inference/v1/generate", post(served, "/v1/chat/completions/render", body))
    ids = [choice["token_ids"] for choice in generated["choices"]]
    assert ids == [choice["token_ids"] for choice in whole["choices"]]
    if name not in {"no calls", "no tools", "cut", "off"}:
        turn = checked(ids[0], served_vocabulary, thinks=name != "without thinking")
        calls = whole["choices"][0]["message"].get("tool_calls", [])
        first = 1 if name == "history" else 0
        assert [call["id"] for call in calls] == [
            f"functions.{made[0]}:{at}" for at, made in enumerate(turn.calls, first)
        ]
        assert turn.calls or "form" in name or name == "auto"


@ours
def test_the_other_endpoints_that_render(served: VllmServer, served_vocabulary: Vocabulary) -> None:
    tool = WEATHER["function"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses/render": {"input": "go", "tools": [{"type": "function", **tool}], "tool_choice": "required",
                                 "max_output_tokens": 1200},
        "/v1/messages/render": {"messages": MESSAGES, "max_tokens": 1200, "tool_choice": {"type": "any"},
                                "tools": [{"name": tool["name"], "input_schema": tool["parameters"]}]},
        "/v1/completions/render": {"prompt": "Go.", "max_tokens": 1200, "vllm_xargs": {
            "constrained_k2": json.dumps({"tools": [WEATHER], "tool_choice": "required"})}},
    }  # fmt: skip
    limits = {"model": "kimi-k2", "temperature": 1.0, "seed": 1}
    reserve = {"constrained_k2_finish_reserve": 1100}
    for path, body in bodies.items():
        given = limits | body | {"vllm_xargs": body.get("vllm_xargs", {}) | reserve}
        rendered = post(served, path, given)
        (rendered,) = rendered if isinstance(rendered, list) else [rendered]
        generated = post(served, "/inference/v1/generate", rendered)
        thinks = served_vocabulary.opens_reasoning(rendered["token_ids"])
        assert thinks == ("completions" not in path)
        turn = checked(generated["choices"][0]["token_ids"], served_vocabulary, thinks=thinks)
        assert turn.calls and not turn.text, path


@ours
def test_completions(served: VllmServer, served_vocabulary: Vocabulary) -> None:
    spec = json.dumps({"tools": TOOLS, "tool_choice": "required", "first_index": 3})
    body = {"model": "kimi-k2", "prompt": "hi", "max_tokens": 1200, "seed": 2, "return_token_ids": True, "vllm_xargs": {
        "constrained_k2": spec, "constrained_k2_finish_reserve": 1000}}  # fmt: skip
    (choice,) = post(served, "/v1/completions", body)["choices"]
    turn = checked(choice["token_ids"], served_vocabulary, thinks=False)
    assert turn.calls and choice["finish_reason"] == "stop"


# With vLLM's own tool parser: the engine core adopts the requests


def ids_of(server: VllmServer, **fields: Any) -> list[int]:
    answer = post(server, "/v1/chat/completions", BODY | {"return_token_ids": True} | fields)
    (choice,) = answer["choices"]
    ids: list[int] = choice["token_ids"]
    return ids


@vllms
@pytest.mark.parametrize("name", ["auto", "required", "one function", "one call", "without thinking", "history"])
def test_adopted_requests_write_valid_calls(served: VllmServer, served_vocabulary: Vocabulary, name: str) -> None:
    for seed in range(3):
        turn = checked(
            ids_of(served, **REQUESTS[name], seed=seed), served_vocabulary, thinks=name != "without thinking"
        )
        assert name == "auto" or (turn.calls and not turn.text)
        if name == "one function":
            assert {call[0] for call in turn.calls} == {"ping"}
        if name == "one call":
            assert len(turn.calls) == 1


@vllms
def test_adopted_requests_in_a_form_and_without_calls(served: VllmServer, served_vocabulary: Vocabulary) -> None:
    turn = checked(ids_of(served, response_format=FORM), served_vocabulary)
    assert turn.calls or json.loads(turn.text) in ({"a": 1}, {"a": 2})
    ids = ids_of(served, tool_choice="none", max_tokens=80)
    assert not parse_completion(ids, served_vocabulary, level="tolerant", in_reasoning=True).tool_calls
    log = served.log_text()
    assert "is left to vLLM" not in log and "adopt prompt" in log
