"""Clients that hang up in mid-call, on a real server under n-gram speculation."""

import asyncio
import json
import time
from typing import Any

import httpx
import jsonschema
import openai
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import TOOLS
from tests.kit.servers import on

pytestmark = pytest.mark.server

SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
WAIT_SECONDS = 60
BODY: dict[str, Any] = {"model": "kimi-k2", "messages": [{"role": "user", "content": "Weather?"}], "tools": list(TOOLS),
                        "tool_choice": "required", "temperature": 1.0}  # fmt: skip


def running(server: VllmServer) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))


async def hang_up(client: openai.AsyncOpenAI, number: int) -> bool:
    """Ask for calls and leave after some pieces of one; whether any piece came."""
    stream: Any = await client.chat.completions.create(
        **BODY, max_tokens=2000, seed=number, stream=True, extra_body={"min_tokens": 50}
    )
    pieces = 0
    async for chunk in stream:
        pieces += bool(chunk.choices and chunk.choices[0].delta.tool_calls)
        if pieces > number % 5:
            break
    await stream.close()
    return pieces > 0


async def whole(client: openai.AsyncOpenAI, number: int) -> list[Any]:
    answer = await client.chat.completions.create(
        **BODY, max_tokens=900, seed=number, extra_body={"vllm_xargs": {"constrained_k2_finish_reserve": 400}}
    )
    return answer.choices[0].message.tool_calls or []


@on("ngram")
def test_clients_that_hang_up(server: VllmServer) -> None:
    logged = len(server.log_text())

    async def all_at_once() -> tuple[list[bool], list[list[Any]]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120) as client:
            left, answered = await asyncio.gather(
                asyncio.gather(*(hang_up(client, number) for number in range(48))),
                asyncio.gather(*(whole(client, number) for number in range(12))),
            )
            return left, answered

    left, answered = asyncio.run(all_at_once())
    assert sum(left) > 24
    deadline = time.monotonic() + WAIT_SECONDS
    while running(server) and time.monotonic() < deadline:
        time.sleep(0.25)
    assert running(server) == 0, "aborted requests are still being served"
    for calls in answered:
        assert calls
        for call in calls:
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert httpx.get(f"{server.url}/health", timeout=60).is_success
    log = server.log_text()[logged:]
    assert "cannot go on" not in log and "EngineDeadError" not in log and "Traceback" not in log
