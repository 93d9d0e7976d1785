"""The body middleware beside other middleware, on SageMaker's endpoint, and what it leaves to vLLM."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from constrained_k2.vllm_plugin.api_server.middleware import BodyMiddleware

NO_JSON = {"model": "m", "prompt": "x", "vllm_xargs": {"constrained_k2": "{"}}
SURROGATE = {"model": "m", "prompt": "x", "stop": "\ud83d"}
CUSTOM = {
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
@pytest.mark.parametrize(("body", "problem"), [(NO_JSON, "must be JSON"), (SURROGATE, "lone surrogate")])
def test_a_refusal_is_400_with_its_reason(path: str, reads_bodies: bool, body: Any, problem: str) -> None:
    headers = {"content-type": "application/json"}
    answer = served(reads_bodies=reads_bodies).post(path, content=json.dumps(body), headers=headers)
    assert answer.status_code == 400
    assert problem in answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_a_chat_is_rewritten_on_both_endpoints(path: str) -> None:
    (tool,) = served().post(path, json=CUSTOM).raise_for_status().json()["tools"]
    assert tool["type"] == "function"
    assert tool["function"]["name"] == "f"


@pytest.mark.parametrize("fields", [{"temperature": -1}, {"n": 0}, {"stop": ""}, {"use_beam_search": "false"}])
def test_other_wrong_fields_are_vllms_to_refuse(fields: Any) -> None:
    """Its message names the field; an error while the body is read would hide it."""
    body = {"model": "m", "prompt": "x", "vllm_xargs": {"of_another_plugin": 1}} | fields
    assert served().post("/v1/completions", json=body).status_code == 200  # the model takes it; the engine would not
