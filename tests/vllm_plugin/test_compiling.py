"""Tools are compiled before their request is admitted, beside what else the server does."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from constrained_k2 import ToolCallSpec, UnsupportedSchema
from constrained_k2.vllm_plugin import admission, compiling, lowering
from constrained_k2.vllm_plugin.compiling import CompiledAhead, compiled_ahead


def spec(**schema: Any) -> ToolCallSpec:
    return ToolCallSpec.from_openai({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})


def request(**fields: Any) -> Any:
    tool = {"type": "function", "function": {"name": "f"}}
    message = {"role": "user", "content": "x"}
    return ChatCompletionRequest.model_validate({"model": "m", "messages": [message], "tools": [tool]} | fields)


def test_other_requests_go_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    others_went_on = threading.Event()

    def compile_tools(_: Any) -> str:
        assert others_went_on.wait(60)
        return "compiled"

    monkeypatch.setattr(lowering, "_compile", compile_tools)

    async def serve() -> Any:
        compiled = asyncio.create_task(lowering.compile_ahead(request()))
        await asyncio.sleep(0)
        others_went_on.set()
        return await compiled

    assert asyncio.run(serve()) == "compiled"


@pytest.mark.parametrize("fields", [{"tools": None}, {"vllm_xargs": {"constrained_k2": "off"}}])
def test_nothing_is_compiled_where_nothing_is_constrained(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_compile", lambda _: pytest.fail("compiled"))
    assert asyncio.run(lowering.compile_ahead(request(**fields))) is None
    assert asyncio.run(lowering.compile_ahead(SimpleNamespace(tools=[object()], vllm_xargs={}))) is None  # /tokenize's


def test_what_was_compiled_ahead_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = spec(type="object"), spec(**{"not": {}})
    ahead = {each: CompiledAhead.of(each) for each in (good, bad)}
    monkeypatch.setattr(compiling, "byte_compiler", lambda _: pytest.fail("compiled again"))
    for each, found in ahead.items():
        token = compiled_ahead.set(found)
        try:
            if each is good:
                assert admission.admit(each) is found.outcome
            else:
                with pytest.raises(UnsupportedSchema, match="no value"):
                    admission.admit(each)
        finally:
            compiled_ahead.reset(token)


def test_what_was_compiled_for_another_request_is_not_used() -> None:
    token = compiled_ahead.set(CompiledAhead.of(spec(**{"not": {}})))
    try:
        assert admission.admit(spec(type="object")).spec == spec(type="object")
    finally:
        compiled_ahead.reset(token)
