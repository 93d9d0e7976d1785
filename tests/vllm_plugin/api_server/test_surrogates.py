"""Lone surrogates in a body: HTTP 400 in fields that vLLM sends to the engine core, accepted in texts."""

import json
import tracemalloc
from typing import Annotated, Any

import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.api_server.middleware import BodyMiddleware
from constrained_k2.vllm_plugin.api_server.surrogates import refuse_surrogates

HALF = "cut \ud83d off"
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/messages", "/v1/chat/completions/render")
JSON = {"content-type": "application/json"}
SENT: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"stop": HALF}, "stop"),
    ("/v1/chat/completions", {"stop": ["a", HALF]}, "stop[1]"),
    ("/v1/chat/completions", {"documents": [{"text": HALF}]}, "documents[0].text"),
    ("/v1/chat/completions/render", {"chat_template_kwargs": {"a": HALF}}, "chat_template_kwargs.a"),
    ("/v1/completions", {"bad_words": [HALF]}, "bad_words[0]"),
    ("/v1/completions", {"request_id": HALF}, "request_id"),
    ("/v1/responses", {"session_id": HALF}, "session_id"),
    ("/v1/responses", {"vllm_xargs": {HALF: 1}}, "vllm_xargs.cut \\ud83d off"),
    ("/v1/messages", {"stop_sequences": [HALF]}, "stop_sequences[0]"),
    ("/v1/chat/completions", {"structured_outputs": {"regex": HALF}}, "structured_outputs.regex"),
    ("/v1/completions", {"vllm_xargs": {"😀": [[], {"a": 1}, ["b"]], "c": {"d": [1, HALF]}}}, "vllm_xargs.c.d[1]"),
    ("/v1/messages", {"kv_transfer_params": {"a": [[HALF]]}}, "kv_transfer_params.a[0][0]"),
]
TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "tool", "content": HALF}], "user": HALF, "unknown": HALF}),
    ("/v1/responses", {"input": HALF, "documents": [HALF]}),  # a field of another endpoint
    ("/v1/completions", {"prompt": HALF, "chat_template_kwargs": {"a": HALF}}),
    ("/v1/messages", {"system": HALF, "stop": HALF}),
]


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()

    def echo(body: Annotated[Any, Body()]) -> str:
        return ascii(body)

    for path in PATHS:
        app.post(path)(echo)
    app.add_middleware(BodyMiddleware)
    return TestClient(app)


def written(body: dict[str, Any]) -> list[bytes]:
    """The encodings of a body with lone surrogates: JSON escapes, UTF-8 bytes of surrogates, UTF-16."""
    raw = json.dumps(body, ensure_ascii=False)
    return [json.dumps(body).encode(), raw.encode(errors="surrogatepass"), raw.encode("utf-16", "surrogatepass")]


@pytest.mark.parametrize(("path", "body", "location"), SENT, ids=ascii)
def test_where_the_engine_core_is_sent_it_it_is_refused(
    client: TestClient, path: str, body: dict[str, Any], location: str
) -> None:
    for content in written(body):
        answer = client.post(path, content=content, headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["detail"].startswith(f"{location}: has half a UTF-16 character")


@pytest.mark.parametrize(("path", "body"), TAKEN, ids=ascii)
def test_elsewhere_it_is_vllms(client: TestClient, path: str, body: dict[str, Any]) -> None:
    for content in written(body):
        answer = client.post(path, content=content, headers=JSON)
        assert (answer.status_code, answer.json()) == (200, ascii(body))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stop", ["\U0001f600", "d83d", "\\ud83d"])
def test_whole_characters_are_taken(client: TestClient, path: str, stop: str) -> None:
    for content in written({"stop": stop, "stop_sequences": [stop]}):
        assert client.post(path, content=content, headers=JSON).status_code == 200


def test_long_keys_over_long_lists_take_no_memory() -> None:
    """A location for each item would take two gigabytes."""
    body = json.dumps({"vllm_xargs": {"k" * 100_000: [*[[1]] * 20_000, HALF]}}).encode()
    tracemalloc.start()
    with pytest.raises(InvalidRequest) as refused:
        refuse_surrogates(body, ChatCompletionRequest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * len(body) and len(refused.value.location) == 300
