"""The recording of agents: what is kept of a request, what the model is told to answer, and the page."""

import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

pytest.importorskip("uvicorn", reason="uvicorn and starlette come with vLLM")

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from constrained_k2 import Vocabulary, parse_completion, schema_coverage
from constrained_k2.testing.tokenizer import write_tokenizer
from scripts.agents import mcp_tools
from scripts.agents.catalogue import AGENTS, Agent, Job, Launch
from scripts.agents.observation import calls_in_history, reason_of, tool_names
from scripts.agents.proxy import RecordingProxy
from scripts.agents.run import Outcome, run
from scripts.agents.scenarios import SCENARIOS
from scripts.agents.scripted import LAST, Call, Dictation, Sampled, Turn
from scripts.agents.table import page

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"arguments": "{}"}}] * 2},
        {"role": "user", "content": [{"type": "text", "text": "so"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "srv__say"}}],
}
MESSAGES: dict[str, Any] = {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}
RESPONSES: dict[str, Any] = {
    "input": [{"type": "function_call", "arguments": "{}"}, {"type": "custom_tool_call", "input": "so"}],
    "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}, {"type": "web_search"}],
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    directory = tmp_path_factory.mktemp("tokenizer")
    texts = write_tokenizer(directory, None)
    return Vocabulary.from_pretrained(directory, size=len(texts))


def test_calls_of_the_history_are_counted_on_every_endpoint() -> None:
    assert [calls_in_history(body) for body in (CHAT, MESSAGES, RESPONSES, {"input": "text"})] == [2, 1, 2, 0]


def test_tools_of_a_namespace_have_the_names_that_the_model_sees() -> None:
    assert tool_names(RESPONSES) == ["n__f"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{"error": {"message": "no such field", "type": "BadRequestError"}}', "no such field"),
        (
            """{"detail": "[{'msg': 'bad', 'input': 'a secret', 'ctx': 1}]"}""",
            "[{'msg': 'bad', 'input': ..., 'ctx': 1}]",
        ),
        ("""{"message": "{'msg': 'bad', 'input': {'a': ['a secret']}}"}""", "{'msg': 'bad', 'input': ...}"),
        ("<html>" * 100, ("<html>" * 100)[:200]),
    ],
)
def test_a_refusal_is_told_without_what_it_repeats(answer: str, reason: str) -> None:
    assert reason_of(answer).rstrip("}") == reason.rstrip("}")


def script(added: dict[str, Any]) -> list[int]:
    ids: list[int] = added["vllm_xargs"]["script"]
    return ids


def test_turns_are_dictated_in_order_then_the_last_one(vocabulary: Vocabulary) -> None:
    asked = Turn(reasoning="hm", text="so", calls=(Call("say", {"a": 1}), Call("unknown", {})))
    dictation = Dictation(vocabulary, [asked, Sampled()])
    first = parse_completion(script(dictation(CHAT, 2)), vocabulary, in_reasoning=False)
    assert (first.reasoning, first.content) == ("hm", "so")
    assert [(call.id, call.arguments) for call in first.tool_calls] == [("functions.srv__say:2", '{"a": 1}')]
    assert dictation.undeclared == {"unknown"}
    assert not dictation.is_done
    sampled = dictation(CHAT, 4)
    assert script(sampled) == [vocabulary.format.section_begin]
    assert sampled["max_tokens"] > sampled["vllm_xargs"]["constrained_k2_finish_reserve"]
    assert dictation.is_done
    assert parse_completion(script(dictation(CHAT, 4)), vocabulary, in_reasoning=False).content == LAST.text


def test_a_side_question_without_tools_takes_no_turn(vocabulary: Vocabulary) -> None:
    dictation = Dictation(vocabulary, [Turn(text="so")])
    dictation({"messages": []}, 0)
    assert dictation.taken == 0
    assert Dictation(vocabulary, [Turn(text="so")], without_tools=True)({"messages": []}, 0)


def test_the_mcp_server_lists_tools_and_answers_calls() -> None:
    questions: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "x", "arguments": {"b": 1, "a": 2}}},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0"} | question) + "\n" for question in questions)
    run_once = [sys.executable, mcp_tools.__file__, "60"]
    ended = subprocess.run(run_once, input=lines, capture_output=True, text=True, timeout=60, check=True)
    started, listed, called = map(json.loads, ended.stdout.splitlines())
    assert started["result"]["protocolVersion"] == "2025-06-18"
    assert len({tool["name"] for tool in listed["result"]["tools"]}) == 60
    assert called["result"]["content"][0]["text"] == "done with a, b"


