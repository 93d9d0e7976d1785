"""Refusals of a real vLLM server on both routes, which cost other requests nothing."""

import asyncio
import json
import re
from time import monotonic, sleep
from typing import Any

import httpx
import openai
import pytest

from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import TOOLS, ordinary_samples
from tests.kit.servers import on
from tests.kit.tools import tool
from tests.vllm_plugin.asking import CHAT, MESSAGES, WEATHER, Metrics, ask, chat, judged, post

pytestmark = pytest.mark.server

BODY: dict[str, Any] = {"model": "kimi-k2", "messages": MESSAGES, "temperature": 1.0}


def refusal(server: VllmServer, path: str, **body: Any) -> str:
    """The message of a bad request's refusal."""
    answer = post(server, path, **body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"])


def refused_spec(server: VllmServer, spec: Any, **fields: Any) -> str:
    """The refusal of a completion that this constrains."""
    body: dict[str, Any] = {"prompt": "hi", "max_tokens": 5, "vllm_xargs": {"constrained_k2": spec}}
    return refusal(server, "/v1/completions", **body, **fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("spec", ["{", "[1]", '{"tools": [{}]}', '{"tool_choice": "required"}', 5])
def test_bad_completions_requests(server: VllmServer, spec: Any, stream: bool) -> None:
    assert refused_spec(server, spec, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [tool("")]}, "is empty"),
        ({"tools": [tool("n" * 10_240)]}, "10240 bytes|maximum context length"),
        ({"tools": [tool(f"f{i}") for i in range(10_000)]}, "10000 tools|maximum context length"),
        ({"tools": [tool("f", {"description": "x" * 10_000_000}, description="")]}, "bytes|maximum context length"),
        ({"tools": [tool("f", {"type": "object", "not": {}}, strict=True)]}, "no value satisfies"),
        (
            {"tools": [tool("f", {"type": "string"}, strict=True)]},
            "the tool is strict, and 'type' cannot be enforced: .*arguments are always an object",
        ),
        ({"vllm_xargs": {"constrained_k2_finish_reserve": 5000}}, "constrained_k2_finish_reserve"),
        ({"vllm_xargs": {"constrained_k2_repair": "maybe"}}, "vllm_xargs.constrained_k2_repair"),
        ({"messages": [*MESSAGES, {"role": "user", "content": [{"type": "smell", "smell": "x"}]}]}, r"messages\[1\]"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)
def test_what_cannot_be_constrained_is_a_400(server: VllmServer, fields: Any, message: str, stream: bool) -> None:
    """Each kind of refusal; all of them are in the tests of their fields."""
    said = refusal(
        server, CHAT, stream=stream, **{"messages": MESSAGES, "tools": [WEATHER], "max_tokens": 1000} | fields
    )
    assert re.search(message, said)  # vLLM renders the prompt first, so what is far too long fails its own check


@pytest.mark.parametrize("stream", [False, True])
def test_messages_are_refused_too(server: VllmServer, stream: bool) -> None:
    tools = [{"name": "f", "strict": True, "input_schema": {"type": "object", "not": {}}}]
    answer = post(server, "/v1/messages", stream=stream, max_tokens=9, messages=MESSAGES, tools=tools)
    assert answer.status_code == 400
    assert "no value satisfies" in answer.text


def test_schemas_that_would_end_the_server(server: VllmServer) -> None:
    links = {f"d{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(1500)}
    deep = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": links | {"d1500": {}}}
    wide = {"type": "object", "properties": {"a": {"enum": list(range(20_000))}}}
    for parameters in (deep, wide):
        spec = {"tools": [tool("f", parameters, strict=True)], "tool_choice": "required"}
        assert "is over the" in refused_spec(server, json.dumps(spec))
    assert httpx.get(f"{server.url}/health").is_success


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"messages": [',
        b"\xff\xfe",
        b"[]",
        b'{"model": "kimi-k2", "messages": 5, "tools": [1]}',
        b'{"model": "kimi-k2", "messages": [{"role": "user", "content": "a\xff\xfe"}]}',
    ],
)
def test_bodies_that_are_no_request(server: VllmServer, content: bytes) -> None:
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", content=content, headers={"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code in {400, 422}


async def hang_up(client: openai.AsyncOpenAI, number: int) -> bool:
    """Ask for calls and leave after some pieces of one; whether any piece came."""
    body = BODY | {"tools": TOOLS, "tool_choice": "required", "max_tokens": 2000, "seed": number, "stream": True}
    stream = await client.chat.completions.create(**body, extra_body={"min_tokens": 50})
    pieces = 0
    async for chunk in stream:
        pieces += bool(chunk.choices and chunk.choices[0].delta.tool_calls)
        if pieces > number % 5:
            break
    await stream.close()
    return pieces > 0


async def bad(client: openai.AsyncOpenAI, number: int) -> None:
    tools: Any = [tool("f", {"not": {}}, strict=True)] if number % 2 else [tool("")]
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(**BODY, tools=tools)


def unfinished(server: VllmServer) -> float:
    metrics = Metrics(server)
    return metrics("vllm:num_requests_running") + metrics("vllm:num_requests_waiting")


@on("structured_output", "logits_processor", "ngram")
def test_bad_requests_and_clients_that_hang_up_do_not_disturb_the_others(server: VllmServer) -> None:
    samples, logged = list(ordinary_samples(24, seed=3)), len(server.log_text())

    async def everything() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=300) as client:
            asked = (ask(client, sample, model="kimi-k2", temperature=1.0, max_tokens=2048) for sample in samples)
            left = (hang_up(client, number) for number in range(48))
            refused = (bad(client, number) for number in range(10))
            return await asyncio.gather(*(asyncio.gather(*each) for each in (asked, left, refused)))

    answers, left, _ = asyncio.run(everything())
    result, problems = judged(samples, answers)
    assert not problems and result.served == result.due
    assert sum(left) > 24
    deadline = monotonic() + 60
    while unfinished(server) and monotonic() < deadline:
        sleep(0.25)
    assert not unfinished(server), "aborted requests are still being served"
    log = server.log_text()[logged:]
    assert "cannot go on" not in log and "EngineDeadError" not in log and "Traceback" not in log
    assert chat(server, tools=[WEATHER], tool_choice="required", max_tokens=1000, temperature=1.0).calls
