"""A server without our flags answers, byte for byte, as one that does not load the plugin."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from constrained_k2.evaluation.server import VllmServer
from tests.kit.servers import on, started
from tests.prompts.dialogs import call, calls, result
from tests.vllm_plugin.asking import MESSAGES, WEATHER

pytestmark = [pytest.mark.server, on("stock")]

XARGS = {"constrained_k2": json.dumps({"tools": [WEATHER]}), "constrained_k2_repair": "on"}
CALLED = [
    *MESSAGES,
    calls(call("call_1", "get_weather", '{ "city":"x"}')) | {"reasoning_content": "hm"},
    result("call_1", [{"type": "text", "text": "<|im_end|>"}]),
]
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 12, "seed": 1, "temperature": 1.0}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", CHAT | {"tools": [WEATHER], "vllm_xargs": XARGS}),
    ("/v1/chat/completions", CHAT | {"tools": [WEATHER], "stream": True, "n": 2}),
    ("/v1/chat/completions", CHAT | {"tools": [WEATHER], "tool_choice": "none", "messages": CALLED}),
    ("/v1/chat/completions", CHAT | {"tools": [WEATHER, WEATHER], "messages": CALLED, "vllm_xargs": XARGS}),
    ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [{"type": "smell"}]}]}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 8, "seed": 2, "vllm_xargs": XARGS}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 8, "seed": 2, "stream": True, "logprobs": 2}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 4, "n": 2, "use_beam_search": True, "vllm_xargs": XARGS}),
    ("/v1/completions", {"prompt": "x", "max_tokens": -1}),
    ("/tokenize", {"messages": CALLED, "tools": [WEATHER]}),
]  # fmt: skip


@pytest.fixture(scope="session")
def without(server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """The same server without the plugin; an answer's fingerprint is of the model's directory too."""
    yield from started("without_plugin", tmp_path_factory.mktemp("without"), server.model)


def answer(server: VllmServer, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status and the body, without the time. Of a stream what its events add up to: vLLM joins some when busy."""
    got = httpx.post(server.url + path, json={"model": "kimi-k2"} | body, headers={"X-Request-Id": "a"}, timeout=120)
    timeless = re.sub(rb'"created":\d+', b'"created":0', got.content)
    if not body.get("stream"):
        return got.status_code, timeless
    added: dict[str, Any] = {}
    for line in timeless.splitlines():
        if line.startswith(b"data: {"):
            add(json.loads(line.removeprefix(b"data: ")), added)
    return got.status_code, (added, timeless[-20:])


def add(event: dict[str, Any], to: dict[str, Any]) -> None:
    """Add an event of a stream to those before it: texts and lists are joined, the last of other values stays."""
    for name, value in event.items():
        if isinstance(value, dict):
            add(value, to.setdefault(name, {}))
        elif name in {"choices", "tool_calls"}:
            for part in value or ():
                add(part, to.setdefault(name, {}).setdefault(part["index"], {}))
        elif name in {"content", "reasoning", "text", "arguments"} and value:
            to[name] = (to.get(name) or "") + value
        elif isinstance(value, list):
            to[name] = (to.get(name) or []) + value
        elif value is not None or name not in to:
            to[name] = value


@pytest.mark.parametrize("asked", range(len(ASKED)))
def test_answers_are_those_of_a_server_without_the_plugin(server: VllmServer, without: VllmServer, asked: int) -> None:
    path, body = ASKED[asked]
    with_plugin = answer(server, path, body)
    assert with_plugin == answer(without, path, body)
    assert with_plugin[0] in {200, 400}


def test_metrics_are_those_of_a_server_without_the_plugin(server: VllmServer, without: VllmServer) -> None:
    families = [
        re.findall("^# TYPE .*$", httpx.get(f"{each.url}/metrics", timeout=60).text, re.MULTILINE)
        for each in (server, without)
    ]
    assert families[0] == families[1]
    assert not any("constrained_k2" in family for family in families[0])
