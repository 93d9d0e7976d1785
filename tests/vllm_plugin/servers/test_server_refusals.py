"""Refusals of a real vLLM server on both routes, which cost other requests nothing."""

import asyncio
import json
import re
from typing import Any

import httpx
import openai
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")


from constrained_k2.evaluation.server import VllmServer
from scripts.bundled_samples.ordinary import ordinary_samples
from tests.vllm_plugin.asking import MESSAGES, WEATHER, create
from tests.vllm_plugin.openai_client import ask, judged

pytestmark = pytest.mark.server


def status(client: openai.OpenAI, **fields: Any) -> tuple[int, str]:
    with pytest.raises(openai.APIStatusError) as refused:
        create(client, **fields)
    return refused.value.status_code, refused.value.message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("spec", ["{", "[1]", '{"tools": [{}]}', '{"tool_choice": "required"}', 5])
def test_bad_completions_requests(client: openai.OpenAI, spec: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(
            model="kimi-k2",
            prompt="hi",
            max_tokens=5,
            stream=stream,
            extra_body={"vllm_xargs": {"constrained_k2": spec}},
        )


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [function("")]}, "is empty"),
        ({"tools": [function("a<|tool_call_end|>")]}, "special token"),
        ({"tools": [function("n" * 10_240)]}, "10240 bytes|maximum context length"),
        ({"tools": [function(f"f{i}") for i in range(10_000)]}, "10000 tools|maximum context length"),
        (
            {"tools": [function("f", description="", parameters={"description": "x" * 10_000_000})]},
            "bytes|maximum context length",
        ),
        ({"tools": [function("f", strict=True, parameters={"type": "object", "not": {}})]}, "no value satisfies"),
        (
            {"tools": [function("f", strict=True, parameters={"type": "object", "minProperties": 70})]},
            "the tool is strict, and 'minProperties' cannot be enforced",
        ),
        (
            {"tools": [function("f", strict=True, parameters={"type": "string"})]},
            "the tool is strict, and 'type' cannot be enforced: .*arguments are always an object",
        ),
        (
            {"extra_body": {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}}},
            "response_format.type",
        ),
        ({"extra_body": {"vllm_xargs": {"constrained_k2": "maybe"}}}, "vllm_xargs.constrained_k2"),
    ],
)
def test_what_cannot_be_constrained_is_a_400(
    client: openai.OpenAI,
    fields: Any,
    message: str,
    stream: bool,
) -> None:
    code, said = status(client, **fields, stream=stream)
    assert code == 400
    assert re.search(message, said)  # vLLM renders the prompt first, so what is far too long fails its own check


def test_schemas_that_would_end_the_server(server: VllmServer, client: openai.OpenAI) -> None:
    links = {f"d{n}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(1500)}
    deep = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": links | {"d1500": {}}}
    wide = {"type": "object", "properties": {"a": {"enum": list(range(20_000))}}}
    for parameters in (deep, wide):
        spec = json.dumps({"tools": [function("f", strict=True, parameters=parameters)], "tool_choice": "required"})
        with pytest.raises(openai.BadRequestError, match="is over the"):
            client.completions.create(
                model="kimi-k2", prompt="hi", max_tokens=5, extra_body={"vllm_xargs": {"constrained_k2": spec}}
            )
    assert httpx.get(f"{server.url}/health").is_success


@pytest.mark.parametrize(
    "extra",
    [{"use_beam_search": True, "n": 2}, {"structured_outputs": {"regex": "a"}}, {"response_format": {"type": "json_object"}}],
)  # fmt: skip
def test_completions_with_what_would_bypass_or_break_the_constraint(client: openai.OpenAI, extra: Any) -> None:
    spec = json.dumps({"tools": [WEATHER], "tool_choice": "required"})
    with pytest.raises(openai.BadRequestError, match="cannot be combined"):
        client.completions.create(
            model="kimi-k2", prompt="hi", max_tokens=5, extra_body=extra | {"vllm_xargs": {"constrained_k2": spec}}
        )


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"messages": [', b"\xff\xfe", b"[]", b'{"model": "kimi-k2", "messages": 5, "tools": [1]}']
)
def test_bodies_that_are_no_request(server: VllmServer, content: bytes) -> None:
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", content=content, headers={"content-type": "application/json"}, timeout=60
    )
    assert answer.status_code in {400, 422}


def test_bad_requests_and_aborts_do_not_disturb_the_others(server: VllmServer, client: openai.OpenAI) -> None:
    samples = list(ordinary_samples(24, seed=3))

    async def everything() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120) as opened:

            async def bad(number: int) -> str:
                tools = [function("f", strict=True, parameters={"not": {}})] if number % 2 else [function("")]
                body: dict[str, Any] = {"model": "kimi-k2", "messages": MESSAGES, "tools": tools}
                with pytest.raises(openai.BadRequestError):
                    await opened.chat.completions.create(**body)
                return "refused"

            async def aborted() -> str:
                body: dict[str, Any] = {"model": "kimi-k2", "messages": MESSAGES, "tools": [WEATHER]}
                stream = await opened.chat.completions.create(**body, tool_choice="required", stream=True)
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.tool_calls:
                        break
                await stream.close()
                return "aborted"

            good = (ask(opened, s, model="kimi-k2", temperature=1.0, max_tokens=2048) for s in samples)
            return await asyncio.gather(*good, *map(bad, range(10)), *(aborted() for _ in range(4)))

    answers = asyncio.run(everything())[: len(samples)]
    result, problems = judged(samples, answers)
    assert not problems
    assert result.served == result.due
    assert create(client, tool_choice="required").choices[0].message.tool_calls