def test_its_schemas_are_enforced_and_the_dictated_arguments_fit() -> None:
    schema = mcp_tools.tools(60)[0]["inputSchema"]
    assert not schema_coverage(schema).refused
    agent = next(agent for agent in AGENTS if agent.mcp)
    scenario = next(scenario for scenario in SCENARIOS if scenario.mcp_tools)
    names = [tool["name"] for tool in mcp_tools.tools(60)]
    for turn in scenario.turns(agent, Path()):
        assert isinstance(turn, Turn)
        for call in turn.calls:
            jsonschema.validate(dict(call.arguments), schema)
            assert call.tool in names


async def _generate(request: Request) -> Response:
    """Answers in vLLM's place."""
    body = await request.json()
    assert body["vllm_xargs"]["script"]
    if body.get("refuse") and body["vllm_xargs"].get("constrained_k2") != "off":
        return JSONResponse({"error": {"message": "refused: x|y"}}, 400)

    async def events() -> AsyncIterator[str]:
        yield 'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 7}}}\n\n'
        yield 'event: content_block_start\ndata: {"type": "content_block_start", "content_block": {"type": "tool_use"}}\n\n'
        yield 'event: message_delta\ndata: {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}\n\n'

    return StreamingResponse(events(), media_type="text/event-stream")


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    async def metrics(_request: Request) -> Response:
        return PlainTextResponse('vllm:num_requests_running{engine="0"} 0.0\n')

    application = Starlette(routes=[Route("/v1/messages", _generate, methods=["POST"]), Route("/metrics", metrics)])
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def test_the_proxy_passes_a_stream_on_and_counts_its_events(server_url: str) -> None:
    with RecordingProxy(server_url) as proxy:
        seen = proxy.start_run(lambda _body, index: {"vllm_xargs": {"script": [index]}})
        answer = httpx.post(f"{proxy.url}/v1/messages?beta=true", json=CHAT | {"stream": True})
        missing = httpx.get(f"{proxy.url}/nothing")
    assert answer.text.count("event: ") == 3
    assert missing.status_code == 404
    first, second = seen
    assert (first.path, first.status, first.stop, first.ended) == ("/v1/messages", 200, "tool_use", "whole")
    assert (first.is_streamed, first.events, first.tools, first.prompt_tokens) == (True, 3, 1, 7)
    assert (second.path, second.status) == ("/nothing", 404)


def _client(code: str) -> Agent:
    """An agent that is some lines of Python; the proxy's address is its first argument."""

    def launch(_agent: Agent, job: Job) -> Launch:
        return Launch([sys.executable, "-c", f"import sys, httpx\nurl = sys.argv[1] + '/v1/messages'\n{code}", job.url])

    return replace(AGENTS[0], launch=launch)


def _run(code: str, server_url: str, vocabulary: Vocabulary, log: Path) -> Outcome:
    scenario = replace(SCENARIOS[0], turns=lambda _agent, _project: [Turn(text="so")])
    with RecordingProxy(server_url) as proxy:
        return run(_client(code), scenario, folder=log.parent, proxy=proxy, server_url=server_url,
                   vocabulary=vocabulary, log=log)  # fmt: skip


def test_a_run_is_good_if_every_turn_was_taken_and_shown(
    server_url: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    code = "for n in range(2): httpx.post(url, json={'tools': [{'name': 'f'}], 'n': n})\nprint('All of it is done.')"
    outcome = _run(code, server_url, vocabulary, tmp_path / "log")
    assert outcome.problems == []
    text = page([outcome], {"other": "its registry has it not"})
    assert "| claude-code |" in text
    assert "its registry has it not" in text


def test_a_run_tells_refusals_repeats_and_what_is_missing(
    server_url: str, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    code = "for n in range(2): httpx.post(url, json={'refuse': True})\nsys.exit(3)"
    outcome = _run(code, server_url, vocabulary, tmp_path / "log")
    text = "; ".join(outcome.problems)
    for problem in ("answered 400: refused: x|y", "exit code 3", "took 0 of", "sent 1 requests again", "did not show"):
        assert problem in text
    assert r"| 400 | 2 | this package | refused: x\|y |" in page([outcome], {})
