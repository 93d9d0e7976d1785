"""The body middleware, beside other middleware and on SageMaker's endpoint: what it rewrites, refuses, and leaves to vLLM."""

import json
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from fastapi import Body, FastAPI, Request
from fastapi.testclient import TestClient
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from constrained_k2.errors import InvalidRequest
from constrained_k2.vllm_plugin.api_server.middleware import BodyMiddleware, rewritten
from constrained_k2.vllm_plugin.api_server.surrogates import refuse_surrogates
from tests.vllm_plugin.parsers import TOOL

JSON = {"content-type": "application/json"}
PROMPT = {"model": "m", "prompt": "x", "stream": True}
CONSTRAINT = {"constrained_k2": json.dumps({"tools": [TOOL]})}
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "custom", "custom": {"name": "f"}}],
}


def served(*, reads_bodies: bool = False) -> TestClient:
    """An application with vLLM's models, and if ``reads_bodies`` with an operator's middleware as vLLM adds it."""
    app = FastAPI()

    async def completion(request: CompletionRequest) -> Any:
        return request.model_dump()

    async def chat(request: ChatCompletionRequest) -> Any:
        return request.model_dump()

    async def invocations(raw: Request) -> Any:
        body = await raw.json()
        return (ChatCompletionRequest if "messages" in body else CompletionRequest).model_validate(body).model_dump()

    app.post("/v1/completions")(completion)
    app.post("/v1/chat/completions")(chat)
    app.post("/invocations")(invocations)
    if reads_bodies:

        @app.middleware("http")
        async def log(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
            await request.body()
            return await call_next(request)

    app.add_middleware(BodyMiddleware)
    return TestClient(app)


@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
@pytest.mark.parametrize("reads_bodies", [False, True])
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"vllm_xargs": {"constrained_k2": "{"}}, "must be JSON"),
        ({"vllm_xargs": {"constrained_k2_allowed_tools": "{}"}}, "allowed_tools"),
        ({"vllm_xargs": CONSTRAINT, "use_beam_search": True}, "use_beam_search: cannot be combined"),
        ({"stop": "\ud83d"}, "lone surrogate"),
    ],
)
def test_a_refusal_is_400_with_its_reason(path: str, reads_bodies: bool, fields: Any, problem: str) -> None:
    answer = served(reads_bodies=reads_bodies).post(path, content=json.dumps(PROMPT | fields), headers=JSON)
    assert answer.status_code == 400
    assert problem in answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_a_chat_is_rewritten_on_both_endpoints_and_in_pieces(path: str) -> None:
    written = json.dumps(CHAT).encode()
    for content in (written, iter([written[:10], written[10:]])):
        (tool,) = served().post(path, content=content, headers=JSON).raise_for_status().json()["tools"]
        assert tool["type"] == "function"
        assert tool["function"]["name"] == "f"


@pytest.mark.parametrize(
    "fields",
    [{"temperature": -1}, {"n": 0}, {"stop": ""}, {"use_beam_search": "false"}, {"use_beam_search": True}, {"vllm_xargs": CONSTRAINT}],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_other_fields_are_vllms_to_refuse(fields: Any) -> None:
    """Its message names the field; an error while the body is read would hide it."""
    body = PROMPT | {"vllm_xargs": {"of_another_plugin": 1}} | fields
    assert served().post("/v1/completions", json=body).status_code == 200  # the model takes it; the engine would not
    assert served().post("/v1/completions", json=body | {"n": "x"}).status_code == 422


def test_a_body_that_is_no_json_is_vllms_to_refuse() -> None:
    assert served().post("/v1/chat/completions", content=b"{", headers=JSON).status_code == 422


@pytest.mark.parametrize("body", [None, [], "x", 1, {"messages": [], "vllm_xargs": 1}])
def test_bodies_that_are_none(body: Any) -> None:
    assert all(rewritten(body, field) == body for field in ("messages", "input", "prompt"))


# Lone surrogates

HALF = "cut \ud83d off"
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/messages", "/v1/chat/completions/render")
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
    *((path, {"stop": whole, "stop_sequences": [whole]}) for path in PATHS for whole in ("😀", "d83d", "\\ud83d")),
]


@pytest.fixture(scope="module")
def echo() -> TestClient:
    app = FastAPI()

    def repeat(body: Annotated[Any, Body()]) -> str:
        return ascii(body)

    for path in PATHS:
        app.post(path)(repeat)
    app.add_middleware(BodyMiddleware)
    return TestClient(app)


def written(body: dict[str, Any]) -> list[bytes]:
    """The encodings of a body with lone surrogates: JSON escapes, UTF-8 bytes of surrogates, UTF-16."""
    raw = json.dumps(body, ensure_ascii=False)
    return [json.dumps(body).encode(), raw.encode(errors="surrogatepass"), raw.encode("utf-16", "surrogatepass")]


@pytest.mark.parametrize(("path", "body", "location"), SENT, ids=ascii)
def test_a_lone_surrogate_that_the_engine_core_is_sent_is_refused(
    echo: TestClient, path: str, body: dict[str, Any], location: str
) -> None:
    for content in written(body):
        answer = echo.post(path, content=content, headers=JSON)
        assert answer.status_code == 400
        assert answer.json()["detail"].startswith(f"{location}: has half a UTF-16 character")


@pytest.mark.parametrize(("path", "body"), TAKEN, ids=ascii)
def test_elsewhere_it_is_vllms_and_whole_characters_are_taken(
    echo: TestClient, path: str, body: dict[str, Any]
) -> None:
    for content in written(body):
        answer = echo.post(path, content=content, headers=JSON)
        assert (answer.status_code, answer.json()) == (200, ascii(body))


def test_long_keys_over_long_lists_take_no_memory() -> None:
    """A location for each item would take two gigabytes."""
    body = json.dumps({"vllm_xargs": {"k" * 100_000: [*[[1]] * 20_000, HALF]}}).encode()
    tracemalloc.start()
    with pytest.raises(InvalidRequest) as refused:
        refuse_surrogates(body, ChatCompletionRequest)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * len(body) and len(refused.value.location) == 300
